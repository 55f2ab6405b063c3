package manifest

import (
	"bytes"
	"fmt"
	"slices"
)

func (p PutRecord) apply(b *builder) error {
	if p.Record.Kind == RecordLocation {
		return invalid("put record", p.Record.subject(), "a location comes with its first shard (AddShards), and stays as it is")
	}
	if p.Record.Kind == RecordHold && b.s.Spread() && wellFormed(p.Record.Body) {
		if err := b.s.checkHold("hold a range", p.Record.rangeHold()); err != nil {
			return err
		}
	}
	i, ok := b.s.searchRecord(p.Record.Kind, p.Record.ID)
	if p.IfBody != nil && (!ok || !bytes.Equal(b.s.records[i].Body, p.IfBody)) {
		return conflict("put record", p.Record.subject(), "it changed meanwhile")
	}
	if !ok {
		b.s.records = inserted(b.s.records, i, p.Record)
		return nil
	}
	if p.IfAbsent {
		return conflict("put record", p.Record.subject(), "it exists, expected none")
	}
	b.s.records = replaced(b.s.records, i, p.Record)
	return nil
}

func (n Note) apply(b *builder) error {
	if n.What == "" {
		return invalid("note", n.NS, "no What: name what happened")
	}
	b.logged = append(b.logged, HistoryEntry{Version: b.s.version, Millis: b.edit.Millis, What: n.What, NS: n.NS, Detail: n.Detail})
	return nil
}

func (r Record) subject() string { return fmt.Sprintf("%s %q", r.Kind, r.ID) }

func (d DropRecord) apply(b *builder) error {
	if d.Kind == RecordLocation {
		return invalid("drop record", Record{Kind: d.Kind, ID: d.ID}.subject(), "what is there may still be read, by a pin for one")
	}
	if i, ok := b.s.searchRecord(d.Kind, d.ID); ok {
		b.s.records = removed(b.s.records, i)
	}
	return nil
}

func searchJob(jobs []Job, id JobID) (int, bool) {
	return slices.BinarySearchFunc(jobs, id, func(j Job, id JobID) int { return bytes.Compare(j.ID[:], id[:]) })
}

func (r RegisterJob) apply(b *builder) error {
	i, ok := searchJob(b.s.jobs, r.Job.ID)
	if ok {
		return conflict("register job", fmt.Sprintf("%x", r.Job.ID), "it exists")
	}
	if err := r.overlap(b.s.jobs); err != nil {
		return err
	}
	if c := r.Job.Builds(); c != 0 {
		if c != b.s.nextCollection {
			return conflict("register job", fmt.Sprintf("%x", r.Job.ID), "it builds collection %d, and the next id is %d", c, b.s.nextCollection)
		}
		b.collectionID()
	}
	b.s.jobs = inserted(b.s.jobs, i, r.Job)
	return nil
}

// overlap conflicts when the job merges segments of a chunk that another one is at.
func (r RegisterJob) overlap(jobs []Job) error {
	if r.Job.Kind != JobCompact {
		return nil
	}
	mine := r.Job.Chunks()
	for _, j := range jobs {
		if j.Kind != JobCompact {
			continue
		}
		for _, id := range j.Chunks() {
			if slices.Contains(mine, id) {
				return conflict("register job", fmt.Sprintf("%x", r.Job.ID), "job %x works on chunk %d", j.ID, id)
			}
		}
	}
	return nil
}

func (x ExpelJob) apply(b *builder) error {
	if i, ok := searchJob(b.s.jobs, x.ID); ok {
		b.s.jobs = removed(b.s.jobs, i)
	}
	b.drop(x.Left)
	return nil
}

func (f ForgetDropped) apply(b *builder) error {
	forget := make(map[DroppedSegment]bool, len(f.Segments))
	for _, d := range f.Segments {
		forget[d] = true
	}
	b.s.dropped = slices.DeleteFunc(slices.Clone(b.s.dropped), func(d DroppedSegment) bool { return forget[d] })
	return nil
}

func searchPin(pins []Pin, id [16]byte) (int, bool) {
	return slices.BinarySearchFunc(pins, id, func(p Pin, id [16]byte) int { return bytes.Compare(p.ID[:], id[:]) })
}

func (a AddPin) apply(b *builder) error {
	i, ok := searchPin(b.s.pins, a.Pin.ID)
	if ok {
		return conflict("pin", fmt.Sprintf("%x", a.Pin.ID), "it exists, with version %d", b.s.pins[i].Version)
	}
	p := a.Pin
	p.Version = b.s.version
	b.s.pins = inserted(b.s.pins, i, p)
	return nil
}

func (d DropPin) apply(b *builder) error {
	if i, ok := searchPin(b.s.pins, d.ID); ok {
		b.s.pins = removed(b.s.pins, i)
	}
	return nil
}

func (r RaiseFormat) apply(b *builder) error {
	const verb = "raise format"
	was, now := b.s.format, Format(r)
	switch {
	case now.MinReader > FormatVersion || now.MinWriter > FormatVersion:
		return invalid(verb, now, "this release knows formats up to %s", formatName(FormatVersion))
	case now.MinReader < was.MinReader || now.MinWriter < was.MinWriter:
		return conflict(verb, now, "it is %s already", was)
	case now.MinWriter < now.MinReader:
		return invalid(verb, now, "a writer reads as well: MinWriter is at least MinReader")
	}
	b.s.format = now
	return nil
}
