package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var cluster = manifest.ClusterID{0xC1}

const (
	shard = manifest.ShardID("shard01")
	epoch = manifest.Epoch(3)
)

// lockedRand is seeded randomness for concurrent use.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lockedRand) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Uint64()
}

func testHost(seed uint64) host.Host {
	return host.Host{Clock: host.System().Clock, Rand: &lockedRand{r: rand.New(rand.NewPCG(seed, 1))}}
}

func doc(id int, text string) bson.Raw {
	i, b := bsoncore.AppendDocumentStart(nil)
	b = bsoncore.AppendInt64Element(b, "_id", int64(id))
	b = bsoncore.AppendStringElement(b, "v", text)
	b, _ = bsoncore.AppendDocumentEnd(b, i)
	return b
}

// samples is one record of every shape.
func samples() []Record {
	key := func(n int) []byte { return fmt.Appendf(nil, "k%04d", n) }
	op := segment.OpID{Session: [32]byte{1, 31: 9}, Txn: 7, Stmt: 2, Attempt: 1}
	return []Record{
		{Collection: 5, Key: key(1), Op: Insert, Seq: 11, Doc: doc(1, "one")},
		{Collection: 5, Key: key(2), Op: Replace, Seq: 1 << 40, Doc: doc(2, "two"), Retry: &segment.RetryEntry{Collection: 5, Key: key(2), Op: op, Reply: []byte("reply"), ExpiresAt: 99}},
		{Collection: 6, Key: key(3), Op: Delete, Seq: 1, Retry: &segment.RetryEntry{Collection: 6, Key: key(4), Op: op, ExpiresAt: 1 << 40}},
		{Collection: 1<<32 - 1, Op: RetryOnly, Retry: &segment.RetryEntry{Collection: 1<<32 - 1, Key: key(5), Op: op, Reply: bytes.Repeat([]byte{7}, 300)}},
	}
}

func batchOf(t testing.TB, records ...Record) *Batch {
	t.Helper()
	b := &Batch{}
	for _, r := range records {
		check(t, b.Add(r))
	}
	return b
}

// insert is a batch of one record whose seq tells it apart.
func insert(t testing.TB, seq int) *Batch {
	t.Helper()
	return batchOf(t, Record{Collection: 1, Key: []byte("k"), Op: Insert, Seq: manifest.Seq(seq), Doc: doc(seq, "v")})
}

func newLog(b bucket.Bucket, h host.Host, next uint64) *Log {
	return NewLog(b, h, cluster, shard, epoch, next)
}

func seal(ctx context.Context, b bucket.Bucket, h host.Host, from uint64) (uint64, error) {
	end, _, err := Seal(ctx, b, h, cluster, shard, epoch, from, epoch+1)
	return end, err
}

// seqs replays [from, end) and returns the seq of every record.
func seqs(t testing.TB, b bucket.Bucket, from, end uint64) []int {
	t.Helper()
	var got []int
	check(t, Replay(t.Context(), b, cluster, shard, epoch, from, end, func(pos manifest.Position, r Record) error {
		if want := (manifest.Position{Epoch: epoch, Next: from + uint64(len(got)) + 1}); pos != want {
			t.Errorf("record %d is at %v, want %v", r.Seq, pos, want)
		}
		got = append(got, int(r.Seq))
		return nil
	}))
	return got
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
}

func diff(t testing.TB, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("-want +got:\n%s", d)
	}
}

// What was appended comes back, record by record, in order; one append is one PUT.
func TestAppendedRecordsReplayInOrder(t *testing.T) {
	t.Parallel()
	mem := membucket.New()
	m := layer.Metrics(mem)
	l := newLog(m, testHost(1), 0)
	want := samples()
	for i, r := range want {
		res, err := l.Append(t.Context(), batchOf(t, r))
		check(t, err)
		diff(t, res.Position, manifest.Position{Epoch: epoch, Next: uint64(i) + 1})
		diff(t, res.Position, l.Position())
	}
	diff(t, m.Snapshot().String(), "put wal=4")
	var got []Record
	check(t, Replay(t.Context(), mem, cluster, shard, epoch, 0, uint64(len(want)), func(_ manifest.Position, r Record) error {
		got = append(got, r)
		return nil
	}))
	if d := cmp.Diff(want, got, emptyIsNil); d != "" {
		t.Fatal(d)
	}
	check(t, l.Err())
}

// A batch that is refused by its own rules leaves everything as it was.
func TestBatchRefusesWhatIsNotWellFormed(t *testing.T) {
	t.Parallel()
	retry := &segment.RetryEntry{Collection: 1, Key: []byte("k")}
	good := Record{Collection: 1, Key: []byte("k"), Op: Insert, Doc: doc(1, "x")}
	for name, spoil := range map[string]func(r *Record){
		"no collection":     func(r *Record) { r.Collection = 0 },
		"no key":            func(r *Record) { r.Key = nil },
		"long key":          func(r *Record) { r.Key = make([]byte, segment.MaxKeyBytes+1) },
		"unknown operation": func(r *Record) { r.Op = 4 },
		"no document":       func(r *Record) { r.Doc = nil },
		"half a document":   func(r *Record) { r.Doc = r.Doc[:len(r.Doc)-1] },
		"delete with one":   func(r *Record) { r.Op = Delete },
		"nothing at all":    func(r *Record) { *r = Record{Collection: 1, Op: RetryOnly} },
		"retry elsewhere":   func(r *Record) { e := *retry; e.Collection = 2; r.Retry = &e },
		"retry without key": func(r *Record) { e := *retry; e.Key = nil; r.Retry = &e },
		"long reply":        func(r *Record) { e := *retry; e.Reply = make([]byte, segment.MaxDocBytes+1); r.Retry = &e },
	} {
		b := batchOf(t, good)
		size := b.Size()
		r := good
		spoil(&r)
		if err := b.Add(r); !errors.Is(err, errkind.Invalid) || b.Len() != 1 || b.Size() != size {
			t.Errorf("%s: %v, then %d records", name, err, b.Len())
		}
	}
}

// A payload is bounded, and holds at least one record at all its limits.
func TestBatchIsBounded(t *testing.T) {
	t.Parallel()
	big := bson.Raw(bytes.Repeat([]byte{0xFF}, segment.MaxDocBytes))
	copy(big, []byte{0, 0x40, 0, 1})
	big[len(big)-1] = 0
	full := Record{
		Collection: 1, Key: bytes.Repeat([]byte{1}, segment.MaxKeyBytes), Op: Replace, Doc: big,
		Retry: &segment.RetryEntry{Collection: 1, Key: bytes.Repeat([]byte{2}, segment.MaxKeyBytes), Reply: big},
	}
	b := batchOf(t, full)
	wantKind(t, b.Add(full), errkind.Invalid)
	diff(t, b.Len(), 1)
	mem := membucket.New()
	l := newLog(mem, testHost(1), 0)
	_, err := l.Append(t.Context(), b)
	check(t, err)
	diff(t, len(seqs(t, mem, 0, 1)), 1)
	b.Reset()
	diff(t, b.Len()+b.Size()+cap(b.buf)+cap(l.buf), 0)
	_, err = l.Append(t.Context(), b)
	wantKind(t, err, errkind.Invalid)
	check(t, l.Err())
}

// A missing object, a seal or a foreign object inside the range is Corrupt, never the end.
func TestReplayFailsClosed(t *testing.T) {
	t.Parallel()
	mem := membucket.New()
	l := newLog(mem, testHost(1), 0)
	for i := range 12 {
		_, err := l.Append(t.Context(), insert(t, i))
		check(t, err)
	}
	replay := func(b bucket.Bucket, p place, from, end uint64) error {
		return Replay(t.Context(), b, p.cluster, p.shard, p.epoch, from, end, func(manifest.Position, Record) error { return nil })
	}
	here := place{cluster, shard, epoch}
	wantKind(t, replay(mem, here, 0, 13), errkind.Corrupt)
	_, err := seal(t.Context(), mem, testHost(2), 0)
	check(t, err)
	err = replay(mem, here, 5, 13)
	wantKind(t, err, errkind.Corrupt)
	if !strings.Contains(err.Error(), here.key(12)) {
		t.Errorf("%v does not name the object", err)
	}
	wantKind(t, replay(mem, place{manifest.ClusterID{2}, shard, epoch}, 0, 1), errkind.Corrupt)
	for _, elsewhere := range []struct {
		place
		index uint64
	}{{place{cluster, "shard02", epoch}, 3}, {place{cluster, shard, epoch + 1}, 3}, {here, 99}} {
		o, err := mem.Get(t.Context(), here.key(3), bucket.GetOptions{})
		check(t, err)
		_, err = mem.Put(t.Context(), elsewhere.key(elsewhere.index), o.Body, bucket.IfAbsent)
		check(t, err)
		wantKind(t, replay(mem, elsewhere.place, elsewhere.index, elsewhere.index+1), errkind.Corrupt)
	}
	check(t, replay(mem, here, 5, 5))
	check(t, replay(mem, here, 9, 5))
}

// Replay keeps a bounded number of reads in flight, stops at fn's error, and leaves none
// behind.
func TestReplayIsBounded(t *testing.T) {
	t.Parallel()
	mem := membucket.New()
	l := newLog(mem, testHost(1), 0)
	for i := range 40 {
		_, err := l.Append(t.Context(), insert(t, i))
		check(t, err)
	}
	c := &counting{Bucket: mem}
	stop := errors.New("stop")
	err := Replay(t.Context(), c, cluster, shard, epoch, 0, 40, func(_ manifest.Position, r Record) error {
		if r.Seq == 20 {
			return stop
		}
		time.Sleep(time.Millisecond)
		return nil
	})
	wantKind(t, err, stop)
	if c.most > fanOut || c.gets > 21+fanOut {
		t.Errorf("%d reads at once, %d in all", c.most, c.gets)
	}
}

// counting counts Gets.
type counting struct {
	bucket.Bucket
	mu              sync.Mutex
	now, most, gets int
}

func (c *counting) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	c.mu.Lock()
	c.gets++
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.now--
		c.mu.Unlock()
	}()
	return c.Bucket.Get(ctx, key, o)
}

// Two Appends at once are a bug in the caller, and say so.
func TestConcurrentAppendPanics(t *testing.T) {
	t.Parallel()
	l := newLog(membucket.New(), testHost(1), 0)
	l.busy.Store(true)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, _ = l.Append(t.Context(), insert(t, 1))
}
