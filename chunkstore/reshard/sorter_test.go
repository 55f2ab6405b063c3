package reshard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/dirbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// alone is a job on a directory, without a collection behind it.
func alone(t testing.TB, s Settings) (*work, *layer.Metered) {
	t.Helper()
	h := host.System()
	dir, err := dirbucket.Open(t.TempDir(), h, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := layer.Metrics(dir)
	if _, err := manifest.Create(t.Context(), bucket.NewCell(b), h, manifest.InitOptions{Shards: []manifest.ShardID{"a"}}); err != nil {
		t.Fatal(err)
	}
	store := reader.NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return b, nil }, segment.NewCache(4<<20))
	key := shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}
	return &work{
		Config: Config{Root: manifest.NewRoot(bucket.NewCell(b), h, nil), Bucket: b, Host: h, Settings: s.withDefaults()},
		goal:   Goal{Key: key}, store: store, progress: NewProgress(h, "db.c", key, 0, nil), job: h.ID16(), id: 7, reserved: 1 << 20,
		image: &image{}, carried: writer.NewCarried(7, key), beat: h.Mono() + time.Hour,
	}, b
}

// TestSortingTakesBoundedMemory sorts 40 MB through runs of 1 MB into segments of 1 MB and
// chunks of 4 MB: in order, complete, within 16 MB of memory beyond what there was, and with
// about as many requests as there are runs and segments.
func TestSortingTakesBoundedMemory(t *testing.T) {
	const n = 20_000
	w, requests := alone(t, Settings{MemoryBytes: 1 << 20, SegmentBytes: 1 << 20, ChunkBytes: 4 << 20})
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	base, peak := allocated(), uint64(0)
	order := &sorter{w: w}
	rng := rand.New(rand.NewPCG(1, 2))
	pad := make([]byte, 2000)
	for i := range n {
		for j := range pad {
			pad[j] = 'a' + byte(rng.IntN(26)) // hardly compresses
		}
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i * 7919 % n}, {Key: "pad", Value: string(pad)}})
		if err != nil {
			t.Fatal(err)
		}
		key, err := w.keyOf(doc)
		if err == nil {
			err = order.add(t.Context(), segment.Row{Key: key, Seq: w.seq(came), Doc: doc})
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%2000 == 0 {
			peak = max(peak, allocated())
		}
	}
	runs := len(order.runs)
	if err := w.write(t.Context(), order, &save{}); err != nil {
		t.Fatal(err)
	}
	peak = max(peak, allocated())
	if grown := int64(peak - base); peak > base && grown > 16<<20 {
		t.Errorf("%d MB more memory than before", grown>>20)
	}
	if len(w.image.chunks) < 8 || runs < 30 {
		t.Errorf("%d chunks of %d runs", len(w.image.chunks), runs)
	}
	puts, gets := requests.Snapshot().Of(layer.Put, layer.Segment).Requests, requests.Snapshot().Of(layer.Get, layer.Segment).Requests
	if puts > int64(2*runs+20) || gets > int64(6*runs) {
		t.Errorf("%d PUTs and %d GETs for %d runs", puts, gets, runs)
	}
	total, last := int64(0), -1
	for _, c := range w.image.chunks {
		it := w.store.Scan(t.Context(), w.view(c), shardkey.Range{}, false)
		rows := int64(0)
		for it.Next(t.Context()) {
			k := int(it.Row().Doc.Lookup("k").AsInt64())
			if k != last+1 {
				t.Fatalf("%d after %d", k, last)
			}
			last = k
			rows++
		}
		if it.Err() != nil || rows != c.added.RowsDelta {
			t.Fatalf("%d rows, want %d: %v", rows, c.added.RowsDelta, it.Err())
		}
		total += rows
	}
	if total != n {
		t.Errorf("%d rows of %d", total, n)
	}
}

func allocated() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestTwoDocumentsOfOneKeyAreNamed meets them in memory, in one run, in two runs, and where
// only the shard key is the same but is to be unique.
func TestTwoDocumentsOfOneKeyAreNamed(t *testing.T) {
	for _, c := range []struct {
		memory int
		unique bool
		ids    [2]any
	}{{1 << 20, false, [2]any{1, int64(1)}}, {500, false, [2]any{1, int64(1)}}, {2000, false, [2]any{1, 1.0}}, {500, true, [2]any{"x", "y"}}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w, _ := alone(t, Settings{MemoryBytes: c.memory})
			w.goal.Unique = c.unique
			order := &sorter{w: w}
			add := func(id, k any) error {
				doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}})
				if err != nil {
					return err
				}
				key, err := w.keyOf(doc)
				if err != nil {
					return err
				}
				return order.add(t.Context(), segment.Row{Key: key, Seq: w.seq(came), Doc: doc})
			}
			err := add(c.ids[0], 5)
			for i := range 20 {
				if err == nil {
					err = add(100+i, 100+i)
				}
			}
			if err == nil {
				err = add(c.ids[1], 5)
			}
			if err == nil {
				err = w.write(t.Context(), order, &save{})
			}
			var m *mongoerr.Error
			if !asMongo(err, &m) || m.Code != mongoerr.DuplicateKey || strings.Count(m.Message, "5") == 0 {
				t.Fatal(err)
			}
		})
	}
}

func asMongo(err error, m **mongoerr.Error) bool {
	e, ok := err.(*mongoerr.Error)
	*m = e
	return ok
}

// TestChunksAreCutAtPointsAndBySize cuts at points that no row is at, and between values only.
func TestChunksAreCutAtPointsAndBySize(t *testing.T) {
	w, _ := alone(t, Settings{ChunkBytes: 400})
	for _, at := range []string{"100", "350"} {
		key, full, err := w.goal.Key.Bound(document(t, `{"k": `+at+`}`))
		if err != nil {
			t.Fatal(err)
		}
		w.goal.Points = append(w.goal.Points, shardkey.Bound{Key: key, BSON: full})
	}
	order := &sorter{w: w}
	for i := range 60 { // 20 documents of each of three values
		doc := document(t, fmt.Sprintf(`{"_id": %d, "k": %d, "pad": "xxxxxxxxxxxxxxxxxxxx"}`, i, i%3*100))
		key, err := w.keyOf(doc)
		if err == nil {
			err = order.add(t.Context(), segment.Row{Key: key, Seq: w.seq(came), Doc: doc})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.write(t.Context(), order, &save{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range w.image.chunks {
		got = append(got, fmt.Sprint(c.low.BSON, " ", c.added.RowsDelta))
	}
	want := []string{` 20`, `{"k": {"$numberInt":"100"}} 20`, `{"k": {"$numberInt":"200"}} 20`, `{"k": {"$numberInt":"350"}} 0`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	for i, c := range w.image.chunks[1:] {
		if !bytes.Equal(w.image.chunks[i].max, c.low.Key) {
			t.Errorf("a gap before %v", c.low.BSON)
		}
	}
}

func document(t testing.TB, json string) bson.Raw {
	t.Helper()
	var d bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatal(err)
	}
	return d
}
