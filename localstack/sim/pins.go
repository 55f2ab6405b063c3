package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// pinFor bounds how long a pin is looked at.
const pinFor = 20 * time.Second

// pin makes a pin, as a backup does, in a process of its own. For as long as it stands, everything
// that it shows must be there.
func (w *World) pin(all *sync.WaitGroup) {
	w.did("pinner")
	node := NewNode(w.ctx, w.bus, fmt.Sprintf("pin.%d", w.events["pinner"]), w.cfg.Seed, 0, 0)
	life := time.Duration(w.rng.Int64N(int64(pinFor)))
	expires := w.rng.IntN(3) == 0
	all.Go(func() { w.keepPin(node, life, expires) })
}

func (w *World) keepPin(node *Node, life time.Duration, expires bool) {
	h, store := node.Host(), w.store.For(node)
	root := placesOf(store, h).Root()
	if _, _, err := root.Load(node.Context()); err != nil {
		return
	}
	var until int64
	if expires {
		until = h.Wall().Add(life).Unix()
	}
	pin, err := root.Pin(node.Context(), node.name, until, h.Wall().UnixMilli())
	if err != nil {
		return
	}
	w.did("pinned")
	for slept := time.Duration(0); slept < life && !w.quiet(); slept += time.Second {
		if h.Sleep(node.Context(), time.Second) != nil {
			return
		}
	}
	if expires {
		return // the collector gives it up
	}
	w.readPin(node.Context(), root, store, pin)
	for root.Unpin(node.Context(), pin.ID, h.Wall().UnixMilli()) != nil && h.Sleep(node.Context(), time.Second) == nil {
	}
}

// readPin requires that a pin that stands shows what it showed when it was made.
func (w *World) readPin(ctx context.Context, root *manifest.Root, store bucket.Bucket, pin manifest.Pin) {
	st, err := root.Pinned(ctx, pin.Version)
	if errors.Is(err, errkind.Corrupt) || errors.Is(err, errkind.SnapshotUnavailable) {
		w.fail("pin of version %d: %w", pin.Version, err)
	}
	if err != nil {
		return
	}
	for c := range st.AllChunks() {
		for i := range c.Refs {
			if _, err := at(store, c.Refs[i].Location).Head(ctx, c.Refs[i].Segment.Key()); errors.Is(err, errkind.NotFound) {
				w.fail("pin of version %d: segment %s of chunk %d: %w", pin.Version, c.Refs[i].Segment, c.ID, err)
			}
		}
	}
	w.movingOnce(ctx, st, store)
}

// movingOnce requires that a version of the root shows no moving document twice. That it shows all
// of them is not required: some may be in logs alone.
func (w *World) movingOnce(ctx context.Context, st *manifest.State, store bucket.Bucket) {
	coll := st.CollectionByName("sim", movingCollection)
	if coll == nil {
		return
	}
	segments := reader.NewStore(func(id manifest.LocationID) (bucket.Bucket, error) { return at(store, id), nil }, segment.NewCache(1<<20))
	seen := map[string]manifest.ChunkID{}
	for c := range st.Chunks(coll.ID) {
		it := segments.Scan(ctx, reader.View{Chunk: c}, shardkey.Range{}, false)
		for it.Next(ctx) {
			id := it.Row().Doc.Lookup("_id").String()
			if other, twice := seen[id]; twice {
				w.fail("version %d of the root, which is pinned, shows document %s in chunks %d and %d", st.Version(), id, other, c.ID)
			}
			seen[id] = c.ID
		}
		if it.Err() != nil {
			return // the store is as bad as for others
		}
	}
}

// pauseCollector may stop a collector that was just started, somewhere in its work.
func (w *World) pauseCollector(n *Node) {
	r := rand.New(rand.NewPCG(w.cfg.Seed, hashString("pause "+n.name)))
	if r.IntN(1000) >= w.cfg.Chaos.PauseCollector {
		return
	}
	after := time.Duration(r.Int64N(int64(2 * sweepAgain)))
	w.aside.Go(func() {
		if w.chaos.Host().Sleep(n.Context(), after) == nil && !w.quiet() {
			w.did("paused collector")
			w.pause(n, time.Duration(r.Int64N(int64(w.cfg.Chaos.PauseMax))))
		}
	})
}

// kept are the versions of the root that pins keep, by pin.
type kept map[[16]byte]*manifest.State

// follow learns of the pins of a new root: a pin keeps the version that its commit made.
func (k kept) follow(now *manifest.State) {
	stands := map[[16]byte]bool{}
	for _, p := range now.Pins() {
		stands[p.ID] = true
		if _, known := k[p.ID]; !known && p.Version == now.Version() {
			k[p.ID] = now
		}
	}
	for id := range k {
		if !stands[id] {
			delete(k, id)
		}
	}
}

// deleted judges a deletion before it happens; it runs inside a step. Nobody may take away what
// the root or a pin refers to, or a part of a log that is not in segments.
func (w *World) deleted(key string) {
	now := w.checker.state
	id, key := placeOf(key)
	if shard, epoch, index, err := manifest.ParseWALKey(key); err == nil {
		w.did("deleted log object")
		if h := now.Shard(shard); h != nil && !h.Floor.Covers(epoch, index) {
			w.fail("%s is deleted, which the floor %v does not cover", key, h.Floor)
		}
		return
	}
	if strings.HasPrefix(key, manifest.PagePrefix) {
		w.pageDeleted(id, key)
		return
	}
	if !strings.HasPrefix(key, "seg/") {
		return
	}
	w.did("deleted segment")
	if c := refersTo(now, key); c != nil {
		w.fail("%s is deleted, to which chunk %d refers", key, c.ID)
	}
	for _, st := range w.checker.pins {
		if c := refersTo(st, key); c != nil {
			w.fail("%s is deleted, to which chunk %d refers in version %d, which is pinned", key, c.ID, st.Version())
		}
	}
}

// refersTo is a chunk that refers to a segment; nil: none does.
func refersTo(st *manifest.State, key string) *manifest.Chunk {
	for c := range st.AllChunks() {
		for i := range c.Refs {
			if c.Refs[i].Segment.Key() == key {
				return c
			}
		}
	}
	return nil
}
