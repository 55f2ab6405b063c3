package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/compactor/expire"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// datedCollection has documents with dates, by which they expire, and loses ranges of its
// shard key k by dropRange. Documents are inserted once and never changed, so of each it is
// known when it must be seen and when it must not, as far as clocks agree.
const datedCollection = "dated"

// expireAfter is how long after its date a document expires.
const expireAfter = 5 * time.Second

// datedMax bounds the documents of a run.
const datedMax = 80

// dated is what is known about the documents with dates, and the drops. Events are in the order
// of a counter: under virtual time many share one instant.
type dated struct {
	mu    sync.Mutex
	clock int
	docs  []datedDoc // by _id
	drops []dropped
}

// span is when something was asked for and when it was known to be done (0: it never was).
type span struct{ call, ack int }

type datedDoc struct {
	span
	k   int
	due time.Duration // when it expires by a right clock, since the run began
}

// dropped is one dropRange of the keys from low to before high.
type dropped struct {
	span
	low, high int
}

func (d dropped) covers(x datedDoc) bool { return d.low <= x.k && x.k < d.high }

// dates: in every third seed some operations are on documents with dates.
func (c *Config) dates(r *rand.Rand) {
	if r.IntN(3) > 0 {
		return
	}
	c.Mix.Dated, c.Chaos.Expire = oneOf(r, 10, 30), oneOf(r, time.Second, 5*time.Second)
}

// createDated is the change that makes the collection.
func (w *World) createDated(id [16]byte) (manifest.Change, error) {
	spec := mustMarshal(bson.D{
		{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at_1"},
		{Key: expiry.Field, Value: int32(expireAfter / time.Second)},
	})
	return w.createByK(id, datedCollection, manifest.Index{Name: "at_1", Spec: spec})
}

func (d *dated) tick() int { d.clock++; return d.clock }

// dateOne does something with the documents with dates.
func (c *client) dateOne() {
	switch n := c.rng.IntN(20); {
	case n < 9:
		c.insertDated()
	case n < 11:
		c.dropDated()
	case n < 13:
		c.countDated()
	default:
		low, high := c.someKeys()
		c.readDated(low, high)
	}
}

// keysDated are the values that k can have.
func (c *Config) keysDated() int { return 10 * (c.Chunks + 1) }

// someKeys draws a range of the shard key.
func (c *client) someKeys() (low, high int) {
	all := c.world.cfg.keysDated()
	low = c.rng.IntN(all)
	return low, low + 1 + c.rng.IntN(all-low)
}

// insertDated inserts up to three documents: some are expired by every clock, some expire while
// they are looked at, some are in force by every clock for as long as the run lasts.
func (c *client) insertDated() {
	w, d := c.world, &c.world.dated
	now := w.bus.Elapsed()
	d.mu.Lock()
	first, n := len(d.docs), 1+c.rng.IntN(3)
	if first+n > datedMax {
		d.mu.Unlock()
		return
	}
	call := d.tick()
	var docs bson.A
	for id := first; id < first+n; id++ {
		due := now + time.Duration(c.rng.Int64N(int64(10*time.Second)))
		switch c.rng.IntN(5) {
		case 0:
			due = now - w.cfg.SkewMax - expiry.Grace - time.Second
		case 1, 2, 3:
			due = now + w.cfg.SkewMax + time.Hour
		}
		due = due.Truncate(time.Millisecond)
		k := c.rng.IntN(w.cfg.keysDated())
		d.docs = append(d.docs, datedDoc{span: span{call: call}, k: k, due: due})
		at := bson.NewDateTimeFromTime(w.bus.start.Add(due - expireAfter))
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: int32(k)}, {Key: "at", Value: at}})
	}
	d.mu.Unlock()
	reply := c.untilKnown(bson.D{{Key: "insert", Value: datedCollection}, {Key: "documents", Value: docs}})
	if reply == nil {
		return
	}
	if number(reply, "n") != int64(n) {
		w.fail("dated: %d documents inserted: %v", n, reply)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ack := d.tick()
	for id := first; id < first+n; id++ {
		d.docs[id].ack = ack
	}
}

// dropDated drops a range. Without an answer it may happen, now or later, or not.
func (c *client) dropDated() {
	d := &c.world.dated
	low, high := c.someKeys()
	d.mu.Lock()
	n := len(d.drops)
	d.drops = append(d.drops, dropped{span: span{call: d.tick()}, low: low, high: high})
	d.mu.Unlock()
	bound := func(k int) bson.D { return bson.D{{Key: "k", Value: int32(k)}} }
	if c.tell(bson.D{{Key: "dropRange", Value: "sim." + datedCollection}, {Key: "min", Value: bound(low)}, {Key: "max", Value: bound(high)}}) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.drops[n].ack = d.tick()
	}
}

// looking is a read of documents with dates: when it was begun, by the counter and by a right
// clock.
type looking struct {
	low, high int
	call      int
	since     time.Duration
}

func (c *client) look(low, high int) looking {
	d := &c.world.dated
	d.mu.Lock()
	defer d.mu.Unlock()
	return looking{low: low, high: high, call: d.tick(), since: c.world.bus.Elapsed()}
}

// countDated counts a range, as a read that says less.
func (c *client) countDated() {
	low, high := c.someKeys()
	l := c.look(low, high)
	reply, err := c.send(bson.D{{Key: "count", Value: datedCollection}, {Key: "query", Value: keysFrom(low, high)}}, 0)
	if err != nil || number(reply, "ok") != 1 {
		return
	}
	least, most := 0, 0
	for _, f := range c.world.outlooks(l) {
		if f.must {
			least++
		}
		if !f.mustNot {
			most++
		}
	}
	if n := int(number(reply, "n")); n < least || n > most {
		c.world.fail("dated: count of keys %d to %d is %d, want %d to %d", low, high, n, least, most)
	}
}

func keysFrom(low, high int) bson.D {
	return bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: int32(low)}, {Key: "$lt", Value: int32(high)}}}}
}

// readDated reads a range, in several batches, and judges what it finds.
func (c *client) readDated(low, high int) (ok bool) {
	l := c.look(low, high)
	docs, ok := c.all(bson.D{{Key: "find", Value: datedCollection}, {Key: "filter", Value: keysFrom(low, high)}, {Key: "batchSize", Value: 3}})
	if !ok {
		return false
	}
	seen := map[int]int{}
	for _, d := range docs {
		seen[int(number(d, "_id"))]++
	}
	outlooks := c.world.outlooks(l)
	for id, f := range outlooks {
		switch n := seen[id]; {
		case n > 1:
			c.world.fail("dated: document %d is there %d times: %v", id, n, docs)
		case n == 1 && f.mustNot:
			c.world.fail("dated: document %d is seen by a read of %+v: %s", id, l, c.world.tale(id))
		case n == 0 && f.must:
			c.world.fail("dated: document %d is not seen by a read of %+v: %s", id, l, c.world.tale(id))
		}
		delete(seen, id)
	}
	if len(seen) > 0 {
		c.world.fail("dated: a read of %+v sees what nobody inserted there: %v", l, docs)
	}
	c.world.whole(l, outlooks, docs)
	return true
}

// outlook is what a read must find of a document in its range. by is the one drop that may have
// taken it, -1: none, or several, or something else may have.
type outlook struct {
	must, mustNot bool
	by            int
}

// outlooks are those of the documents in the range of a read that ends now.
func (w *World) outlooks(l looking) map[int]outlook {
	d, now := &w.dated, w.bus.Elapsed()
	d.mu.Lock()
	defer d.mu.Unlock()
	list := map[int]outlook{}
	for id, x := range d.docs {
		if x.k < l.low || l.high <= x.k {
			continue
		}
		inForce := x.ack > 0 && x.ack < l.call && x.due-w.cfg.SkewMax > now
		f := outlook{mustNot: x.due+w.cfg.SkewMax <= l.since, by: -1}
		killers := 0
		for i, drop := range d.drops {
			if !drop.covers(x) || drop.ack > 0 && drop.ack < x.call {
				continue
			}
			killers++
			after := x.ack > 0 && x.ack < drop.call
			f.mustNot = f.mustNot || after && drop.ack > 0 && drop.ack < l.call
			if f.by = -1; after && inForce {
				f.by = i
			}
		}
		f.must = inForce && killers == 0
		if killers != 1 {
			f.by = -1
		}
		list[id] = f
	}
	return list
}

// whole requires that a drop that is under way, or of which nothing is known, has taken all or
// nothing of what was there before.
func (w *World) whole(l looking, outlooks map[int]outlook, docs []bson.Raw) {
	left := map[int]bool{}
	for _, d := range docs {
		if by := outlooks[int(number(d, "_id"))].by; by >= 0 {
			left[by] = true
		}
	}
	for id, f := range outlooks {
		if f.by < 0 || !left[f.by] || slices.ContainsFunc(docs, func(d bson.Raw) bool { return int(number(d, "_id")) == id }) {
			continue
		}
		w.fail("dated: a read of %+v sees a range half dropped, without document %d: %s", l, id, w.tale(id))
	}
}

// tale is all that is known of a document.
func (w *World) tale(id int) string {
	d := &w.dated
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf("%+v", d.docs[id])
	for _, drop := range d.drops {
		if drop.covers(d.docs[id]) {
			text += fmt.Sprintf(", dropped %+v", drop)
		}
	}
	return fmt.Sprintf("%s; now %d, at %s", text, d.clock, w.bus.Elapsed())
}

// expire removes what has expired, in a process of its own, whose clock errs like any other's.
func (w *World) expire() {
	w.did("sweeper")
	name := fmt.Sprintf("expire.%d", w.events["sweeper"])
	offset, drift := w.skew(name)
	node := NewNode(w.ctx, w.bus, name, w.cfg.Seed, offset, drift)
	root := placesOf(w.store.For(node), node.Host()).Root()
	w.aside.Go(func() {
		if _, _, err := root.Load(node.Context()); err != nil {
			return
		}
		gone, _ := expire.Sweep(node.Context(), root, node.Host())
		w.didAll("expired", int64(gone))
	})
}

// settleDated reads the documents with dates after the last fault.
func (w *World) settleDated(reader *client, deadline time.Duration) {
	for w.cfg.Mix.Dated > 0 && w.failed() == nil && !reader.readDated(0, w.cfg.keysDated()) {
		if w.bus.Elapsed() > deadline {
			w.fail("no progress: the documents with dates cannot be read %s after the last fault", w.cfg.Quiet)
			return
		}
		_ = w.bus.Step(w.chaos, "adopt", w.adopt)
		_ = w.chaos.Host().Sleep(w.ctx, time.Second)
	}
}
