package sim

import (
	"sync"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// movingCollection has documents whose shard key k changes all the time, so that they go from
// chunk to chunk and from shard to shard. None is ever inserted again or deleted: whoever
// counts or reads all of them finds each once.
const movingCollection = "moving"

// moving is what is known about the moving documents. Those of the first half are changed
// one at a time, each change counted in n; those of the second half by writes of many, one
// after another, counted in m. So both counts are exact.
type moving struct {
	mu       sync.Mutex
	ready    bool // all are inserted
	many     bool // a write of many is under way
	started  []int
	acked    []int
	returned []map[int64]bool // the values of n that clients were told
}

// singles is how many are changed one at a time.
func (c *Config) singles() int { return (c.Moving + 1) / 2 }

// createByK is the change that makes a collection with the shard key k: chunks of ten keys each.
func (w *World) createByK(id [16]byte, name string, indexes ...manifest.Index) (manifest.Change, error) {
	key, err := shardkey.ParsePattern(mustMarshal(bson.D{{Key: "k", Value: 1}}))
	if err != nil {
		return nil, err
	}
	low := manifest.Bound{BSON: key.MinBSON()}
	var chunks []manifest.NewChunk
	for i := range w.cfg.Chunks + 1 {
		high := manifest.Bound{BSON: key.MaxBSON()}
		if i < w.cfg.Chunks {
			if high.Key, high.BSON, err = key.Bound(mustMarshal(bson.D{{Key: "k", Value: int32(10 * (i + 1))}})); err != nil {
				return nil, err
			}
		}
		chunks = append(chunks, manifest.NewChunk{Min: low, Max: high, Shard: w.shards[i%len(w.shards)]})
		low = high
	}
	c := manifest.Collection{UUID: id, Database: "sim", Name: name, Key: key, Sharded: true, Indexes: indexes, Zones: w.resident(chunks)}
	return manifest.CreateCollection{Collection: c, Chunks: chunks}, nil
}

func mustMarshal(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// insertMoving inserts the moving documents: the first client's first task.
func (c *client) insertMoving() {
	var docs bson.A
	for i := range c.world.cfg.Moving {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: int32(c.rng.IntN(10 * c.world.cfg.Chunks))}, {Key: "many", Value: i >= c.world.cfg.singles()}})
	}
	reply := c.untilKnown(bson.D{{Key: "insert", Value: movingCollection}, {Key: "documents", Value: docs}})
	if reply == nil {
		return
	}
	if n := number(reply, "n"); n != int64(len(docs)) {
		c.world.fail("moving: %d of %d inserted: %v", n, len(docs), reply)
	}
	m := &c.world.moving
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = true
}

// send sends a command of this client's session; txn 0: none that is sent again.
func (c *client) send(cmd bson.D, txn int64) (bson.Raw, error) {
	cmd = append(cmd[:len(cmd):len(cmd)], bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: c.session[:]}}}})
	if txn > 0 {
		cmd = append(cmd, bson.E{Key: "txnNumber", Value: txn})
	}
	cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: c.world.cfg.Patience.Milliseconds()}, bson.E{Key: "$db", Value: "sim"})
	return c.world.ask(c, mustMarshal(cmd))
}

// untilKnown sends one write until an answer says what became of it; nil when the busy time
// is over.
func (c *client) untilKnown(cmd bson.D) bson.Raw {
	c.txn++
	for txn := c.txn; ; {
		reply, err := c.send(cmd, txn)
		if err == nil && number(reply, "ok") == 1 {
			return reply
		}
		c.world.log(c.node).Debug("asked", "client", c.id, "op", cmd[0].Key, "reply", reply, "err", err)
		c.router = 1 - c.router
		if c.node.Host().Sleep(c.node.Context(), 50*time.Millisecond) != nil || c.world.quiet() {
			return nil
		}
	}
}

// changesMax bounds the key changes of a run: each is a segment that every later read of its
// chunks looks into, since nobody compacts here.
const changesMax = 60

// moveOne does something with the moving documents.
func (c *client) moveOne() {
	m := &c.world.moving
	m.mu.Lock()
	ready, many, sum := m.ready, m.many, 0
	for _, n := range m.started {
		sum += n
	}
	m.mu.Unlock()
	switch n := c.rng.IntN(10); {
	case !ready || sum >= changesMax:
	case n < 5:
		c.rekey(c.rng.IntN(c.world.cfg.singles()))
	case n < 6 && !many:
		c.rekeyMany()
	case n < 8:
		c.countMoving()
	default:
		c.scanMoving(c.rng.IntN(3))
	}
}

// rekey gives one document another key.
func (c *client) rekey(doc int) {
	w := c.world
	k := int32(c.rng.IntN(10 * (w.cfg.Chunks + 1)))
	q, u := bson.D{{Key: "_id", Value: doc}}, bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: k}}}, {Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	cmd := bson.D{{Key: "findAndModify", Value: movingCollection}, {Key: "query", Value: q}, {Key: "update", Value: u}, {Key: "new", Value: true}}
	if c.rng.IntN(2) == 0 {
		one := bson.D{{Key: "q", Value: q}, {Key: "u", Value: u}}
		cmd = bson.D{{Key: "update", Value: movingCollection}, {Key: "updates", Value: bson.A{one}}}
	}
	w.moving.mu.Lock()
	w.moving.started[doc]++
	w.moving.mu.Unlock()
	reply := c.untilKnown(cmd)
	if reply == nil {
		return
	}
	w.moving.mu.Lock()
	defer w.moving.mu.Unlock()
	w.moving.acked[doc]++
	if cmd[0].Key == "update" {
		if code, failed := writeError(reply); failed || number(reply, "n") != 1 || number(reply, "nModified") != 1 {
			w.fail("moving: update of document %d: code %d, %v", doc, code, reply)
		}
		return
	}
	d, told := reply.Lookup("value").DocumentOK()
	if !told && w.cfg.Located > 0 && number(reply, "lastErrorObject", "n") == 1 {
		return // what a document became in another location is not told where it was
	}
	n := number(d, "n")
	if n == 0 || w.moving.returned[doc][n] {
		w.fail("moving: document %d was changed to n %d, by two who were told so, or by none: %v", doc, n, reply)
	}
	w.moving.returned[doc][n] = true
}

// rekeyMany moves the documents of the second half, by a write of many: each once.
func (c *client) rekeyMany() {
	w := c.world
	w.moving.mu.Lock()
	if w.moving.many {
		w.moving.mu.Unlock()
		return
	}
	w.moving.many = true
	for doc := w.cfg.singles(); doc < w.cfg.Moving; doc++ {
		w.moving.started[doc]++
	}
	w.moving.mu.Unlock()
	by := int32(10*c.rng.IntN(3) - 10)
	one := bson.D{
		{Key: "q", Value: bson.D{{Key: "many", Value: true}}}, {Key: "multi", Value: true},
		{Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "k", Value: by}, {Key: "n", Value: 1}}}}},
	}
	reply, err := c.send(bson.D{{Key: "update", Value: movingCollection}, {Key: "updates", Value: bson.A{one}}}, 0)
	if err != nil || number(reply, "ok") != 1 {
		return // and nobody else may: this one may still go on
	}
	if code, failed := writeError(reply); failed || number(reply, "n") != int64(w.cfg.Moving-w.cfg.singles()) {
		w.fail("moving: a write of many: code %d, %v", code, reply)
	}
	w.moving.mu.Lock()
	defer w.moving.mu.Unlock()
	w.moving.many = false
	for doc := w.cfg.singles(); doc < w.cfg.Moving; doc++ {
		w.moving.acked[doc]++
	}
}

// countMoving counts the moving documents, or looks for one.
func (c *client) countMoving() {
	w := c.world
	if c.rng.IntN(2) == 0 {
		doc := c.rng.IntN(w.cfg.Moving)
		reply, err := c.send(bson.D{{Key: "find", Value: movingCollection}, {Key: "filter", Value: bson.D{{Key: "_id", Value: doc}}}}, 0)
		if err != nil || number(reply, "ok") != 1 {
			return
		}
		if docs := batch(reply, "firstBatch"); len(docs) != 1 {
			w.fail("moving: document %d is there %d times: %v", doc, len(docs), docs)
		}
		return
	}
	reply, err := c.send(bson.D{{Key: "count", Value: movingCollection}}, 0)
	if err == nil && number(reply, "ok") == 1 && number(reply, "n") != int64(w.cfg.Moving) {
		w.fail("moving: count %d, want %d", number(reply, "n"), w.cfg.Moving)
	}
}

// scanMoving reads all, in several batches.
func (c *client) scanMoving(order int) []bson.Raw {
	w := c.world
	cmd := bson.D{{Key: "find", Value: movingCollection}, {Key: "batchSize", Value: 2}}
	if order > 0 {
		cmd = append(cmd, bson.E{Key: "sort", Value: bson.D{{Key: "k", Value: 2*order - 3}}})
	}
	docs, ok := c.all(cmd)
	if !ok {
		return nil
	}
	seen := map[int64]int{}
	for _, d := range docs {
		seen[number(d, "_id")]++
	}
	if len(docs) != w.cfg.Moving || len(seen) != w.cfg.Moving {
		w.fail("moving: a scan in order %d finds %d rows of %d documents, want %d: %v", order, len(docs), len(seen), w.cfg.Moving, docs)
	}
	return docs
}

// all reads to the end what a find finds. A read that fails says nothing.
func (c *client) all(find bson.D) (docs []bson.Raw, ok bool) {
	reply, err := c.send(find, 0)
	if err != nil || number(reply, "ok") != 1 {
		return nil, false
	}
	docs = batch(reply, "firstBatch")
	for id, _ := reply.Lookup("cursor", "id").Int64OK(); id != 0; id, _ = reply.Lookup("cursor", "id").Int64OK() {
		more := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: find[0].Value}, {Key: "batchSize", Value: 2}}
		cmd := append(more, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: c.session[:]}}}}, bson.E{Key: "$db", Value: "sim"})
		if reply, err = c.world.ask(c, mustMarshal(cmd)); err != nil || number(reply, "ok") != 1 {
			return nil, false
		}
		docs = append(docs, batch(reply, "nextBatch")...)
	}
	return docs, true
}

// batch are the documents of a find's answer.
func batch(reply bson.Raw, field string) (docs []bson.Raw) {
	list, ok := reply.Lookup("cursor", field).ArrayOK()
	if !ok {
		return nil
	}
	values, _ := list.Values()
	for _, v := range values {
		if d, ok := v.DocumentOK(); ok {
			docs = append(docs, d)
		}
	}
	return docs
}

// settleMoving reads the moving documents after the last fault: each was changed at least as
// often as clients were told, and at most as often as they tried.
func (w *World) settleMoving(reader *client, deadline time.Duration) {
	w.moving.mu.Lock()
	ready := w.moving.ready
	w.moving.mu.Unlock()
	for ready && w.failed() == nil {
		docs := reader.scanMoving(0)
		for _, d := range docs {
			id, n := number(d, "_id"), int(number(d, "n"))
			if acked, started := w.moving.acked[id], w.moving.started[id]; n < acked || n > started {
				w.fail("moving: document %d was changed %d times, of %d that are known and %d that were tried: %v", id, n, acked, started, d)
			}
		}
		if docs != nil {
			return
		}
		if w.bus.Elapsed() > deadline {
			w.fail("no progress: the moving documents cannot be read %s after the last fault", w.cfg.Quiet)
			return
		}
		_ = w.bus.Step(w.chaos, "adopt", w.adopt)
		_ = w.chaos.Host().Sleep(w.ctx, time.Second)
	}
}

// expect makes room for what becomes known of so many documents.
func (m *moving) expect(docs int) {
	m.started, m.acked = make([]int, docs), make([]int, docs)
	for range docs {
		m.returned = append(m.returned, map[int64]bool{})
	}
}
