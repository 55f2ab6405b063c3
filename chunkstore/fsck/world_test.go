package fsck

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster of real writers in a bubble of virtual time: shards a and b, and db.c
// with the key {k: 1}, whose chunks 1 [, "h") and 2 ["h", "p") are a's, 3 ["p", ) is b's.
type world struct {
	t     testing.TB
	mem   *membucket.Bucket
	host  host.Host
	seen  *manifest.Root
	procs []*proc
	txn   int64
}

type proc struct {
	*writer.Writer
	stop context.CancelFunc
	done chan struct{}
}

const keyField = "k"

// inWorld runs f on a cluster that has documents in segments, others in the log only, and
// whose only writer has crashed:
//
//	segment 1   chunks 1 and 2   a..d, i..l     log of a   epoch 1, 3 objects above the floor
//	segment 2   chunk 3          p..s           log of b   epoch 1, 1 object above the floor
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, mem: membucket.New(), host: manifesttest.Host(3)}
		_, err := manifest.Create(t.Context(), bucket.NewCell(w.mem), w.host, manifest.InitOptions{Shards: []manifest.ShardID{"a", "b"}})
		w.must(err)
		w.seen = manifest.NewRoot(bucket.NewCell(w.mem), w.host, nil)
		defer w.crash()
		low, h, p, high := bound("", false), bound("h", false), bound("p", false), bound("", true)
		w.commit(manifest.CreateCollection{
			Collection: manifest.Collection{UUID: w.host.ID16(), Database: "db", Name: "c", Key: pattern, Sharded: true},
			Chunks:     []manifest.NewChunk{{Min: low, Max: h, Shard: "a"}, {Min: h, Max: p, Shard: "a"}, {Min: p, Max: high, Shard: "b"}},
		})
		one := w.process("one", "a", "b")
		w.insert("a", "b", "c", "d", "i", "j", "k", "l", "p", "q", "r", "s")
		for _, shard := range []manifest.ShardID{"a", "b"} {
			_, err := one.Flush(t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: shard}})
			w.must(err)
		}
		w.insert("e", "f", "m", "t")
		w.crash()
		f(t, w)
	})
}

var pattern = shardkey.Pattern{Fields: []shardkey.Field{{Path: keyField}}}

func doc(key string) bson.Raw {
	d, err := bson.Marshal(bson.D{{Key: "_id", Value: key}, {Key: keyField, Value: key}, {Key: "pad", Value: "some bytes"}})
	if err != nil {
		panic(err)
	}
	return d
}

// rowKey is where a document goes.
func rowKey(key string) []byte {
	k, err := pattern.AppendKey(nil, doc(key))
	if err != nil {
		panic(err)
	}
	return k
}

func bound(key string, above bool) manifest.Bound {
	if key == "" && above {
		return manifest.Bound{BSON: pattern.MaxBSON()}
	}
	if key == "" {
		return manifest.Bound{BSON: pattern.MinBSON()}
	}
	d, _ := bson.Marshal(bson.D{{Key: keyField, Value: key}})
	k, full, err := pattern.Bound(d)
	if err != nil {
		panic(err)
	}
	return manifest.Bound{Key: k, BSON: full}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) state() *manifest.State {
	w.t.Helper()
	s, _, err := w.seen.Load(context.Background())
	w.must(err)
	return s
}

func (w *world) commit(changes ...manifest.Change) {
	w.t.Helper()
	_, err := w.seen.Commit(context.Background(), manifest.Edit{Op: w.host.ID16(), Changes: changes, Millis: w.host.Wall().UnixMilli()})
	w.must(err)
}

// process starts a writer that holds shards.
func (w *world) process(name string, shards ...manifest.ShardID) *proc {
	w.t.Helper()
	root := manifest.NewRoot(bucket.NewCell(w.mem), w.host, nil)
	_, _, err := root.Load(context.Background())
	w.must(err)
	store := reader.NewStore(w.open, segment.NewCache(1<<20))
	background, stop := context.WithCancel(context.Background())
	p := &proc{stop: stop, done: make(chan struct{})}
	p.Writer = writer.New(writer.Config{
		Root: root, Bucket: w.mem, Store: store, Host: w.host, Holder: name, Dial: rpc.NewLocal(nil),
		Settings: writer.Settings{Lease: 100 * time.Millisecond, IdleFlush: time.Hour, RootPoll: time.Hour},
	})
	go func() { defer close(p.done); _ = p.Run(background) }()
	w.procs = append(w.procs, p)
	for _, s := range shards {
		w.must(p.Hold(context.Background(), s))
	}
	return p
}

func (w *world) open(manifest.LocationID) (bucket.Bucket, error) { return w.mem, nil }

// crash ends all processes without a flush.
func (w *world) crash() {
	for _, p := range w.procs {
		p.stop()
		p.Abandon()
		<-p.done
	}
	w.procs = nil
}

// insert has the newest process store a document for each key.
func (w *world) insert(keys ...string) {
	w.t.Helper()
	for _, key := range keys {
		s := w.state()
		c := s.ChunkOf(1, rowKey(key))
		w.txn++
		reply, err := w.procs[len(w.procs)-1].Write(context.Background(), &rpc.WriteRequest{
			Header:  rpc.Header{Shard: c.Shard, Collection: 1, RootVersion: s.Version(), Deadline: 10 * time.Second},
			Targets: []rpc.Target{{ID: c.ID, Version: c.Version, Min: c.Range.Min}},
			Ops:     []rpc.WriteOp{{Kind: rpc.Insert, Doc: doc(key), Op: rpc.OpID{Session: [32]byte{1}, Txn: w.txn}}},
		})
		w.must(err)
		if r := reply.Results[0]; r.Err != nil || r.N != 1 {
			w.t.Fatalf("insert %s: %+v", key, r)
		}
	}
}

// fsck checks the cluster, through b when it is not nil.
func (w *world) fsck(deep bool, b bucket.Bucket) (*Report, error) {
	if b == nil {
		b = w.mem
	}
	c := &Checker{
		Root: manifest.NewRoot(bucket.NewCell(b), w.host, nil), Bucket: b, Deep: deep,
		Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil },
	}
	return c.Run(context.Background())
}

// chunk is a chunk by its id, as the root has it.
func (w *world) chunk(id manifest.ChunkID) *manifest.Chunk {
	w.t.Helper()
	for c := range w.state().AllChunks() {
		if c.ID == id {
			return c
		}
	}
	w.t.Fatalf("no chunk %d", id)
	return nil
}

// seg is the key of the first segment of a chunk.
func (w *world) seg(id manifest.ChunkID) string { return w.chunk(id).Refs[0].Segment.Key() }

// log is the key of a shard's n-th log object above the floor, in epoch 1.
func (w *world) log(shard manifest.ShardID, n uint64) string {
	return manifest.WALKey(shard, 1, w.state().Shard(shard).Floor.Next+n)
}

func (w *world) get(key string) []byte {
	w.t.Helper()
	o, err := w.mem.Get(context.Background(), key, bucket.GetOptions{})
	w.must(err)
	return o.Body
}

func (w *world) put(key string, body []byte) {
	w.t.Helper()
	_, err := w.mem.Put(context.Background(), key, body, bucket.Condition{})
	w.must(err)
}

func (w *world) remove(key string) { w.t.Helper(); w.must(w.mem.Delete(context.Background(), key)) }

// collect deletes each log below its floor, in the floor's own epoch: what the collector
// surely deletes.
func (w *world) collect() {
	w.t.Helper()
	for _, s := range w.state().Shards() {
		for i := range s.Floor.Next {
			w.remove(manifest.WALKey(s.ID, s.Floor.Epoch, i))
		}
	}
}

// append adds a batch of one record to a shard's log, whoever may do so.
func (w *world) append(shard manifest.ShardID, epoch manifest.Epoch, index uint64) string {
	w.t.Helper()
	var b wal.Batch
	w.must(b.Add(wal.Record{Collection: 1, Key: rowKey("g"), Op: wal.Insert, Seq: 99, Doc: doc("g")}))
	_, err := wal.NewLog(w.mem, w.host, w.state().ClusterID(), shard, epoch, index).Append(context.Background(), &b)
	w.must(err)
	return manifest.WALKey(shard, epoch, index)
}

// row is a row of chunk 1 that a holder of shard a could have flushed.
type row struct {
	key []byte
	doc bson.Raw
}

// flush commits a segment with rows to chunk 1; change, when not nil, spoils its reference.
func (w *world) flush(rows []row, delta int64, change func(*manifest.SegmentRef)) string {
	w.t.Helper()
	c, shard := w.chunk(1), w.state().Shard("a")
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: shard.Epoch}, Random: w.host.ID16()}
	sw := segment.NewWriter(id, nil)
	for i, r := range rows {
		w.must(sw.Add(segment.Row{Collection: 1, Key: r.key, Seq: c.MaxSeq + manifest.Seq(i) + 1, Doc: r.doc}))
	}
	w.must(sw.Cut(segment.Part{Collection: 1, Clip: c.Range}))
	body, _, err := sw.Finish()
	w.must(err)
	w.put(id.Key(), body)
	ref := sw.Refs()[0]
	if change != nil {
		change(&ref)
	}
	above := manifest.Position{Epoch: shard.Epoch, Next: shard.Floor.Next + 1}
	w.commit(manifest.Flush{Shard: "a", Epoch: shard.Epoch, Snapshot: above, Chunks: []manifest.FlushedChunk{{
		At: c.At(), Added: manifest.Added{Refs: []manifest.SegmentRef{ref}, RowsDelta: delta},
	}}})
	return id.Key()
}

// good are rows for keys, as they should be.
func good(keys ...string) (rows []row) {
	for _, k := range keys {
		rows = append(rows, row{rowKey(k), doc(k)})
	}
	return rows
}

func flip(body []byte, at int) []byte {
	b := bytes.Clone(body)
	b[at] ^= 1
	return b
}

// text is a problem in one line, without its detail.
func text(p Problem) string { return fmt.Sprintf("%s | %s | %.12s", p.Rule, p.Object, p.Chunk) }

type bucketOf = bucket.Bucket

func (w *world) cell() *bucket.Cell { return bucket.NewCell(w.mem) }
