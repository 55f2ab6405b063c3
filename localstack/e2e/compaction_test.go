package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var compactFor = flag.Duration("compaction", 0, "how long TestCompactionLeavesTheForegroundAlone measures, with and without compactions; 0: not at all")

// compactDocs is how many documents of compactBytes there are, compactRounds how often each is
// written before anything is merged.
const (
	compactDocs   = 6000
	compactBytes  = 1000
	compactRounds = 12
)

// What is asked of a writer while a process of its own merges what was written takes hardly
// longer than before; afterwards the store holds little more than what is live, and everything.
func TestCompactionLeavesTheForegroundAlone(t *testing.T) {
	if *compactFor == 0 {
		t.Skip("it measures latencies, which a machine that does other things does not have: run it alone, with -compaction 20s")
	}
	store := "dir:" + t.TempDir()
	c := newCluster(t, store, 1, 1)
	c.writers[0].args = append(c.writers[0].args, "--upkeep=false", "--balancer=false")
	for _, r := range c.roles() {
		r.start()
	}
	c.ready()
	docs := c.client().Database("shop").Collection("orders")
	for round := range compactRounds {
		rewriteAll(t, docs, round)
		run(t, "snapshot", "create", fmt.Sprint(round), "--store", store)
		run(t, "snapshot", "drop", fmt.Sprint(round), "--store", store)
	}
	calm := foreground(t, docs, *compactFor)
	// As slowly as it must be to last as long as is measured.
	mb := max(2*compactRounds*compactDocs*compactBytes/(1<<20)/int(compactFor.Seconds()), 1)
	compactor := granary(t, "compact", "--store", store, "--admin", "", "--compact-mb-per-second", fmt.Sprint(mb))
	must(t, compactor.Start())
	busy := foreground(t, docs, *compactFor)
	must(t, compactor.Process.Signal(os.Interrupt)) // it leaves no job behind, or settled would wait for it
	must(t, compactor.Wait())
	quantiles(t, "operations before", calm)
	quantiles(t, fmt.Sprintf("operations while %d MB a second are merged", mb), busy)
	if before, with := p99(calm), p99(busy); with > before*12/10 {
		t.Errorf("p99 %v, with compactions %v", before, with)
	}
	settled(t, store, sizeOf(t, docs))
	if n, err := docs.CountDocuments(t.Context(), bson.D{}); err != nil || n != compactDocs {
		t.Errorf("%d documents, %v", n, err)
	}
}

// sizeOf is how large the documents of a collection are.
func sizeOf(t *testing.T, c *mongo.Collection) (bytes int) {
	t.Helper()
	cur, err := c.Find(t.Context(), bson.D{})
	must(t, err)
	for cur.Next(t.Context()) {
		bytes += len(cur.Current)
	}
	must(t, cur.Err())
	return bytes
}

// settled merges what is left, collects the garbage, and requires that little more is stored than
// is live.
func settled(t *testing.T, store string, live int) {
	t.Helper()
	var merged struct{ Merged, BytesRead, BytesWritten int64 }
	var now struct{ ReadAmplification, SpaceAmplification float64 }
	var swept struct{ SegmentBytes int64 }
	merging := run(t, "compact", "--once", "-o", "json", "--store", store)
	must(t, json.Unmarshal(merging, &merged))
	must(t, json.Unmarshal(merging, &now))
	space := 0.0
	// What was dropped waits for the next copy of the root, of which there is one a minute.
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(5 * time.Second) {
		run(t, "gc", "--courtesy", "1ms", "--store", store)
		must(t, json.Unmarshal(run(t, "gc", "--dry-run", "-o", "json", "--store", store), &swept))
		if space = float64(swept.SegmentBytes) / float64(live); space <= 1.3 || time.Now().After(deadline) {
			break
		}
	}
	t.Logf("left to merge: %+v; then a point read asks %.1f segments, %.2f rows are stored for each live one, %.2f bytes for each", merged, now.ReadAmplification, now.SpaceAmplification, space)
	if space > 1.3 || now.SpaceAmplification > 1.3 {
		t.Errorf("%d bytes are stored for %d", swept.SegmentBytes, live)
	}
	fsck(t, store)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a command of granary, and returns what it prints.
func run(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := granary(t, args...).Output()
	if err != nil {
		t.Fatalf("granary %v: %v\n%s", args, err, out)
	}
	return out
}

// rewriteAll gives every document new bytes that nothing compresses.
func rewriteAll(t *testing.T, docs *mongo.Collection, round int) {
	t.Helper()
	noise := rand.NewChaCha8([32]byte{byte(round)})
	for at := 0; at < compactDocs; at += 500 {
		var list []mongo.WriteModel
		for id := at; id < at+500; id++ {
			pad := make([]byte, compactBytes)
			_, _ = noise.Read(pad)
			list = append(list, mongo.NewReplaceOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).SetReplacement(bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: pad}}).SetUpsert(true))
		}
		if _, err := docs.BulkWrite(t.Context(), list, options.BulkWrite().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
}

// foreground reads and updates single documents for some time, a few at once, and tells how long
// each took.
func foreground(t *testing.T, docs *mongo.Collection, d time.Duration) (took []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for client := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 1))
			for n := 0; ctx.Err() == nil; n++ {
				one, start := bson.D{{Key: "_id", Value: rng.IntN(compactDocs)}}, time.Now()
				var err error
				if n%2 == 0 {
					err = docs.FindOne(t.Context(), one).Err()
				} else {
					_, err = docs.UpdateOne(t.Context(), one, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}}}})
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return took
}

func p99(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)*99/100]
}
