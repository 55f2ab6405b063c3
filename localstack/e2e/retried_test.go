package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

var retriedCases = flag.Int("cases", 91, "writes that TestRetriedWritesHappenOnce sends again")

// writeCase is a write that is sent more than once, and what it leaves behind. Its documents
// have ids that begin with its own name.
type writeCase struct {
	name  string
	kind  int
	cmd   bson.D
	first bson.Raw // its first reply; nil: it was not read
}

// retriedKinds are the forms of a retryable write: command of the documents of a case, and
// what the documents are afterwards. a and b exist before, as {n: 0}; c and d do not.
var retriedKinds = []struct {
	name string
	cmd  func(id func(string) string) bson.D
	left map[string]int64
}{
	{"insert", func(id func(string) string) bson.D {
		return bson.D{{Key: "insert", Value: "docs"}, {Key: "documents", Value: bson.A{counter(id("c"), 1), counter(id("d"), 2)}}}
	}, map[string]int64{"a": 0, "b": 0, "c": 1, "d": 2}},
	{"insert that meets a duplicate", func(id func(string) string) bson.D {
		return bson.D{{Key: "insert", Value: "docs"}, {Key: "documents", Value: bson.A{counter(id("c"), 1), counter(id("a"), 9), counter(id("d"), 2)}}}
	}, map[string]int64{"a": 0, "b": 0, "c": 1}},
	{"unordered insert that meets a duplicate", func(id func(string) string) bson.D {
		return bson.D{{Key: "insert", Value: "docs"}, {Key: "documents", Value: bson.A{counter(id("c"), 1), counter(id("a"), 9), counter(id("d"), 2)}}, {Key: "ordered", Value: false}}
	}, map[string]int64{"a": 0, "b": 0, "c": 1, "d": 2}},
	{"increment", func(id func(string) string) bson.D {
		return update(statement(id("a"), inc(3)))
	}, map[string]int64{"a": 3, "b": 0}},
	{"two increments and an upsert", func(id func(string) string) bson.D {
		return update(statement(id("a"), inc(3)), statement(id("b"), inc(4)), append(statement(id("c"), inc(5)), bson.E{Key: "upsert", Value: true}))
	}, map[string]int64{"a": 3, "b": 4, "c": 5}},
	{"replacement", func(id func(string) string) bson.D {
		return update(statement(id("a"), bson.D{{Key: "n", Value: 7}}))
	}, map[string]int64{"a": 7, "b": 0}},
	{"compare and swap", func(id func(string) string) bson.D {
		return update(bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id("a")}, {Key: "n", Value: 0}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 8}}}}}})
	}, map[string]int64{"a": 8, "b": 0}},
	{"delete", func(id func(string) string) bson.D {
		return remove(id("a"), id("c"))
	}, map[string]int64{"b": 0}},
	{"findAndModify, after", func(id func(string) string) bson.D {
		return bson.D{{Key: "findAndModify", Value: "docs"}, {Key: "query", Value: byID(id("a"))}, {Key: "update", Value: inc(3)}, {Key: "new", Value: true}}
	}, map[string]int64{"a": 3, "b": 0}},
	{"findAndModify, before", func(id func(string) string) bson.D {
		return bson.D{{Key: "findAndModify", Value: "docs"}, {Key: "query", Value: byID(id("a"))}, {Key: "update", Value: inc(3)}}
	}, map[string]int64{"a": 3, "b": 0}},
	{"findAndModify with upsert", func(id func(string) string) bson.D {
		return bson.D{{Key: "findAndModify", Value: "docs"}, {Key: "query", Value: byID(id("c"))}, {Key: "update", Value: inc(3)}, {Key: "upsert", Value: true}}
	}, map[string]int64{"a": 0, "b": 0, "c": 3}},
	{"findAndModify that removes", func(id func(string) string) bson.D {
		return bson.D{{Key: "findAndModify", Value: "docs"}, {Key: "query", Value: byID(id("a"))}, {Key: "remove", Value: true}}
	}, map[string]int64{"b": 0}},
	{"write that matches nothing", func(id func(string) string) bson.D {
		return update(statement(id("c"), inc(3)))
	}, map[string]int64{"a": 0, "b": 0}},
}

func byID(id string) bson.D             { return bson.D{{Key: "_id", Value: id}} }
func counter(id string, n int64) bson.D { return bson.D{{Key: "_id", Value: id}, {Key: "n", Value: n}} }
func inc(by int64) bson.D               { return bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: by}}}} }
func statement(id string, u bson.D) bson.D {
	return bson.D{{Key: "q", Value: byID(id)}, {Key: "u", Value: u}}
}
func update(statements ...bson.D) bson.D {
	return bson.D{{Key: "update", Value: "docs"}, {Key: "updates", Value: statements}}
}
func remove(ids ...string) bson.D {
	var statements []bson.D
	for _, id := range ids {
		statements = append(statements, bson.D{{Key: "q", Value: byID(id)}, {Key: "limit", Value: 1}})
	}
	return bson.D{{Key: "delete", Value: "docs"}, {Key: "deletes", Value: statements}}
}

// newCase is the n-th case. Its documents lie in one chunk, or, when wide, in several.
func newCase(n int, wide bool) *writeCase {
	w := &writeCase{name: fmt.Sprintf("%06d", n), kind: n % len(retriedKinds)}
	id := func(letter string) string { return w.id(letter, wide, n) }
	session := host.System().ID16()
	w.cmd = append(retriedKinds[w.kind].cmd(id),
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: session[:]}}}},
		bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "$db", Value: "retried"})
	return w
}

func (w *writeCase) id(letter string, wide bool, n int) string {
	chunk := n
	if wide {
		chunk += 2 * int(letter[0]-'a')
	}
	return fmt.Sprintf("%s-%s-%s", clientName(chunk%loadClients), w.name, letter)
}

// ask sends the write to a router until it is told what came of it, as drivers do, if not for
// ever.
func (w *writeCase) ask(t testing.TB, r *role) bson.Raw {
	t.Helper()
	for try := 0; ; try++ {
		c := dialWire(t, r)
		c.send(t, w.cmd)
		reply := c.reply(t)
		c.Close()
		if reply.Lookup("errorLabels").Type == 0 || try == 3 {
			return reply
		}
	}
}

// again sends the write once more, and requires the first reply.
func (w *writeCase) again(t testing.TB, r *role, after string) {
	t.Helper()
	reply := w.ask(t, r)
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
		t.Errorf("%s %s after %s: %v", retriedKinds[w.kind].name, w.name, after, reply)
	}
	if w.first == nil {
		w.first = reply
	} else if !bytes.Equal(w.first, reply) {
		t.Errorf("%s %s after %s: the reply is %v, it was %v", retriedKinds[w.kind].name, w.name, after, reply, w.first)
	}
}

// retriedScenarios are what comes between a write and the same write. lost: the first reply
// is not read.
var retriedScenarios = []struct {
	name    string
	lost    bool
	between func(t testing.TB, c *cluster, v *view)
}{
	{"a lost reply", true, func(testing.TB, *cluster, *view) {}},
	{"a takeover", false, takeAllOver},
	{"a move", false, moveAll},
	{"the other router", false, func(testing.TB, *cluster, *view) {}},
	{"a reply lost in a takeover", true, takeAllOver},
	{"a reply lost in a move", true, moveAll},
	{"a restart of all", false, func(t testing.TB, c *cluster, _ *view) {
		for _, w := range c.writers {
			w.stop()
			w.start()
		}
		c.ready()
	}},
}

// takeAllOver kills all writers and starts others.
func takeAllOver(t testing.TB, c *cluster, _ *view) {
	for _, w := range c.writers {
		w.kill()
	}
	for _, w := range c.writers {
		w.start()
	}
	c.ready()
}

// moveAll moves every chunk to another shard.
func moveAll(t testing.TB, _ *cluster, v *view) {
	was := map[manifest.ChunkID]manifest.ShardID{}
	coll := v.state().CollectionByName("retried", "docs").ID
	for c := range v.state().Chunks(coll) {
		was[c.ID] = c.Shard
	}
	for deadline := time.Now().Add(time.Minute); ; {
		left := 0
		for c := range v.state().Chunks(coll) {
			if was[c.ID] == c.Shard {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a minute later %d chunks are where they were", left)
		}
		_ = v.move("retried", "docs")
	}
}

// TestRetriedWritesHappenOnce sends writes over plain connections, and the same once more:
// after a lost reply, a takeover, a move, to the other router. The effect is there once, and
// the second reply is the first, byte by byte.
func TestRetriedWritesHappenOnce(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 3)
	client := c.client()
	c.shard(client, "retried.docs")
	v := newView(t, c.store)
	coll := client.Database("retried").Collection("docs")
	perRound := max(len(retriedKinds), *retriedCases/70)
	for n, round := 0, 0; n < *retriedCases; round++ {
		s, wide := retriedScenarios[round%len(retriedScenarios)], round/len(retriedScenarios)%2 == 1
		var cases []*writeCase
		var before []any
		for range perRound {
			w := newCase(n, wide)
			cases = append(cases, w)
			before = append(before, counter(w.id("a", wide, n), 0), counter(w.id("b", wide, n), 0))
			n++
		}
		if _, err := coll.InsertMany(context.Background(), before); err != nil {
			t.Fatal(err)
		}
		each(cases, func(i int, w *writeCase) {
			if !s.lost {
				w.first = w.ask(t, c.routers[0])
				return
			}
			conn := dialWire(t, c.routers[0])
			conn.send(t, w.cmd)
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			conn.Close()
		})
		s.between(t, c, v)
		each(cases, func(i int, w *writeCase) {
			w.again(t, c.routers[(round+i)%2], s.name)
			w.again(t, c.routers[(round+i+1)%2], s.name+", for the third time")
		})
		for i, w := range cases {
			w.audit(t, coll, s.name, n-perRound+i, wide)
		}
	}
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, c.store)
}

// each runs the cases, eight at a time.
func each(cases []*writeCase, do func(i int, w *writeCase)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, w := range cases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i, w)
		})
	}
	wg.Wait()
}

// audit requires what a case's write leaves, done once.
func (w *writeCase) audit(t testing.TB, coll *mongo.Collection, after string, n int, wide bool) {
	t.Helper()
	for _, letter := range []string{"a", "b", "c", "d"} {
		var doc struct{ N int64 }
		want, there := retriedKinds[w.kind].left[letter]
		err := coll.FindOne(context.Background(), byID(w.id(letter, wide, n))).Decode(&doc)
		if (err == nil) != there || doc.N != want {
			t.Errorf("%s %s after %s: %s is %d, %v; want %d, there: %v", retriedKinds[w.kind].name, w.name, after, letter, doc.N, err, want, there)
		}
	}
}
