package localstack_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// change commits to the root as some other process would.
func change(t *testing.T, b bucket.Bucket, plan func(*manifest.State) []manifest.Change) {
	t.Helper()
	h := host.System()
	root := manifest.NewRoot(bucket.NewCell(b), h, nil)
	st, _, err := root.Load(context.Background())
	if err == nil {
		_, err = root.Commit(context.Background(), manifest.Edit{Op: h.ID16(), Changes: plan(st), Millis: h.Wall().UnixMilli()})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// switchBalancer stops or starts all balancers of a cluster.
func switchBalancer(t *testing.T, b bucket.Bucket, stopped bool) {
	t.Helper()
	change(t, b, func(st *manifest.State) []manifest.Change {
		return []manifest.Change{manifest.PutRecord{Record: manifest.Record{
			Kind: manifest.RecordBalancer, ID: balancing.SettingsID, Body: balancing.Switched(st, stopped, "a test", 0),
		}}}
	})
}

// owners counts the chunks of data.data by shard.
func owners(t *testing.T, b bucket.Bucket) map[manifest.ShardID]int {
	t.Helper()
	root := manifest.NewRoot(bucket.NewCell(b), host.System(), nil)
	st, _, err := root.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n := map[manifest.ShardID]int{}
	for c := range st.Chunks(st.CollectionByName("data", "data").ID) {
		n[c.Shard]++
	}
	return n
}

func even(n map[manifest.ShardID]int, shards int) bool {
	least, most := 1<<30, 0
	for _, x := range n {
		least, most = min(least, x), max(most, x)
	}
	return len(n) == shards && most-least <= 1
}

// presplit makes data.data with n chunks, all on one shard, by single splits.
func presplit(t *testing.T, s *localstack.Stack, n int) {
	t.Helper()
	do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "data.data"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	for i := 1; i < n; i++ {
		do(t, s, "admin", bson.D{{Key: "split", Value: "data.data"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: i}}}})
	}
}

// within waits until something is so.
func within(t *testing.T, d time.Duration, what string, so func() bool) {
	t.Helper()
	for start := time.Now(); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > d {
			t.Fatalf("after %s it is not so that %s", d, what)
		}
	}
}

// TestPresplitSpreadsWhenTheBalancerStarts cuts 1441 empty chunks while the balancer is
// stopped, finds them where they were, starts it, and finds them spread within seconds.
func TestPresplitSpreadsWhenTheBalancerStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 3})
		defer s.Close(context.Background())
		switchBalancer(t, b, true)
		presplit(t, s, 1441)
		time.Sleep(5 * time.Minute)
		if n := owners(t, b); len(n) != 1 {
			t.Fatalf("chunks moved while the balancer was stopped: %v", n)
		}
		switchBalancer(t, b, false)
		within(t, 15*time.Second, "every shard has a third of the chunks", func() bool { return even(owners(t, b), 3) })
		st, _, _ := s.Root.Load(context.Background())
		var last manifest.ShardID
		for c := range st.Chunks(st.CollectionByName("data", "data").ID) {
			if c.Shard == last {
				t.Fatal("two neighbours are on one shard")
			}
			last = c.Shard
		}
		h := st.History()
		if i := slices.IndexFunc(h, func(e manifest.HistoryEntry) bool { return e.What == "balancer.round" }); i < 0 || h[i].Detail.Lookup("reasons", "count").Int32() < 900 {
			t.Error("the history does not tell why")
		}
	})
}

// TestIdleBalancersCostNothing lets three balancers look at a balanced cluster for ten hours:
// each reads the root once a minute in the end, and nobody writes.
func TestIdleBalancersCostNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 3, NoBalancer: true})
		defer s.Close(context.Background())
		do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "data.data"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: 10}}, bson.D{{Key: "_id", Value: 20}}}}})
		dialer := rpc.NewLocal(nil)
		dialer.Add(s.Root.State().Shards()[0].Holder, s.Writer)
		var roots []*manifest.Root
		for range 3 {
			root, stop := lone(t, b, dialer, "")
			defer stop()
			roots = append(roots, root)
		}
		time.Sleep(10 * time.Hour)
		for _, r := range roots {
			if st := r.Stats(); st.Loads > 10*60+20 || st.Commits > 0 {
				t.Errorf("%d GETs and %d PUTs of the root in ten idle hours", st.Loads, st.Commits)
			}
		}
	})
}

// TestANewShardGetsChunks adds a shard to a running cluster: a writer claims it, and it has
// its part of the chunks without another word.
func TestANewShardGetsChunks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 2})
		defer s.Close(context.Background())
		presplit(t, s, 30)
		within(t, time.Minute, "both shards have half", func() bool { return even(owners(t, b), 2) })
		change(t, b, func(*manifest.State) []manifest.Change {
			return []manifest.Change{manifest.AddShards{IDs: []manifest.ShardID{"shard03"}}}
		})
		within(t, time.Minute, "the new shard has a third", func() bool { return even(owners(t, b), 3) })
	})
}

// TestAWriterThatJoinsGetsChunks starts a second writer process beside the first: it is given
// a shard that the first one does not want, with chunks on it.
func TestAWriterThatJoinsGetsChunks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, n := membucket.New(), &network{at: map[string]*localstack.Writer{}}
		first := n.start(t, b, localstack.WriterRole{Address: "one", Named: []manifest.ShardID{"shard01"}})
		router, err := localstack.OpenRouter(context.Background(), b, host.System(), n, localstack.Options{})
		if err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, "the first shard is held", func() bool {
			st := first.Root.State()
			return st != nil && st.Shard("shard01").Status == manifest.ShardHeld
		})
		ask(t, router, bson.D{{Key: "shardCollection", Value: "data.data"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
		for i := range 20 {
			ask(t, router, bson.D{{Key: "split", Value: "data.data"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: i}}}})
		}
		time.Sleep(time.Minute)
		if got := owners(t, b); len(got) != 1 {
			t.Errorf("chunks went to a shard that nobody holds: %v", got)
		}
		n.start(t, b, localstack.WriterRole{Address: "two", Named: []manifest.ShardID{"shard02"}})
		within(t, 2*time.Minute, "the second writer's shard has half", func() bool { return even(owners(t, b), 2) })
		if err := router.Close(context.Background()); err != nil {
			t.Error(err)
		}
		n.stop(t, "two")
		n.stop(t, "one")
	})
}

func ask(t *testing.T, r *localstack.Router, cmd bson.D) {
	t.Helper()
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: "admin"}))
	if err != nil {
		t.Fatal(err)
	}
	if reply := r.Commands.Do(context.Background(), body); reply.Lookup("ok").Double() != 1 {
		t.Fatalf("%v: %v", cmd[0], reply)
	}
}

// TestOneBalancerAfterAnotherMovesEachChunkOnce runs three balancers with unequal clocks and
// ends the active one in the middle: another goes on, and no chunk is moved twice.
func TestOneBalancerAfterAnotherMovesEachChunkOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 3, NoBalancer: true})
		defer s.Close(context.Background())
		change(t, b, func(*manifest.State) []manifest.Change {
			// Chunks that are not small go a few at a time, so that there is a middle.
			body, _ := bson.Marshal(bson.D{{Key: "value", Value: 1}})
			return []manifest.Change{manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordSetting, ID: "chunksize", Body: body}}}
		})
		switchBalancer(t, b, true)
		presplit(t, s, 120)
		fill(t, s, 120)
		moves := map[manifest.ChunkID]int{}
		seen := manifest.NewRoot(bucket.NewCell(b), host.System(), nil)
		before, _, _ := seen.Load(context.Background())
		dialer := rpc.NewLocal(nil)
		dialer.Add(s.Root.State().Shards()[0].Holder, s.Writer)
		stops := map[string]func(){}
		for _, name := range []string{"x", "y", "z"} {
			_, stops[name] = lone(t, b, dialer, name)
			defer stops[name]()
		}
		switchBalancer(t, b, false)
		round := func() balancing.Round {
			st, _, err := seen.Load(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			r, _ := balancing.LastRound(st)
			return r
		}
		within(t, 3*time.Minute, "a round has begun", func() bool { return round().Rounds > 0 })
		first := round()
		stops[first.Holder]()
		within(t, 5*time.Minute, "every shard has its part", func() bool {
			n := owners(t, b)
			all := []int{n["shard01"], n["shard02"], n["shard03"]}
			return slices.Max(all)-slices.Min(all) <= 30 // of 100 KB: 3 times the chunk size
		})
		within(t, 5*time.Minute, "the last round is over", func() bool { return !round().InRound })
		if last := round(); last.Holder == first.Holder {
			t.Errorf("%q went on after its end: %+v", first.Holder, last)
		}
		after, _, _ := seen.Load(context.Background())
		for was, is := range manifest.ChangedChunks(before, after) {
			if was != nil && is != nil {
				moves[is.ID] = int(is.Version - was.Version)
			}
		}
		for id, n := range moves {
			if n > 1 {
				t.Errorf("chunk %d was moved %d times", id, n)
			}
		}
	})
}

// fill writes 100 KiB to each chunk of a presplit, and flushes.
func fill(t *testing.T, s *localstack.Stack, n int) {
	t.Helper()
	pad := strings.Repeat("x", 100<<10)
	var docs bson.A
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
	}
	do(t, s, "data", bson.D{{Key: "insert", Value: "data"}, {Key: "documents", Value: docs}})
	for _, h := range s.Root.State().Shards() {
		if _, err := s.Writer.Flush(context.Background(), &rpc.FlushRequest{Header: rpc.Header{Shard: h.ID}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRemoveShardEmptiesAndRemoves removes a shard that has a chunk with a single shard-key
// value and an unsharded collection, as MongoDB's users do, by sending removeShard until it is
// completed; then it is gone, nothing was lost, and its name can come back.
func TestRemoveShardEmptiesAndRemoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 3})
		defer s.Close(context.Background())
		presplit(t, s, 30)
		fill(t, s, 30)
		within(t, time.Minute, "the chunks are spread", func() bool { return even(owners(t, b), 3) })
		do(t, s, "data", bson.D{{Key: "insert", Value: "plain"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
		do(t, s, "admin", bson.D{{Key: "moveCollection", Value: "data.plain"}, {Key: "toShard", Value: "shard02"}})
		change(t, b, func(st *manifest.State) []manifest.Change {
			for c := range st.AllChunks() {
				if c.Shard == "shard02" && c.Bytes > 0 {
					return []manifest.Change{manifest.MarkChunk{Chunk: c.At(), Flags: manifest.ChunkIndivisible}}
				}
			}
			t.Fatal("no chunk to mark")
			return nil
		})
		remove := bson.D{{Key: "removeShard", Value: "shard02"}}
		first := do(t, s, "admin", remove)
		if first.Lookup("state").StringValue() != "started" || first.Lookup("remaining", "jumboChunks").AsInt64() != 1 {
			t.Errorf("%v", first)
		}
		start := time.Now()
		for state := ""; state != "completed"; time.Sleep(200 * time.Millisecond) {
			state = do(t, s, "admin", remove).Lookup("state").StringValue()
			if time.Since(start) > 20*time.Second {
				t.Fatalf("not removed after %s: %v", time.Since(start), do(t, s, "admin", remove))
			}
		}
		if n := owners(t, b); !even(n, 2) {
			t.Errorf("%v", n)
		}
		if n, _ := do(t, s, "data", bson.D{{Key: "count", Value: "data"}}).Lookup("n").AsInt64OK(); n != 30 {
			t.Errorf("%d documents, want 30", n)
		}
		if n, _ := do(t, s, "data", bson.D{{Key: "count", Value: "plain"}}).Lookup("n").AsInt64OK(); n != 1 {
			t.Errorf("%d documents, want 1", n)
		}
		do(t, s, "admin", bson.D{{Key: "addShard", Value: "shard02"}})
		within(t, time.Minute, "the shard is back and has its part", func() bool { return even(owners(t, b), 3) })
		if n, _ := do(t, s, "data", bson.D{{Key: "count", Value: "data"}}).Lookup("n").AsInt64OK(); n != 30 {
			t.Errorf("%d documents, want 30", n)
		}
	})
}

// TestStoppedMeansNoMoreMoves stops the balancer in the middle of a long drain: the command
// returns, and from then on no chunk moves, until it is started.
func TestStoppedMeansNoMoreMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 2})
		defer s.Close(context.Background())
		do(t, s, "config", bson.D{{Key: "update", Value: "settings"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "chunksize"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: 1}}}}}, {Key: "upsert", Value: true},
		}}}})
		do(t, s, "admin", bson.D{{Key: "balancerStop", Value: 1}})
		presplit(t, s, 100)
		fill(t, s, 100)
		before := owners(t, b)
		for id := range before {
			do(t, s, "admin", bson.D{{Key: "removeShard", Value: string(id)}})
		}
		do(t, s, "admin", bson.D{{Key: "balancerStart", Value: 1}})
		within(t, time.Minute, "some chunks have moved", func() bool { return len(owners(t, b)) == 2 })
		do(t, s, "admin", bson.D{{Key: "balancerStop", Value: 1}})
		at := owners(t, b)
		status := do(t, s, "admin", bson.D{{Key: "balancerStatus", Value: 1}})
		if len(at) != 2 || status.Lookup("inBalancerRound").Boolean() || status.Lookup("mode").StringValue() != "off" {
			t.Errorf("after balancerStop: %v, %v", at, status)
		}
		time.Sleep(time.Hour)
		if now := owners(t, b); now["shard01"] != at["shard01"] {
			t.Errorf("chunks moved while the balancer was stopped: %v, then %v", at, now)
		}
		why := do(t, s, "admin", bson.D{{Key: "balancerCollectionStatus", Value: "data.data"}})
		if why.Lookup("balancerCompliant").Boolean() || why.Lookup("firstComplianceViolation").StringValue() != "draining" ||
			!strings.Contains(why.Lookup("why").StringValue(), "stopped by this process at ") {
			t.Errorf("%v", why)
		}
		do(t, s, "admin", bson.D{{Key: "balancerStart", Value: 1}})
		within(t, time.Minute, "the shard is empty", func() bool { return len(owners(t, b)) == 1 })
	})
}

// TestABusyShardGivesAHotChunkAway reads two chunks of one shard hundreds of times a second:
// one of them goes to the other shard, for one that nobody asks for.
func TestABusyShardGivesAHotChunkAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 2, UpkeepEvery: -1})
		defer s.Close(context.Background())
		do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "data.data"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: 10}}, bson.D{{Key: "_id", Value: 20}}, bson.D{{Key: "_id", Value: 30}}}}})
		hot := []int{5, 25}
		owner := func(id int) manifest.ShardID {
			st := s.Root.State()
			n := 0
			for c := range st.Chunks(st.CollectionByName("data", "data").ID) {
				if n++; n > id/10 {
					return c.Shard
				}
			}
			return ""
		}
		if owner(hot[0]) != owner(hot[1]) {
			t.Fatal("the two are on two shards from the start")
		}
		for start := time.Now(); owner(hot[0]) == owner(hot[1]); time.Sleep(10 * time.Millisecond) {
			for _, id := range slices.Repeat(hot, 3) {
				do(t, s, "data", bson.D{{Key: "find", Value: "data"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}}})
			}
			if time.Since(start) > 5*time.Minute {
				t.Fatalf("both are still on %s: %v", owner(5), do(t, s, "admin", bson.D{{Key: "balancerStatus", Value: 1}}))
			}
		}
		// Each goes in a commit of its own, and the round is told when both went.
		within(t, time.Minute, "one went each way", func() bool { n := owners(t, b); return n["shard01"] == 2 && n["shard02"] == 2 })
		within(t, time.Minute, "the history tells why", func() bool {
			h := s.Root.State().History()
			i := slices.IndexFunc(h, func(e manifest.HistoryEntry) bool { return e.What == "balancer.round" })
			return i >= 0 && h[i].Detail.Lookup("reasons", "load").Int32() == 2
		})
	})
}
