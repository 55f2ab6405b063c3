package localstack_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// yard is a stack with a sharded collection shop.orders whose chunks are to be small, in one
// bubble of virtual time.
type yard struct {
	t     *testing.T
	stack *localstack.Stack
	store *layer.Metered
	log   *journal
	edits byte
}

// journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), what)
}

// inYard runs f on a yard with the key {k: 1} and a target size of chunks in bytes.
func inYard(t *testing.T, target int64, f func(y *yard)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := &yard{t: t, store: layer.Metrics(membucket.New()), log: &journal{}}
		y.stack = open(t, y.store, localstack.Options{NoBalancer: true, Log: slog.New(slog.NewTextHandler(y.log, nil))})
		do(t, y.stack, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
		y.alter(func(c *manifest.Collection) { c.Options = manifest.WithChunkSize(c.Options, target) })
		f(y)
		if err := y.stack.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := manifest.Validate(y.stack.Root.State()); err != nil {
			t.Fatal(err)
		}
	})
}

func (y *yard) coll() *manifest.Collection {
	return y.stack.Root.State().CollectionByName("shop", "orders")
}

func (y *yard) alter(change func(*manifest.Collection)) {
	y.t.Helper()
	now := *y.coll()
	change(&now)
	y.commit(manifest.AlterCollection{Was: *y.coll(), Now: now})
}

func (y *yard) commit(changes ...manifest.Change) {
	y.t.Helper()
	y.edits++
	id := [16]byte{1, y.edits}
	if _, err := y.stack.Root.Commit(context.Background(), manifest.Edit{Op: id, Changes: changes}); err != nil {
		y.t.Fatal(err)
	}
}

// insert inserts documents of about size bytes under the keys, a hundred at a time.
func (y *yard) insert(size int, keys ...any) {
	y.t.Helper()
	for len(keys) > 0 {
		n := min(100, len(keys))
		var docs bson.A
		for _, k := range keys[:n] {
			docs = append(docs, bson.D{{Key: "k", Value: k}, {Key: "pad", Value: strings.Repeat("x", size)}})
		}
		do(y.t, y.stack, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
		keys = keys[n:]
	}
}

func (y *yard) chunks() (list []*manifest.Chunk) {
	for c := range y.stack.Root.State().Chunks(y.coll().ID) {
		list = append(list, c)
	}
	return list
}

func (y *yard) want(what string, ok bool, format string, args ...any) {
	y.t.Helper()
	if !ok {
		y.t.Errorf("%s: %s", what, fmt.Sprintf(format, args...))
	}
}

// Rows in any order, more than the target: the chunk is cut at their median again and again,
// while clients go on; the number of chunks is about that of targets in the data.
func TestAChunkThatGrowsIsCut(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 40 { // 2 MB: 40 targets
			var keys []any
			for range 50 {
				keys = append(keys, rng.IntN(1e9))
			}
			y.insert(900, keys...)
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		n := len(y.chunks())
		y.want("chunks", n >= 20 && n <= 60, "%d of 2 MB at a target of 50 kB", n)
		if n := count(t, y.stack); n != 2000 {
			t.Errorf("%d documents of 2000", n)
		}
		c := y.stack.Upkeep().Counts()
		time.Sleep(20 * time.Minute)
		y.want("afterwards", y.stack.Upkeep().Counts() == c, "%+v became %+v", c, y.stack.Upkeep().Counts())
	})
}

// All at once, still in memory: one commit cuts it into its parts.
func TestALargeChunkIsCutIntoManyAtOnce(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		y.alter(func(c *manifest.Collection) { c.Options = manifest.WithAutoSplit(c.Options, false) })
		var keys []any
		for i := range 1000 {
			keys = append(keys, (i*7919)%1000)
		}
		y.insert(900, keys...)
		time.Sleep(2 * time.Minute)
		y.want("autosplit is off", len(y.chunks()) == 1, "%d chunks", len(y.chunks()))
		y.alter(func(c *manifest.Collection) { c.Options = manifest.WithAutoSplit(c.Options, true) })
		time.Sleep(time.Minute)
		c := y.stack.Upkeep().Counts()
		n := len(y.chunks())
		y.want("chunks", c.Cuts == 1 && n >= 15 && n <= 25, "%d after %d cuts, of 0.95 MB at a target of 50 kB", n, c.Cuts)
		for _, chunk := range y.chunks() {
			y.want("size", chunk.Bytes > 25_000 && chunk.Bytes < 100_000, "a chunk of %d bytes", chunk.Bytes)
		}
	})
}

// Names as people have them: 20,000 different ones, some of them much more often. The chunks
// differ by no more than a factor of two, but for what one name alone takes.
func TestChunksOfNamesAreOfOneSize(t *testing.T) {
	inYard(t, 100_000, func(y *yard) {
		rng := rand.New(rand.NewPCG(3, 4))
		zipf := rand.NewZipf(rng, 1.2, 20, 19_999)
		byName := make(map[string]int)
		var keys []any
		for range 20_000 {
			name := fmt.Sprintf("%c%c-%05d", 'a'+rng.IntN(26), 'a'+rng.IntN(26), zipf.Uint64())
			keys = append(keys, name)
			byName[name]++
		}
		y.insert(100, keys...)
		time.Sleep(2 * time.Minute)
		byKey := make(map[string]int)
		for name, of := range byName {
			key, err := y.coll().Key.AppendShardKey(nil, doc(bson.D{{Key: "k", Value: name}}))
			if err != nil {
				t.Fatal(err)
			}
			byKey[string(key)] = of
		}
		var sizes []float64
		for i, chunk := range y.chunks() {
			n := 0
			for key, of := range byKey {
				if chunk.Range.Contains([]byte(key)) {
					n += of
				}
			}
			if i > 0 || n > 0 {
				sizes = append(sizes, float64(n))
			}
		}
		mean := 20_000.0 / float64(len(sizes))
		for _, n := range sizes {
			y.want("size", n < 2*mean && n > mean/2, "%.0f documents, on average %.0f in %d chunks", n, mean, len(sizes))
		}
		y.want("chunks", len(sizes) >= 15, "%d", len(sizes))
	})
}

func doc(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// One value, five times the target: it is tried once, marked with the value and its size, one
// line is logged, and it moves like any other. When much more comes it is tried again, and no
// new line says the same.
func TestAChunkOfOneValueIsMarkedOnce(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		keys := make([]any, 250)
		for i := range keys {
			keys[i] = "one"
		}
		y.alter(func(c *manifest.Collection) { c.Options = manifest.WithAutoSplit(c.Options, false) })
		y.insert(1000, keys...)
		y.alter(func(c *manifest.Collection) { c.Options = manifest.WithAutoSplit(c.Options, true) })
		time.Sleep(time.Minute)
		c := y.chunks()[0]
		y.want("mark", c.Flags == manifest.ChunkIndivisible && c.Indivisible.Value.String() == `{"k": "one"}` && c.Indivisible.Bytes > 240_000, "%v %v", c.Flags, c.Indivisible)
		y.want("counts", y.stack.Upkeep().Counts().Attempts == 1 && y.stack.Upkeep().Counts().Marks == 1, "%+v", y.stack.Upkeep().Counts())
		y.insert(1000, keys[:100]...)
		time.Sleep(time.Hour)
		y.want("later", y.stack.Upkeep().Counts().Attempts == 1, "%+v", y.stack.Upkeep().Counts())
		for _, h := range y.stack.Root.State().Shards() {
			if h.ID != c.Shard {
				do(t, y.stack, "admin", bson.D{{Key: "moveChunk", Value: "shop.orders"}, {Key: "find", Value: bson.D{{Key: "k", Value: "one"}}}, {Key: "to", Value: string(h.ID)}})
				y.want("move", y.chunks()[0].Shard == h.ID, "it is on %s", y.chunks()[0].Shard)
				break
			}
		}
		y.insert(1000, keys...)
		time.Sleep(time.Minute)
		y.want("regrown", y.stack.Upkeep().Counts().Marks == 2 && y.log.count("cannot be cut") == 1, "%+v, logged %d times", y.stack.Upkeep().Counts(), y.log.count("cannot be cut"))
		y.insert(1000, "another", "two")
		y.insert(1000, keys...)
		y.insert(1000, keys...)
		time.Sleep(time.Minute)
		y.want("another value", len(y.chunks()) > 1, "%d chunks, %+v %+v %d", len(y.chunks()), y.stack.Upkeep().Counts(), y.chunks()[0].Indivisible, y.chunks()[0].Bytes)
	})
}

// With splitWithinKey one value spans chunks, whose bounds show the _id, and queries by the
// shard key find all of it.
func TestAValueIsCutWhereItsCollectionAllowsThat(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		y.alter(func(c *manifest.Collection) { c.SplitWithinKey = true })
		var docs bson.A
		for i := range 300 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: "one"}, {Key: "pad", Value: strings.Repeat("x", 1000)}})
		}
		do(t, y.stack, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
		time.Sleep(time.Minute)
		list := y.chunks()
		if len(list) < 4 {
			t.Fatalf("%d chunks: %s", len(list), y.log.text.String())
		}
		if _, err := list[1].MinBSON.LookupErr("_id"); err != nil {
			t.Errorf("bound %v does not show _id", list[1].MinBSON)
		}
		one := bson.D{{Key: "k", Value: "one"}}
		n, _ := do(t, y.stack, "shop", bson.D{{Key: "count", Value: "orders"}, {Key: "query", Value: one}}).Lookup("n").AsInt64OK()
		y.want("count", n == 300, "%d", n)
		set := bson.D{{Key: "$set", Value: bson.D{{Key: "seen", Value: true}}}}
		update := func(q bson.D, multi, upsert bool) int64 {
			r := do(t, y.stack, "shop", bson.D{{Key: "update", Value: "orders"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "u", Value: set}, {Key: "multi", Value: multi}, {Key: "upsert", Value: upsert}}}}})
			n, _ := r.Lookup("n").AsInt64OK()
			return n
		}
		y.want("update of all", update(one, true, false) == 300, "")
		y.want("update of one", update(append(one, bson.E{Key: "_id", Value: 299}), false, false) == 1, "")
		y.want("update of any", update(one, false, false) == 1, "")
		y.want("upsert of one that is there", update(one, false, true) == 1, "")
		for i := range 3 {
			do(t, y.stack, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1000 + i}, {Key: "k", Value: "one"}}}}})
		}
		n = count(t, y.stack)
		y.want("all", n == 303, "%d", n)
	})
}

// TestAValueIsCutAnHourAfterTheSwitch: a chunk of one value is marked, with what would help; when
// the switch is turned on it stays whole as long as an update of the value may be sent again that
// went to it without a choice, and is cut then. The update happens once.
func TestAValueIsCutAnHourAfterTheSwitch(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		keys := slices.Repeat([]any{"one"}, 300)
		y.insert(1000, keys...)
		time.Sleep(time.Minute)
		y.want("marked", y.log.count("splitWithinKey: true") == 1, "logged %s", y.log.text.String())
		update := func() {
			t.Helper()
			r := do(t, y.stack, "shop", bson.D{
				{Key: "update", Value: "orders"},
				{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: "one"}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}}}},
				{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}, {Key: "txnNumber", Value: int64(1)},
			})
			if n, _ := r.Lookup("n").AsInt64OK(); n != 1 {
				t.Errorf("updated %d: %v", n, r)
			}
		}
		update()
		do(t, y.stack, "admin", bson.D{{Key: "configureCollectionBalancing", Value: "shop.orders"}, {Key: "splitWithinKey", Value: true}})
		update()
		time.Sleep(25 * time.Minute)
		update()
		y.want("soon", len(y.chunks()) == 1, "%d chunks", len(y.chunks()))
		time.Sleep(40 * time.Minute)
		y.want("later", len(y.chunks()) >= 4, "%d chunks", len(y.chunks()))
		n, _ := do(t, y.stack, "shop", bson.D{{Key: "count", Value: "orders"}, {Key: "query", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$exists", Value: true}}}}}}).Lookup("n").AsInt64OK()
		y.want("updated", n == 1, "%d documents", n)
	})
}

// Neighbours that have become small are merged after a while; those that a person cut are left.
func TestSmallNeighboursAreMerged(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		var keys []any
		for i := range 300 {
			keys = append(keys, i)
		}
		y.insert(1000, keys...)
		time.Sleep(time.Minute)
		before := len(y.chunks())
		y.want("before", before >= 4, "%d chunks", before)
		do(t, y.stack, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 10_000}}}})
		do(t, y.stack, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 10_001}}}})
		do(t, y.stack, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 10}}}}}, {Key: "limit", Value: 0}}}}})
		time.Sleep(5 * time.Minute)
		y.want("soon", len(y.chunks()) == before+2, "%d chunks of %d", len(y.chunks()), before+2)
		time.Sleep(time.Hour)
		n := len(y.chunks())
		y.want("after the deletes", n <= 5 && n >= 4, "%d chunks of %d", n, before+2)
		for _, c := range y.chunks()[n-3:] {
			y.want("cut by hand", c.ManualUntil > 0, "%v is not", c.MinBSON)
		}
		if n := count(t, y.stack); n != 10 {
			t.Errorf("%d documents of 10", n)
		}
		c := y.stack.Upkeep().Counts()
		time.Sleep(20 * time.Minute)
		y.want("afterwards", y.stack.Upkeep().Counts() == c, "%+v became %+v", c, y.stack.Upkeep().Counts())
	})
}

// Ascending keys: what is complete is left behind in chunks of about the target, the chunk
// that takes the inserts stays small, and one line warns.
func TestAHotTailIsCutAheadAndWarnedOf(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		for i := range 300 {
			var keys []any
			for j := range 10 {
				keys = append(keys, 10*i+j)
			}
			y.insert(200, keys...)
			time.Sleep(time.Second)
		}
		list := y.chunks()
		y.want("chunks", len(list) >= 7 && len(list) <= 25, "%d of 0.7 MB at a target of 50 kB", len(list))
		y.want("warned", y.log.count("nearly all inserts go to the upper end") == 1, "%d times", y.log.count("nearly all inserts go to the upper end"))
		y.want("ahead", y.log.count("inserts a second come at its upper end") >= 5, "%d cuts", y.log.count("inserts a second come at its upper end"))
		hot := y.stack.Upkeep().HotTails()
		y.want("told", len(hot) == 1 && math.Abs(hot[0].Share-1) < 0.1, "%+v", hot)
		said := do(t, y.stack, "admin", bson.D{{Key: "balancerCollectionStatus", Value: "shop.orders"}}).Lookup("hotTail").String()
		y.want("told to clients", strings.Contains(said, "a second, go to the upper end of one chunk, on shard0"), "%s", said)
		if n := count(t, y.stack); n != 3000 {
			t.Errorf("%d documents of 3000", n)
		}
	})
}

// A cluster in which nothing is to be done is not asked.
func TestUpkeepOfNothingCostsNothing(t *testing.T) {
	inYard(t, 50_000, func(y *yard) {
		y.insert(1000, 1, 2, 3)
		time.Sleep(2 * time.Minute)
		quiet := func() string {
			before := y.store.Snapshot()
			time.Sleep(10 * time.Minute)
			return y.store.Snapshot().Sub(before).String()
		}
		with := quiet()
		y.want("writes", !strings.Contains(with, "put") && !strings.Contains(with, "seg"), "%s", with)
	})
}
