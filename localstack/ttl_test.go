package localstack_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var ttlDocs = flag.Int("ttl.docs", 6000, "documents that expire")

// written counts the bytes of what is put.
type written struct {
	bucket.Bucket
	segments, all *atomic.Int64
}

func (w written) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	w.all.Add(int64(len(body)))
	if strings.HasPrefix(key, "seg/") {
		w.segments.Add(int64(len(body)))
	}
	return w.Bucket.Put(ctx, key, body, c)
}

// hour inserts documents for an hour of virtual time, and waits until an hour after the last.
// They live for ten minutes when they expire; each minute the count is right, to the second.
// It returns what was written.
func hour(t *testing.T, expires bool) (segments, all int64) {
	b := written{Bucket: membucket.New(), segments: new(atomic.Int64), all: new(atomic.Int64)}
	s := open(t, b, localstack.Options{Shards: 2})
	defer s.Close(context.Background())
	index := bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at_1"}}
	if expires {
		index = append(index, bson.E{Key: "expireAfterSeconds", Value: 600})
	}
	do(t, s, "shop", bson.D{{Key: "createIndexes", Value: "orders"}, {Key: "indexes", Value: bson.A{index}}})
	noise := rand.NewChaCha8([32]byte{1})
	var dates []time.Time
	check := func() {
		t.Helper()
		want := int64(len(dates))
		if expires {
			want = 0
			for _, at := range dates {
				if time.Now().Before(at.Add(10 * time.Minute)) {
					want++
				}
			}
		}
		if n := count(t, s); n != want {
			t.Fatalf("%v: %d documents, want %d of %d", time.Now(), n, want, len(dates))
		}
	}
	const batch = 500
	for minute := range 60 {
		for n := *ttlDocs / 60; n > 0; n -= batch {
			var docs bson.A
			for i := range min(n, batch) {
				at := time.Now().Add(time.Duration(i*int(time.Minute)/batch) * 2 / 3).Truncate(time.Millisecond)
				dates = append(dates, at)
				pad := make([]byte, min(1000, max(100, 20_000_000 / *ttlDocs)))
				_, _ = noise.Read(pad)
				docs = append(docs, bson.D{{Key: "_id", Value: len(dates)}, {Key: "at", Value: at}, {Key: "pad", Value: pad}})
			}
			do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
		}
		time.Sleep(time.Duration(59+minute%3) * time.Second)
		check()
	}
	for range 60 {
		time.Sleep(61 * time.Second)
		check()
	}
	found, _, err := b.List(t.Context(), "seg/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	for _, o := range found {
		left += o.Size
	}
	t.Logf("%d segments of %d bytes are left of %d documents, expires: %t", len(found), left, len(dates), expires)
	// Of the rows nothing is left. Retry ids are, for as long as clocks may be apart (two days):
	// segments that have nothing else are merged, and hold some bytes for each insert.
	if expires && (len(found) > 5 || left > 64<<10*int64(len(found))+16*int64(len(dates))) {
		t.Errorf("%d segments of %d bytes are left of %d documents", len(found), left, len(dates))
	}
	checker := &fsck.Checker{Root: s.Root, Bucket: b, Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil }, Deep: true}
	if r, err := checker.Run(t.Context()); err != nil || len(r.Problems) > 0 {
		t.Errorf("fsck: %+v, %v", r, err)
	}
	return b.segments.Load(), b.all.Load()
}

// None of the documents that expire is counted a second late, all their segments are gone in
// the end, and that costs next to nothing to write: the same without expiry writes as much.
func TestExpiryWritesNextToNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		segments, all := hour(t, true)
		plainSegments, plain := hour(t, false)
		if segments > plainSegments*101/100 {
			t.Errorf("%d bytes of segments with expiry, %d without", segments, plainSegments)
		}
		amplification := float64(all-plain) / float64(plainSegments)
		t.Logf("%d documents: %d bytes written with expiry, %d without, of that %d of segments: amplification %.3f", *ttlDocs, all, plain, plainSegments, amplification)
		if amplification > 0.1 {
			t.Errorf("expiry writes %.3f times the documents", amplification)
		}
	})
}

// The same few keys are inserted again and again as they expire, while references leave and
// segments are deleted under them: no key is seen or in the way after its second, none comes
// back, and chunks count right, also where references show newer versions of rows that left.
func TestKeysAreUsedAgainAsTheyExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 1})
		defer s.Close(context.Background())
		do(t, s, "shop", bson.D{{Key: "createIndexes", Value: "orders"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: 60}}}}})
		rng := rand.New(rand.NewPCG(3, 4))
		until := make(map[int]time.Time)
		live := func() (n int64) {
			for _, at := range until {
				if time.Now().Before(at) {
					n++
				}
			}
			return n
		}
		for range 600 {
			id := rng.IntN(60)
			at := time.Now().Add(time.Duration(rng.IntN(400)) * time.Second).Truncate(time.Millisecond)
			reply := do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "at", Value: at}}}}})
			n, _ := reply.Lookup("n").AsInt64OK()
			if free := !time.Now().Before(until[id]); (n == 1) != free {
				t.Fatalf("%v: insert of %d: %v, the key is free: %v", time.Now(), id, reply, free)
			}
			if n == 1 {
				until[id] = at.Add(time.Minute)
			}
			time.Sleep(time.Duration(rng.IntN(30_000)) * time.Millisecond)
			if got, want := count(t, s), live(); got != want {
				t.Fatalf("%v: count %d, want %d", time.Now(), got, want)
			}
			n, _ = do(t, s, "shop", bson.D{{Key: "count", Value: "orders"}, {Key: "query", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 0}}}}}}).Lookup("n").AsInt64OK()
			if want := live(); n != want {
				t.Fatalf("%v: %d found, want %d", time.Now(), n, want)
			}
		}
		if left := refs(s); left > 150 {
			t.Errorf("%d references are left of 600 inserts", left)
		}
		checker := &fsck.Checker{Root: s.Root, Bucket: b, Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil }, Deep: true}
		if r, err := checker.Run(t.Context()); err != nil || len(r.Problems) > 0 {
			t.Errorf("fsck: %+v, %v", r, err)
		}
	})
}

func refs(s *localstack.Stack) (n int) {
	for c := range s.Root.State().AllChunks() {
		n += len(c.Refs)
	}
	return n
}
