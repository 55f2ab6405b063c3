package manifest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"

	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Bounds on what a caller may put into the root, which every process holds in memory and
// every commit writes.
const (
	boundKeyMax = 16 << 10 // bytes of a chunk or zone bound
	bodyMax     = 1 << 20  // bytes of a record, an option, an index definition
	nameMax     = 1 << 10  // bytes of an id or a name
)

var shardName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// wellFormed tells whether d has the frame of a BSON document. What is inside is the
// business of whoever wrote it; nothing in this package looks there.
func wellFormed(d bson.Raw) bool {
	return len(d) >= 5 && len(d) <= bodyMax && int64(binary.LittleEndian.Uint32(d)) == int64(len(d)) && d[len(d)-1] == 0
}

func optional(d bson.Raw) bool { return len(d) == 0 || wellFormed(d) }

func checkShard(h *Shard) error {
	const verb = "check shard"
	switch {
	case !shardName.MatchString(string(h.ID)):
		return invalid(verb, h.ID, "a shard's name is 1 to 32 of a-z, 0-9 and -")
	case h.Status > ShardDraining || h.Kind > EpochShared:
		return invalid(verb, h.ID, "unknown status %d or kind %d", h.Status, h.Kind)
	case h.Status != ShardFree && h.Epoch == 0:
		return invalid(verb, h.ID, "held at epoch 0, which is before the first claim")
	case h.Status == ShardFree && (len(h.OpenEpochs) > 0 || h.Holder != "" || h.Address != ""):
		return invalid(verb, h.ID, "free, but with open epochs %v or holder %q", h.OpenEpochs, h.Holder)
	case h.Floor.Epoch > h.Epoch:
		return invalid(verb, h.ID, "floor %s is beyond epoch %d", h.Floor, h.Epoch)
	case len(h.Holder) > nameMax || len(h.Address) > nameMax:
		return invalid(verb, h.ID, "holder or address is longer than %d bytes", nameMax)
	}
	for i, e := range h.OpenEpochs {
		if e >= h.Epoch || e < h.Floor.Epoch || i > 0 && e <= h.OpenEpochs[i-1] {
			return invalid(verb, h.ID, "open epochs %v: they ascend, from the floor's %d to below %d", h.OpenEpochs, h.Floor.Epoch, h.Epoch)
		}
	}
	for i, z := range h.Zones {
		if z == "" || len(z) > nameMax || i > 0 && z <= h.Zones[i-1] {
			return invalid(verb, h.ID, "zones %q: names, ascending, each once", h.Zones)
		}
	}
	return nil
}

// checkPlace requires that a shard's location is known, and is the one that it has always had.
func checkPlace(old, s *State, h *Shard) error {
	if h.Location != 0 {
		if _, err := s.Location(h.Location); err != nil {
			return err
		}
	}
	if was := old.Shard(h.ID); was != nil && was.Location != h.Location {
		return invalid("check shard", h.ID, "it went from location %d to %d: a shard stays where it was added", was.Location, h.Location)
	}
	return nil
}

func checkCollection(c *Collection) error {
	const verb = "check collection"
	name := c.Namespace()
	switch {
	case c.ID == 0 || c.UUID == [16]byte{}:
		return invalid(verb, name, "no id or no UUID")
	case c.Database == "" || c.Name == "" || len(name) > nameMax:
		return invalid(verb, name, "database and name are 1 to %d bytes together", nameMax)
	case len(c.Key.Fields) == 0 || len(c.Key.Fields) > 32:
		return invalid(verb, name, "a shard key has 1 to 32 fields, not %d", len(c.Key.Fields))
	case !optional(c.Options):
		return invalid(verb, name, "options are not a document of at most %d bytes", bodyMax)
	}
	for _, f := range c.Key.Fields {
		if f.Path == "" || len(f.Path) > nameMax {
			return invalid(verb, name, "shard key field %q: 1 to %d bytes", f.Path, nameMax)
		}
	}
	for _, x := range c.Indexes {
		if x.Name == "" || len(x.Name) > nameMax || !wellFormed(x.Spec) {
			return invalid(verb, name, "index %q: it needs a name and a document of at most %d bytes", x.Name, bodyMax)
		}
	}
	for i, z := range c.Zones {
		switch {
		case z.Zone == "" || len(z.Zone) > nameMax || !wellFormed(z.MinBSON) || !wellFormed(z.MaxBSON):
			return invalid(verb, name, "zone range %d: it needs a zone and two bounds", i)
		case z.Range.Empty() || max(len(z.Range.Min), len(z.Range.Max)) > boundKeyMax:
			return invalid(verb, name, "zone range %s is empty or its bounds are longer than %d bytes", z.Range, boundKeyMax)
		case i > 0 && (shardkey.CompareMin(c.Zones[i-1].Range.Min, z.Range.Min) >= 0 || c.Zones[i-1].Range.Overlaps(z.Range)):
			return invalid(verb, name, "zone ranges %s and %s overlap or do not ascend", c.Zones[i-1].Range, z.Range)
		}
	}
	return nil
}

// checkChunk looks at one chunk in its state.
func checkChunk(s *State, c *Chunk) error {
	const verb = "check chunk"
	h := s.Shard(c.Shard)
	switch {
	case c.ID == 0 || c.ID >= s.nextChunk || c.Version == 0:
		return invalid(verb, c.ID, "id is outside 1..%d or version %d is 0", s.nextChunk-1, c.Version)
	case h == nil:
		return invalid(verb, c.ID, "owner %s does not exist", c.Shard)
	case c.Range.Empty() || max(len(c.Range.Min), len(c.Range.Max)) > boundKeyMax:
		return invalid(verb, c.ID, "range %s is empty or its bounds are longer than %d bytes", c.Range, boundKeyMax)
	case !wellFormed(c.MinBSON) || !wellFormed(c.MaxBSON):
		return invalid(verb, c.ID, "a bound has no BSON")
	case c.OwnFloor != Position{} && !h.Floor.Less(c.OwnFloor):
		return invalid(verb, c.ID, "own floor %s is not above the shard's %s", c.OwnFloor, h.Floor)
	case c.OwnFloor.Epoch > h.Epoch:
		return invalid(verb, c.ID, "own floor %s is beyond the shard's epoch %d", c.OwnFloor, h.Epoch)
	case c.Rows < 0 || c.Bytes < 0:
		return invalid(verb, c.ID, "rows %d or bytes %d are negative", c.Rows, c.Bytes)
	}
	for i := range c.Refs {
		if err := checkRef(s, c, i); err != nil {
			return err
		}
	}
	return checkTwice(c)
}

// checkRef looks at reference i of a chunk. Its keys may reach beyond the clip: they are of
// the time before the splits.
func checkRef(s *State, c *Chunk, i int) error {
	const verb = "check chunk"
	r := &c.Refs[i]
	switch {
	case r.Clip.Empty() || !c.Range.Covers(r.Clip):
		return invalid(verb, c.ID, "clip %s of %s is empty or not inside %s", r.Clip, r.Segment, c.Range)
	case r.MinSeq > r.MaxSeq || r.MaxSeq > c.MaxSeq || r.FixedSeq != 0 && (r.MinSeq != r.FixedSeq || r.MaxSeq != r.FixedSeq):
		return invalid(verb, c.ID, "seqs %d..%d (fixed %d) of %s, chunk has %d", r.MinSeq, r.MaxSeq, r.FixedSeq, r.Segment, c.MaxSeq)
	case bytes.Compare(r.MinKey, r.MaxKey) > 0:
		return invalid(verb, c.ID, "keys of %s are in the wrong order", r.Segment)
	case !r.rowsIn(r.Clip) && r.RetryUntil == 0:
		return invalid(verb, c.ID, "%s has nothing inside its clip %s", r.Segment, r.Clip)
	}
	if err := checkCreator(s, r.Segment.Creator); err != nil {
		return invalid(verb, c.ID, "%s: %v", r.Segment, err)
	}
	return nil
}

// checkTwice requires that no two references of a chunk show the same rows of a segment. It
// is linear in the references: a chunk that waits for compaction may have thousands.
func checkTwice(c *Chunk) error {
	first := make(map[[16]byte]int, len(c.Refs))
	for i := range c.Refs {
		r := &c.Refs[i]
		k, seen := first[r.Segment.Random]
		if !seen {
			first[r.Segment.Random] = i
			continue
		}
		for ; k < i; k++ {
			if c.Refs[k].Segment == r.Segment && c.Refs[k].Clip.Overlaps(r.Clip) {
				return invalid("check chunk", c.ID, "%s is referenced twice", r.Segment)
			}
		}
	}
	return nil
}

// checkCreator tells whether the actor can ever have been registered.
func checkCreator(s *State, c Creator) error {
	last := Epoch(0)
	switch c.Kind {
	case CreatorJob:
		if c.Shard != "" || c.Epoch != 0 {
			return invalid("check creator", c, "a job has no shard")
		}
		return nil
	case CreatorShard, CreatorDirect:
		if h := s.Shard(c.Shard); h != nil {
			last = h.Epoch
		} else if i, ok := s.searchRetired(c.Shard); ok {
			last = s.retired[i].Epoch
		} else {
			return invalid("check creator", c, "no such shard, now or before")
		}
	default:
		return invalid("check creator", c, "unknown kind")
	}
	if c.Epoch > last || c.Job != (JobID{}) {
		return invalid("check creator", c, "epoch is beyond the shard's %d", last)
	}
	return nil
}

// checkTable looks at the order and cover of a table's chunks (I9): of all pages, or of
// those that old does not have. Between two old pages nothing can have changed.
func checkTable(s *State, t *table, old *table) error {
	const verb = "check chunks of collection"
	if len(t.pages) == 0 {
		return invalid(verb, t.collection, "none: they must cover the key space")
	}
	var last *Chunk
	for i, p := range t.pages {
		if len(p.chunks) == 0 || len(p.chunks) > PageChunksMax {
			return invalid(verb, t.collection, "page %d has %d chunks", i, len(p.chunks))
		}
		if old.has(p) {
			if err := adjacent(t.collection, last, p.chunks[0]); err != nil {
				return err
			}
			last = p.chunks[len(p.chunks)-1]
			continue
		}
		if err := checkPlaces(s, p); err != nil {
			return err
		}
		for _, c := range p.chunks {
			if err := adjacent(t.collection, last, c); err != nil {
				return err
			}
			if err := checkChunk(s, c); err != nil {
				return err
			}
			last = c
		}
	}
	if len(last.Range.Max) != 0 {
		return invalid(verb, t.collection, "they end at %s, expected the end of the key space", show(last.Range.Max))
	}
	return nil
}

// adjacent tells whether b follows a; nil stands before the first chunk.
func adjacent(id CollectionID, a, b *Chunk) error {
	const verb = "check chunks of collection"
	switch {
	case b.Collection != id:
		return invalid(verb, id, "chunk %d says that it is of collection %d", b.ID, b.Collection)
	case a == nil && len(b.Range.Min) != 0:
		return invalid(verb, id, "they start at %s, expected the start of the key space", show(b.Range.Min))
	case a != nil && (len(b.Range.Min) == 0 || !bytes.Equal(a.Range.Max, b.Range.Min)):
		return invalid(verb, id, "gap or overlap: chunk %d %s, then chunk %d %s", a.ID, a.Range, b.ID, b.Range)
	case a != nil && !bytes.Equal(a.MaxBSON, b.MinBSON):
		return invalid(verb, id, "chunks %d and %d spell the bound between them differently", a.ID, b.ID)
	}
	return nil
}

// has tells whether t has the very page p.
func (t *table) has(p *page) bool {
	if t == nil || len(t.pages) == 0 {
		return false
	}
	i := t.pageOf(p.min())
	return t.pages[i].id == p.id
}

func checkRecord(r Record) error {
	if r.Kind == 0 || r.ID == "" || len(r.ID) > nameMax || !wellFormed(r.Body) {
		return invalid("check record", r.subject(), "it needs a kind, an id of 1 to %d bytes and a document of at most %d bytes", nameMax, bodyMax)
	}
	if r.Kind == RecordLocation {
		_, err := r.location()
		return err
	}
	return nil
}

func checkToken(t Token) error {
	if t.App == "" || t.Batch == "" || max(len(t.App), len(t.Batch)) > nameMax || !optional(t.Result) {
		return invalid("check token", t.subject(), "application and batch are 1 to %d bytes, the result a document", nameMax)
	}
	return nil
}

func checkJob(j Job) error {
	if j.ID == (JobID{}) || len(j.Kind) > nameMax || len(j.Holder) > nameMax || !optional(j.Detail) {
		return invalid("check job", j.Kind, "it needs an id; kind and holder are at most %d bytes, the detail a document", nameMax)
	}
	return nil
}

// checkTouched checks what an Edit changed of old.
func checkTouched(old, s *State) error {
	for _, h := range s.shards {
		if old.Shard(h.ID) == h {
			continue
		}
		if err := checkShard(h); err != nil {
			return err
		}
		if err := checkPlace(old, s, h); err != nil {
			return err
		}
	}
	for _, c := range s.collections {
		if old.Collection(c.ID) == c {
			continue
		}
		if err := checkCollection(c); err != nil {
			return err
		}
	}
	for _, t := range s.tables {
		was := old.table(t.collection)
		if was == t {
			continue
		}
		if err := checkTable(s, t, was); err != nil {
			return err
		}
	}
	return checkLists(old, s)
}

// checkLists checks the entries of the small lists that old does not have.
func checkLists(old, s *State) error {
	if err := checkNew(old.records, s.records, checkRecord, func(a, b Record) bool {
		return a.Kind == b.Kind && a.ID == b.ID && bytes.Equal(a.Body, b.Body)
	}); err != nil {
		return err
	}
	if err := checkNew(old.tokens, s.tokens, checkToken, func(a, b Token) bool {
		return a.App == b.App && a.Batch == b.Batch
	}); err != nil {
		return err
	}
	if err := checkNew(old.jobs, s.jobs, checkJob, func(a, b Job) bool { return a.ID == b.ID }); err != nil {
		return err
	}
	return checkNew(old.pins, s.pins, checkPin, func(a, b Pin) bool { return a.ID == b.ID })
}

func checkPin(p Pin) error {
	if p.ID == ([16]byte{}) || len(p.Name) > nameMax || p.Version == 0 {
		return invalid("check pin", p.Name, "it needs an id, a version, and a name of at most %d bytes", nameMax)
	}
	return nil
}

// checkNew checks the entries of a list from the first on that differs from old's.
func checkNew[T any](old, now []T, check func(T) error, same func(a, b T) bool) error {
	if len(old) == len(now) && (len(now) == 0 || &old[0] == &now[0]) {
		return nil
	}
	for i, v := range now {
		if i < len(old) && same(old[i], v) {
			continue
		}
		if err := check(v); err != nil {
			return err
		}
	}
	return nil
}

func sortedStrictly[T any](list []T, compare func(a, b T) int) bool {
	for i := 1; i < len(list); i++ {
		if compare(list[i-1], list[i]) >= 0 {
			return false
		}
	}
	return true
}

// show writes a bound for people: hex, or -inf for the open end below.
func show(key []byte) string {
	if len(key) == 0 {
		return "-inf"
	}
	return fmt.Sprintf("%x", key)
}
