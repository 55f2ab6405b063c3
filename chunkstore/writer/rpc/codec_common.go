package rpc

import (
	"math"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

func (h *Header) append(e *encoder) {
	e.str("shard", string(h.Shard))
	e.int("coll", int64(h.Collection))
	e.int("root", int64(h.RootVersion))
	e.int("deadline", int64(h.Deadline)) // nanoseconds
}

// parse takes a field of the header; false: it is another one.
func (h *Header) parse(f *reader) bool {
	switch string(f.name) {
	case "shard":
		h.Shard = manifest.ShardID(f.str())
	case "coll":
		h.Collection = collection(f)
	case "root":
		h.RootVersion = manifest.Version(f.int())
	case "deadline":
		h.Deadline = time.Duration(f.int())
		f.want(h.Deadline >= 0, "a duration")
	default:
		return false
	}
	return true
}

func collection(f *reader) manifest.CollectionID { return manifest.CollectionID(f.small(1<<32 - 1)) }

func appendTargets(e *encoder, targets []Target) {
	if len(targets) == 0 {
		return
	}
	list := e.array("targets")
	for i := range targets {
		t := &targets[i]
		at := e.item(i)
		e.int("id", int64(t.ID))
		e.int("v", int64(t.Version))
		e.bin("min", t.Min)
		if len(t.Ranges) > 0 {
			ranges := e.array("ranges")
			for j, r := range t.Ranges {
				at := e.item(j)
				e.bin("min", r.Min)
				e.bin("max", r.Max)
				e.end(at)
			}
			e.end(ranges)
		}
		e.end(at)
	}
	e.end(list)
}

func parseTargets(f *reader) []Target {
	els := f.elements()
	targets := make([]Target, 0, els.count(math.MaxInt32))
	for els.next() {
		targets = append(targets, Target{})
		els.took(targets[len(targets)-1].parse(els.doc()))
	}
	f.took(els.err)
	return targets
}

func (t *Target) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "id":
			t.ID = manifest.ChunkID(f.int())
		case "v":
			t.Version = manifest.ChunkVersion(f.int())
		case "min":
			t.Min = f.bin()
		case "ranges":
			els := f.elements()
			t.Ranges = make([]shardkey.Range, 0, els.count(math.MaxInt32))
			for els.next() {
				t.Ranges = append(t.Ranges, shardkey.Range{})
				els.took(parseRange(&t.Ranges[len(t.Ranges)-1], els.doc()))
			}
			f.took(els.err)
		default:
			f.unknown()
		}
	}
	return f.err
}

func parseRange(r *shardkey.Range, f reader) error {
	for f.next() {
		switch string(f.name) {
		case "min":
			r.Min = f.bin()
		case "max":
			r.Max = f.bin()
		default:
			f.unknown()
		}
	}
	return f.err
}

func (b *Batch) append(e *encoder) {
	e.int("batchDocs", int64(b.Docs))
	e.int("batchBytes", int64(b.Bytes))
}

func (b *Batch) parse(f *reader) bool {
	switch string(f.name) {
	case "batchDocs":
		b.Docs = int(f.small(1<<31 - 1))
	case "batchBytes":
		b.Bytes = int(f.small(1<<31 - 1))
	default:
		return false
	}
	return true
}

func appendChunks(e *encoder, chunks []manifest.ChunkAt) {
	if len(chunks) == 0 {
		return
	}
	list := e.array("chunks")
	for i := range chunks {
		at := e.item(i)
		appendChunkAt(e, &chunks[i])
		e.end(at)
	}
	e.end(list)
}

// appendChunkAt appends the fields of an open document.
func appendChunkAt(e *encoder, c *manifest.ChunkAt) {
	e.int("coll", int64(c.Collection))
	e.bin("min", c.Min)
	e.int("id", int64(c.ID))
	e.int("v", int64(c.Version))
}

func parseChunks(f *reader) []manifest.ChunkAt {
	els := f.elements()
	chunks := make([]manifest.ChunkAt, 0, els.count(math.MaxInt32))
	for els.next() {
		chunks = append(chunks, manifest.ChunkAt{})
		els.took(parseChunkAt(&chunks[len(chunks)-1], els.doc()))
	}
	f.took(els.err)
	return chunks
}

func parseChunkAt(c *manifest.ChunkAt, f reader) error {
	for f.next() {
		switch string(f.name) {
		case "coll":
			c.Collection = collection(&f)
		case "min":
			c.Min = f.bin()
		case "id":
			c.ID = manifest.ChunkID(f.int())
		case "v":
			c.Version = manifest.ChunkVersion(f.int())
		default:
			f.unknown()
		}
	}
	return f.err
}

func appendPosition(e *encoder, name string, p manifest.Position) {
	if p == (manifest.Position{}) {
		return
	}
	at := e.doc(name)
	e.int("epoch", int64(p.Epoch))
	e.int("next", int64(p.Next))
	e.end(at)
}

func parsePosition(p *manifest.Position, f reader) error {
	for f.next() {
		switch string(f.name) {
		case "epoch":
			p.Epoch = manifest.Epoch(f.int())
		case "next":
			p.Next = uint64(f.int())
		default:
			f.unknown()
		}
	}
	return f.err
}
