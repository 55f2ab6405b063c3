package writer

import (
	"context"
	"errors"
	"testing"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// inRoot counts the documents that the root alone shows: what a snapshot of it would.
func (w *world) inRoot(p *proc) (n int) {
	w.t.Helper()
	for c := range w.state().AllChunks() {
		it := p.store.Scan(context.Background(), reader.View{Chunk: c}, c.Range, false)
		for it.Next(context.Background()) {
			n++
		}
		check(w.t, it.Err())
		it.Rest()
	}
	return n
}

// TestARootShowsAKeyChangeAsAWhole: a document goes from one chunk of a shard to another, and one
// of the two is flushed by itself afterwards: because it moves, because a document of it is about
// to leave, after a takeover, after a cut. Whatever version of the root is looked at shows the
// document once.
func TestARootShowsAKeyChangeAsAWhole(t *testing.T) {
	t.Parallel()
	const before, after = "{_id: 1, k: 5}", "{_id: 1, k: 105}"
	for name, act := range map[string]func(w *world, p *proc, c *client) *proc{
		"the chunk that it left moves": func(w *world, p *proc, c *client) *proc {
			check(w.t, c.move(doc(before), "b"))
			return p
		},
		"the chunk that it came to moves": func(w *world, p *proc, c *client) *proc {
			check(w.t, c.move(doc(after), "b"))
			return p
		},
		"one chunk is flushed": func(w *world, p *proc, c *client) *proc {
			s := p.shard("a")
			check(w.t, s.do(w.t.Context(), func(ctx context.Context) error {
				return s.flushChunks(ctx, []*chunk{s.chunks[w.chunk(doc(after)).ID]})
			}))
			return p
		},
		"a takeover, and a move": func(w *world, p *proc, c *client) *proc {
			p.kill()
			p = w.process("q", longLease, quiet).holds("a", "b")
			check(w.t, c.move(doc(before), "b"))
			return p
		},
		"a cut, and a move of a part": func(w *world, p *proc, c *client) *proc {
			at := w.rowKey("{_id: 0, k: 50}")
			check(w.t, w.commit(manifest.Split{Chunk: w.chunk(doc(before)).At(), Points: []manifest.Bound{{Key: at, BSON: doc("{k: 50}")}}}))
			check(w.t, c.move(doc(before), "b"))
			return p
		},
		"a flush that a cut comes before": func(w *world, p *proc, c *client) *proc {
			s := p.shard("a")
			pos, parts, _ := s.freeze(nil)
			check(w.t, s.upload(w.t.Context(), parts))
			at := w.rowKey("{_id: 0, k: 50}")
			check(w.t, w.commit(manifest.Split{Chunk: w.chunk(doc(before)).At(), Points: []manifest.Bound{{Key: at, BSON: doc("{k: 50}")}}}))
			err := s.commitEdit(w.t.Context(), false, manifest.Flush{Shard: "a", Epoch: s.epoch, Snapshot: pos, Complete: true, Chunks: flushed(parts)})
			if !errors.Is(err, errkind.Conflict) {
				w.t.Errorf("a flush of half of a change: %v", err)
			}
			s.thaw(pos, parts)
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(t *testing.T, w *world) {
				w.t = t
				p := w.process("p", longLease, quiet).holds("a", "b")
				w.keyed("{k: 1}", "a,a,b", 100, 200)
				c := w.client()
				c.insert(before, "{_id: 2, k: 6}", "{_id: 3, k: 107}")
				p.flushAll("a")
				if res := c.do(w.rekeyOp(before, "{$set: {k: 105}}")); res.Err != nil || res.N != 1 {
					t.Fatalf("%+v", res)
				}
				p = act(w, p, c)
				if n := w.inRoot(p); n != 3 {
					t.Errorf("the root shows %d documents of 3", n)
				}
				p.flushAll("a")
				if n := w.inRoot(p); n != 3 {
					t.Errorf("after a flush the root shows %d documents of 3", n)
				}
				c.want("{_id: 2, k: 6}", after, "{_id: 3, k: 107}")
			})
		})
	}
}

// TestACutTearsNoKeyChange: both keys of a document that changed its key are in one chunk, which
// is cut between them before it is flushed. Whichever part moves, or is flushed by itself, the
// root shows the document once.
func TestACutTearsNoKeyChange(t *testing.T) {
	t.Parallel()
	const before, after = "{_id: 1, k: 5}", "{_id: 1, k: 60}"
	for name, moves := range map[string]string{"the part that it left moves": before, "the part that it came to moves": after} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(t *testing.T, w *world) {
				w.t = t
				p := w.process("p", longLease, quiet).holds("a", "b")
				w.keyed("{k: 1}", "a,b", 100)
				c := w.client()
				c.insert(before, "{_id: 2, k: 6}", "{_id: 3, k: 107}")
				p.flushAll("a", "b")
				if res := c.do(w.rekeyOp(before, "{$set: {k: 60}}")); res.Err != nil || res.N != 1 {
					t.Fatalf("%+v", res)
				}
				at := w.rowKey("{_id: 0, k: 50}")
				check(t, w.commit(manifest.Split{Chunk: w.chunk(doc(before)).At(), Points: []manifest.Bound{{Key: at, BSON: doc("{k: 50}")}}}))
				check(t, c.move(doc(moves), "b"))
				if n := w.inRoot(p); n != 3 {
					t.Errorf("the root shows %d documents of 3", n)
				}
				p.flushAll("a", "b")
				if n := w.inRoot(p); n != 3 {
					t.Errorf("after a flush the root shows %d documents of 3", n)
				}
				c.want("{_id: 2, k: 6}", after, "{_id: 3, k: 107}")
			})
		})
	}
}
