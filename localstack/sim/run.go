package sim

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/localstack/history"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Result is one run.
type Result struct {
	Steps, Trace uint64
	Ops, Unknown int
	Roots        int
	Events       map[string]int
	Log          []string // with Config.KeepLog
	// Err is nil, or what was wrong: a broken invariant, a history that is not
	// linearizable, no progress in the quiet time.
	Err error
}

// String is one line for people.
func (r Result) String() string {
	return fmt.Sprintf("%d steps, trace %016x, %d operations (%d unknown), %d roots; %s", r.Steps, r.Trace, r.Ops, r.Unknown, r.Roots, summary(r.Events))
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }

// Run simulates one cluster from a configuration. Call it inside a synctest bubble; it
// returns when nothing it started is left running.
func Run(cfg Config, logs *slog.Logger) Result {
	w, err := newWorld(cfg, logs)
	if err != nil {
		return Result{Err: err}
	}
	var scheduler sync.WaitGroup
	scheduler.Add(1)
	go func() { defer scheduler.Done(); w.bus.Run(w.ctx) }()
	w.live()
	err = w.failed()
	if err == nil {
		err = w.judge()
	}
	w.end()
	scheduler.Wait()
	w.didAll("moved elsewhere", int64(w.checker.copied))
	r := Result{Events: w.events, Roots: w.checker.roots, Log: w.bus.Log(), Err: err}
	r.Steps, r.Trace = w.bus.Trace()
	r.Ops, r.Unknown = w.history.Len()
	return r
}

// live is the busy time and the quiet time.
func (w *World) live() {
	_ = w.bus.Step(w.chaos, "begin", func() {
		for i, s := range w.writers {
			p := w.startWriter(s)
			for k := i; k < w.cfg.Shards; k += len(w.writers) {
				p.hold(manifest.ShardID(fmt.Sprintf("shard%02d", k+1)))
			}
		}
		for _, s := range w.routers {
			w.startRouter(s)
		}
		for _, s := range w.balancers {
			w.startBalancer(s)
		}
	})
	var clients, chaos sync.WaitGroup
	w.startChaos(&chaos)
	for i := range w.cfg.Clients {
		c := newClient(w, i)
		clients.Add(1)
		go func() { defer clients.Done(); c.run() }()
	}
	_ = w.chaos.Host().Sleep(w.ctx, w.cfg.Busy)
	w.calmDown()
	clients.Wait()
	chaos.Wait()
	w.settle()
}

// settle is the quiet time: someone must take every shard, and every document must be
// readable. The reads join the history, so that a lost write shows.
func (w *World) settle() {
	deadline := w.bus.Elapsed() + w.cfg.Quiet
	reader := newClient(w, w.cfg.Clients)
	for doc := range w.cfg.Docs {
		for w.failed() == nil {
			_ = w.bus.Step(w.chaos, "adopt", w.adopt)
			_, unknown := w.history.Len()
			reader.one([]history.Input{{Kind: history.Read, Doc: doc}})
			if _, after := w.history.Len(); after == unknown {
				break
			}
			if w.bus.Elapsed() > deadline {
				w.fail("no progress: document %d cannot be read %s after the last fault", doc, w.cfg.Quiet)
				return
			}
			_ = w.chaos.Host().Sleep(w.ctx, time.Second)
		}
	}
	w.settleMoving(reader, deadline)
	w.settleDated(reader, deadline)
	w.settlePlacement()
}

// judge checks what is left: the store, and the history.
func (w *World) judge() error {
	p := placesOf(w.inner, w.chaos.Host())
	c := &fsck.Checker{Root: p.Root(), Bucket: w.inner, Deep: true, Open: p.Open}
	report, err := c.Run(context.Background())
	if err != nil {
		return err
	}
	if len(report.Problems) > 0 {
		return fmt.Errorf("fsck: %d problems, the first: %+v", len(report.Problems), report.Problems[0])
	}
	logged, err := w.logged()
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return w.history.Check(logged, 20*time.Second)
}

// end kills everything and waits for it.
func (w *World) end() {
	var all []*process
	for _, s := range w.slots() {
		all = append(all, s.current())
	}
	for _, p := range all {
		p.crash()
	}
	w.stop()
	for _, p := range all {
		p.done.Wait()
	}
	w.aside.Wait() // before what it may have begun
	w.store.late.Wait()
	w.net.flying.Wait()
}

// create makes the cluster and its collections, cut into chunks.
func (w *World) create() error {
	ctx := context.Background()
	h := NewNode(w.ctx, w.bus, "init", w.cfg.Seed, 0, 0).Host()
	cell := bucket.NewCell(w.inner)
	own := len(w.shards) - w.cfg.Located
	if _, err := manifest.Create(ctx, cell, h, manifest.InitOptions{Shards: w.shards[:own]}); err != nil {
		return err
	}
	p := placesOf(w.inner, h)
	root := p.Root()
	if _, _, err := root.Load(ctx); err != nil {
		return err
	}
	if err := w.createLocated(p, h, w.shards[own:]); err != nil {
		return err
	}
	spec, err := bson.Marshal(bson.D{{Key: "_id", Value: 1}})
	if err != nil {
		return err
	}
	key, err := shardkey.ParsePattern(spec)
	if err != nil {
		return err
	}
	chunks, err := w.cut(key)
	if err != nil {
		return err
	}
	changes := []manifest.Change{manifest.CreateCollection{
		Collection: manifest.Collection{UUID: h.ID16(), Database: "sim", Name: collection, Key: key, Sharded: true, Options: manifest.WithChunkSize(nil, w.cfg.ChunkSize), Zones: w.resident(chunks)}, Chunks: chunks,
	}}
	if w.cfg.Moving > 0 {
		c, err := w.createByK(h.ID16(), movingCollection)
		if err != nil {
			return err
		}
		changes = append(changes, c)
	}
	if w.cfg.Mix.Dated > 0 {
		c, err := w.createDated(h.ID16())
		if err != nil {
			return err
		}
		changes = append(changes, c)
	}
	state, err := root.Commit(ctx, manifest.Edit{Op: h.ID16(), Changes: changes})
	if err != nil {
		return err
	}
	w.checker.state = state
	return nil
}

// cut spreads the documents evenly over the chunks, and the chunks over the shards.
func (w *World) cut(key shardkey.Pattern) ([]manifest.NewChunk, error) {
	low := manifest.Bound{BSON: key.MinBSON()}
	var chunks []manifest.NewChunk
	for i := range w.cfg.Chunks {
		high := manifest.Bound{BSON: key.MaxBSON()}
		if i+1 < w.cfg.Chunks {
			doc, err := bson.Marshal(bson.D{{Key: "_id", Value: docID((i + 1) * w.cfg.Docs / w.cfg.Chunks)}})
			if err != nil {
				return nil, err
			}
			if high.Key, high.BSON, err = key.Bound(doc); err != nil {
				return nil, err
			}
			if string(high.Key) == string(low.Key) {
				continue
			}
		}
		chunks = append(chunks, manifest.NewChunk{Min: low, Max: high, Shard: w.shards[i%len(w.shards)]})
		low = high
	}
	return chunks, nil
}
