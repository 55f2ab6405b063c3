package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// What the floor covers goes, but for the last object of an older epoch: it may be a seal.
func TestWALGarbageSparesSeals(t *testing.T) {
	t.Parallel()
	key := func(e manifest.Epoch, n uint64) string { return manifest.WALKey("a", e, n) }
	listed := []string{key(1, 0), key(1, 1), key(1, 2), key(2, 0), key(3, 4), key(3, 5), "wal/a/x", "wal/b/00000000000000000001/00000000000000000000", key(5, 0), key(5, 1), key(5, 2)}
	for _, x := range []struct {
		floor manifest.Position
		next  string
		want  []string
	}{
		{manifest.Position{}, "", nil},
		{manifest.Position{Epoch: 1, Next: 2}, "", []string{key(1, 0), key(1, 1)}},
		{manifest.Position{Epoch: 1, Next: 3}, "", []string{key(1, 0), key(1, 1), key(1, 2)}},
		{manifest.Position{Epoch: 3, Next: 5}, "", []string{key(1, 0), key(1, 1), key(3, 4)}},
		{manifest.Position{Epoch: 5, Next: 1}, "", []string{key(1, 0), key(1, 1), key(3, 4), key(5, 0)}},
		{manifest.Position{Epoch: 6}, "", []string{key(1, 0), key(1, 1), key(3, 4), key(5, 0), key(5, 1)}},
		{manifest.Position{Epoch: 6}, key(5, 3), []string{key(1, 0), key(1, 1), key(3, 4), key(5, 0), key(5, 1), key(5, 2)}},
		{manifest.Position{Epoch: 6}, key(6, 0), []string{key(1, 0), key(1, 1), key(3, 4), key(5, 0), key(5, 1)}},
	} {
		diff(t, WALGarbage("a", x.floor, listed, x.next), x.want)
	}
}

// A PUT that was on its way through takeover, flush and collection finds the seal in its
// place, and nothing of it is ever seen.
func TestLatePutFindsTheSealAfterCollection(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		for i := range 1100 {
			if i < 5 {
				c.insert(fmt.Sprintf("{_id: %d}", i))
			}
		}
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "wal/", Fault: faultbucket.Fault{Kind: faultbucket.Late, Delay: time.Minute}}))
		c.sid = 2
		late := c.op(insertOp("{_id: 77}"))
		sent := make(chan error, 1)
		go func() {
			_, err := c.send(t.Context(), late)
			sent <- err
		}()
		time.Sleep(time.Millisecond)
		p.run()
		p.Abandon()
		wantKind(t, <-sent, errkind.UnknownOutcome)
		q := w.process("q").holds("a")
		q.flushAll("a")
		n, err := q.CollectWAL(t.Context())
		check(t, err)
		diff(t, n, 5)
		n, err = q.CollectWAL(t.Context())
		check(t, err)
		diff(t, n, 0)
		c.sid = 3
		c.insert("{_id: 5}")
		time.Sleep(2 * time.Minute)
		page, _, err := w.mem.List(t.Context(), "wal/a/", "", 0)
		check(t, err)
		var keys []string
		for _, o := range page {
			keys = append(keys, o.Key)
		}
		diff(t, keys, []string{manifest.WALKey("a", 1, 5), manifest.WALKey("a", 2, 0)})
		c.want("{_id: 0}", "{_id: 1}", "{_id: 2}", "{_id: 3}", "{_id: 4}", "{_id: 5}")
		diff(t, c.do(late).N, int64(1)) // it was never done
	})
}

// Collection goes through many pages, and stops with an error at a failing store.
func TestCollectionOfALongWAL(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		for e := range manifest.Epoch(3) {
			for n := range uint64(900) {
				_, err := w.mem.Put(t.Context(), manifest.WALKey("a", e+1, n), []byte("x"), noCondition)
				check(t, err)
			}
		}
		n, err := CollectWAL(t.Context(), w.mem, "a", manifest.Position{Epoch: 3, Next: 100})
		check(t, err)
		diff(t, n, 899+899+100)
		p := w.process("p")
		p.fault.SetPlan(func(faultbucket.Call) faultbucket.Fault { return faultbucket.Fault{Kind: faultbucket.Before} })
		if _, err := CollectWAL(t.Context(), p.fault, "a", manifest.Position{Epoch: 4}); err == nil {
			t.Error("a list that failed was taken for an empty one")
		}
		if _, err := p.CollectWAL(t.Context()); err == nil {
			t.Error("collected without a root")
		}
	})
}
