package writer

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// chunk is what the owner knows of one of its chunks, as long as it keeps its id, version
// and owner: a split, a merge or a move makes other chunks of it.
//
// Owned by: the shard's mutex.
type chunk struct {
	info *manifest.Chunk // the newest seen
	mem  *memtable       // durable rows, newer than frozen
	// frozen holds the rows that a flush is taking to segments; nil: none.
	frozen *memtable
	// seq is the last one given.
	seq     manifest.Seq
	retries retries
	heat    *heat // nil: cold
	// held is closed to reads and writes while the chunk is given away, or the outcome of
	// that is not known; nil: open.
	held *gate
	// last is the end of the log as of the newest record that is, or may become, the chunk's.
	last manifest.Position
	// tied is the end of the log as of the newest record of the chunk that is one half of a
	// change; see ties.go.
	tied manifest.Position
	// paused is closed to them while a hold of a range in the root touches the chunk; nil: open.
	paused *gate
	// aging: it is in the shard's list of those.
	aging bool
	// gone: the root shows that this is no chunk of this shard any more.
	gone bool
}

// gate keeps reads and writes of the chunk waiting; nil: none does. Requires: the mutex.
func (c *chunk) gate() *gate {
	if c.held != nil {
		return c.held
	}
	return c.paused
}

func newChunk(info *manifest.Chunk) *chunk {
	return &chunk{info: info, mem: new(memtable), seq: info.MaxSeq}
}

// compareChunks orders chunks as segments hold them.
func compareChunks(a, b *chunk) int {
	return cmp.Or(cmp.Compare(a.info.Collection, b.info.Collection), bytes.Compare(a.info.Range.Min, b.info.Range.Min))
}

// owned is the chunk of this shard that contains the key, or nil. Requires: the mutex.
func (s *shard) owned(c manifest.CollectionID, key []byte) *chunk {
	info := s.state.ChunkOf(c, key)
	if info == nil || info.Shard != s.id {
		return nil
	}
	return s.chunks[info.ID]
}

// eachOwned calls f for the chunks of this shard that have a part of r. Requires: the mutex.
func (s *shard) eachOwned(c manifest.CollectionID, r shardkey.Range, f func(*chunk)) {
	for info := range s.state.ChunksIn(c, r) {
		if own := s.chunks[info.ID]; own != nil && info.Shard == s.id {
			f(own)
		}
	}
}

// ordered are the stirred chunks as segments hold them. Requires: the mutex.
func (s *shard) ordered() []*chunk {
	list := make([]*chunk, 0, len(s.stirred))
	for _, c := range s.stirred {
		list = append(list, c)
	}
	slices.SortFunc(list, compareChunks)
	return list
}

// floor is the chunk's effective floor: at or below it everything is in segments.
func (s *shard) floor(c *chunk) manifest.Position {
	return manifest.MaxPosition(c.info.OwnFloor, s.rootFloor)
}

// target finds the chunk that a request names; nil when it is another one by now. Requires:
// the mutex.
func (s *shard) target(collection manifest.CollectionID, t *rpc.Target) *chunk {
	if broken(staleAccepted) {
		return s.owned(collection, t.Min)
	}
	c := s.chunks[t.ID]
	if c == nil || c.info.Version != t.Version || c.info.Collection != collection {
		return nil
	}
	return c
}

// view is what reads see of the chunk now: durable rows only. Requires: the mutex.
func (c *chunk) view() reader.View {
	v := reader.View{Chunk: c.info}
	for _, m := range []*memtable{c.mem, c.frozen} {
		if m.len() > 0 {
			v.Mems = append(v.Mems, m.snapshot())
		}
	}
	return v
}

// pendingView is what operations see of the chunk now: also the rows of batches that are
// not stored yet, of which last is the newest (nil: none). Requires: the mutex.
func (s *shard) pendingView(c *chunk) (v reader.View, last *batch) {
	v = c.view()
	v.Moment = s.moment(c.info.Collection)
	for _, b := range []*batch{s.flight, s.open} {
		if b == nil || len(b.rows) == 0 {
			continue
		}
		m := new(memtable)
		for _, r := range b.rows {
			if r.chunk == c || r.chunk.gone && r.collection() == c.info.Collection && c.info.Range.Contains(r.key()) {
				// A copy: what put notes in a row is for the memtable that it will be in.
				seen := *r.row
				seen.at = &stamp{}
				m.put(&seen)
			}
		}
		if m.len() > 0 {
			v.Mems = append([]reader.Mem{m.snapshot()}, v.Mems...)
			last = b
		}
	}
	return v, last
}

// mayHold reports whether a segment of the chunk can have a row with this key.
func mayHold(c *manifest.Chunk, key []byte) bool {
	for i := range c.Refs {
		ref := &c.Refs[i]
		if bytes.Compare(ref.MinKey, key) <= 0 && bytes.Compare(key, ref.MaxKey) <= 0 && ref.Clip.Contains(key) {
			return true
		}
	}
	return false
}

// someKey is a key inside r: a place for what belongs to the range as a whole.
func someKey(r shardkey.Range) []byte {
	if len(r.Min) > 0 {
		return r.Min
	}
	return []byte{0} // below every key, for keys begin with the class of a value
}
