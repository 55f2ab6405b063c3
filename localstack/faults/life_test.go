package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	limit = 3 * time.Second // maxTimeMS of every operation
	slack = time.Second     // within which its answer must be there after that
	docs  = 12
)

// absent is the state of a document that is not there.
const absent = -1

// life is a cluster, and its one client with its account.
type life struct {
	t      *testing.T
	mem    *membucket.Bucket
	fault  *faultbucket.Bucket
	store  bucket.Bucket     // before the faults, as a process has it
	stack  *localstack.Stack // nil: it does not run
	states map[int32][]int32 // of each document: what it may be
	txn    int64
	failed int // operations that ended in an error
}

func newLife(t *testing.T) *life {
	l := &life{t: t, mem: membucket.New(), states: map[int32][]int32{}}
	for i := range int32(docs) {
		l.states[i] = []int32{absent}
	}
	l.fault = faultbucket.New(l.mem, host.System(), nil)
	l.store = layer.Retry(layer.Deadline(l.fault, host.System(), time.Second), host.System(), nil)
	t.Cleanup(func() { l.kill(); _ = l.fault.Close() })
	return l
}

// start opens the stack, if it can.
func (l *life) start() {
	l.t.Helper()
	if l.stack != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	start := time.Now()
	stack, err := localstack.Open(ctx, l.store, host.System(), localstack.Options{Shards: 2, Lease: time.Second, CollectEvery: 2 * time.Second, NoBalancer: true, HistoryEvery: -1})
	if d := time.Since(start); d > 20*time.Second+slack {
		l.t.Errorf("a start took %v", d)
	}
	if err == nil {
		l.stack = stack
	}
}

// kill is kill -9.
func (l *life) kill() {
	if l.stack != nil {
		l.stack.Writer.Abandon()
		_ = l.stack.Close(context.Background())
		l.stack = nil
	}
}

// stop is SIGTERM.
func (l *life) stop() {
	if l.stack == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = l.stack.Close(ctx)
	l.stack = nil
}

// do runs a command, in time. Errors: an error of the command, which must have a name.
func (l *life) do(db string, cmd bson.D) (bson.Raw, error) {
	l.t.Helper()
	if l.stack == nil {
		return nil, errors.New("no process runs")
	}
	l.txn++
	cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: limit.Milliseconds()}, bson.E{Key: "$db", Value: db})
	raw, err := bson.Marshal(cmd)
	if err != nil {
		l.t.Fatal(err)
	}
	start := time.Now()
	reply := l.stack.Commands.Do(context.Background(), raw)
	if d := time.Since(start); d > limit+slack {
		l.t.Errorf("%v took %v", cmd[0], d)
	}
	err = nil
	if ok, _ := reply.Lookup("ok").AsInt64OK(); ok != 1 {
		err = l.named(reply)
	} else if list, isList := reply.Lookup("writeErrors").ArrayOK(); isList {
		first := list.Index(0).Document()
		if code, _ := first.Lookup("code").AsInt64OK(); code != 11000 {
			err = fmt.Errorf("write error %v", first)
		}
	}
	if err != nil {
		l.failed++
	}
	return reply, err
}

// named is the error of a reply, which must say more than that something went wrong.
func (l *life) named(reply bson.Raw) error {
	name, _ := reply.Lookup("codeName").StringValueOK()
	text, _ := reply.Lookup("errmsg").StringValueOK()
	if name == "" || name == "InternalError" || name == "UnknownError" || text == "" {
		l.t.Errorf("an error without a name: %v", reply)
	}
	return fmt.Errorf("%s: %s", name, text)
}

// put inserts a document, or sets its v.
func (l *life) put(id, v int32) {
	l.t.Helper()
	insert := bson.D{{Key: "insert", Value: "docs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}}}}}
	reply, err := l.do("db", insert)
	taken := err == nil && reply.Lookup("writeErrors").Type != 0
	switch {
	case err != nil:
		l.may(id, v, func(was int32) bool { return was == absent })
		return
	case !taken:
		l.must(id, v, func(was int32) bool { return was == absent })
		return
	}
	l.is(id, func(s int32) bool { return s != absent }, "a duplicate")
	set := bson.D{{Key: "update", Value: "docs"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}}},
	}}}}
	reply, err = l.do("db", set)
	if err != nil {
		l.may(id, v, func(was int32) bool { return was != absent })
		return
	}
	if n, _ := reply.Lookup("n").AsInt64OK(); n == 0 {
		l.is(id, func(s int32) bool { return s == absent }, "an update without a match")
		return
	}
	l.must(id, v, func(was int32) bool { return was != absent })
}

func (l *life) remove(id int32) {
	l.t.Helper()
	reply, err := l.do("db", bson.D{{Key: "delete", Value: "docs"}, {Key: "deletes", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "limit", Value: 1},
	}}}})
	if err != nil {
		l.may(id, absent, func(int32) bool { return true })
		return
	}
	if n, _ := reply.Lookup("n").AsInt64OK(); n == 1 {
		l.is(id, func(s int32) bool { return s != absent }, "a delete with a match")
	}
	l.states[id] = []int32{absent}
}

// may adds what a write whose outcome is not known can have made of each state that it
// applies to.
func (l *life) may(id, v int32, applies func(int32) bool) {
	if slices.ContainsFunc(l.states[id], applies) && !slices.Contains(l.states[id], v) {
		l.states[id] = append(l.states[id], v)
	}
}

// must says that a write was applied.
func (l *life) must(id, v int32, applies func(int32) bool) {
	l.t.Helper()
	l.is(id, applies, "a write that was applied")
	l.states[id] = []int32{v}
}

// is drops the states that an answer rules out.
func (l *life) is(id int32, holds func(int32) bool, what string) {
	l.t.Helper()
	before := l.states[id]
	l.states[id] = slices.DeleteFunc(slices.Clone(before), func(s int32) bool { return !holds(s) })
	if len(l.states[id]) == 0 {
		l.t.Errorf("document %d: %s, it could only be %v", id, what, before)
		l.states[id] = before
	}
}

// read looks at every document. An error is an answer too, unless it must not be.
func (l *life) read(mustWork bool) {
	l.t.Helper()
	for id := range int32(docs) {
		reply, err := l.do("db", bson.D{{Key: "find", Value: "docs"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}}})
		if err != nil {
			if mustWork {
				l.t.Errorf("document %d cannot be read: %v", id, err)
			}
			continue
		}
		got := int32(absent)
		batch, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
		if len(batch) > 0 {
			got = int32(batch[0].Document().Lookup("v").AsInt64())
		}
		l.is(id, func(s int32) bool { return s == got }, fmt.Sprintf("read as %d", got))
	}
}

// recover ends all faults and looks, with a new process, whether all is well.
func (l *life) recover() {
	l.t.Helper()
	l.fault.SetPlan(nil)
	l.kill()
	l.start()
	if l.stack == nil {
		l.t.Fatal("no start although the faults are over")
	}
	l.read(true)
	time.Sleep(2 * time.Minute) // what is late has come by now
	l.read(true)
	for id := range int32(docs) {
		l.put(id, 1000+id)
	}
	l.read(true)
	l.stop()
	h := host.System()
	root := manifest.NewRoot(bucket.NewCell(l.mem), h, nil)
	c := &fsck.Checker{Root: root, Bucket: l.mem, Deep: true, Open: func(manifest.LocationID) (bucket.Bucket, error) { return l.mem, nil }}
	report, err := c.Run(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	for _, p := range report.Problems {
		l.t.Errorf("fsck: %v", p)
	}
}

// The parts of a life.

func (l *life) writeSome(round int32) {
	for id := range int32(docs) {
		l.put(id, 100*round+id)
	}
	l.remove(round % docs)
	l.remove((round + 5) % docs)
}

func (l *life) shardIt() {
	_, _ = l.do("admin", bson.D{
		{Key: "shardCollection", Value: "db.docs"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: int32(docs / 2)}}}},
	})
}

func (l *life) flush() {
	for _, id := range l.shards() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_, _ = l.stack.Writer.Flush(ctx, &rpc.FlushRequest{Header: rpc.Header{Shard: id}})
		cancel()
	}
}

func (l *life) shards() (ids []manifest.ShardID) {
	if l.stack == nil {
		return nil
	}
	for _, s := range l.stack.Root.State().Shards() {
		ids = append(ids, s.ID)
	}
	return ids
}

// move gives the first chunk to the other shard.
func (l *life) move() {
	if l.stack == nil {
		return
	}
	st := l.stack.Root.State()
	coll := st.CollectionByName("db", "docs")
	if coll == nil {
		return
	}
	chunk := st.ChunkOf(coll.ID, []byte{1})
	for _, s := range st.Shards() {
		if s.ID != chunk.Shard {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			_, _ = l.stack.Writer.Move(ctx, &rpc.MoveRequest{
				Header: rpc.Header{Shard: chunk.Shard, Collection: coll.ID, RootVersion: st.Version()}, Chunks: []manifest.ChunkAt{chunk.At()}, To: s.ID,
			})
			cancel()
			return
		}
	}
}

// whole is the life of a cluster, from its first start on.
func (l *life) whole() {
	l.start()
	l.shardIt()
	l.writeSome(1)
	l.flush()
	l.read(false)
	l.move()
	l.writeSome(2)
	l.kill() // a takeover follows
	l.start()
	l.read(false)
	l.writeSome(3)
	l.flush()
	time.Sleep(5 * time.Second) // sweeps
	l.stop()
	l.start()
	l.read(false)
	l.writeSome(4)
}
