package command

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/granarydb/granary/router/routertest"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// asks counts the requests that shards get.
type asks struct {
	mu   sync.Mutex
	sent map[string]map[string]int // verb, shard
}

func listen(c *routertest.Cluster) *asks {
	a := &asks{}
	a.reset()
	c.Fate(func(m routertest.Message) routertest.Fate {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.sent[m.Verb] == nil {
			a.sent[m.Verb] = map[string]int{}
		}
		a.sent[m.Verb][string(m.Shard)]++
		return routertest.Deliver
	})
	return a
}

func (a *asks) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = map[string]map[string]int{}
}

// reads are the requests for rows by shard, since the last reset.
func (a *asks) reads() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := maps.Clone(a.sent["read"])
	for shard, k := range a.sent["cursor"] {
		n[shard] += k
	}
	return n
}

func (a *asks) shards(verb string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.sent[verb]))
}

// client runs commands; a failure fails the test.
type client struct {
	t *testing.T
	s *Commands
}

func (c client) run(json string) bson.Raw {
	c.t.Helper()
	reply := c.ask(json)
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
		c.t.Fatalf("%s: %v", json, reply)
	}
	return reply
}

// ask is run that may fail.
func (c client) ask(json string) bson.Raw {
	c.t.Helper()
	body := raw(c.t, json)
	e, err := body.IndexErr(0)
	if err != nil {
		c.t.Fatal(err)
	}
	db := "db"
	if cmd := c.s.table[e.Key()]; cmd != nil && cmd.Admin {
		db = "admin"
	}
	return c.s.answer(context.Background(), &wire.Request{Command: e.Key(), DB: db, Body: body}, peer{})
}

// keys are the shard keys of these tests, with where their chunks are cut.
var keys = map[string]string{
	"ranged":          `"key": {"a": 1}, "splitPoints": [{"a": 1}, {"a": 2}, {"a": 4}, {"a": 6}]`,
	"compound":        `"key": {"a": 1, "b": 1}, "splitPoints": [{"a": 1}, {"a": 2}, {"a": 2, "b": 5}, {"a": 4}, {"a": 6}]`,
	"hashed":          `"key": {"a": "hashed"}`,
	"compound hashed": `"key": {"a": 1, "b": "hashed"}, "splitPoints": [{"a": 1}, {"a": 3}, {"a": 3, "b": {"$numberLong": "0"}}, {"a": 5}]`,
}

// orders is the cluster of these tests: a collection over several chunks of three shards, and
// the same documents in one of a single chunk.
func orders(t *testing.T, key string) (client, *asks) {
	c := routertest.New(t, routertest.Options{})
	s := New(c.Router, &Options{Program: "test"})
	t.Cleanup(func() { s.cursors.closeAll(context.Background()) })
	cl := client{t, s}
	cl.run(fmt.Sprintf(`{"shardCollection": "db.many", %s}`, keys[key]))
	var docs []string
	for i := range 120 {
		d := fmt.Sprintf(`"a": %d, "b": %d, `, i%8, i/8)
		switch i % 11 {
		case 0:
			d = fmt.Sprintf(`"a": %d, `, i%8)
		case 5:
			d = ""
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, %s"v": %d}`, i, d, i*7%30))
	}
	for _, name := range []string{"many", "one"} {
		cl.run(fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, name, strings.Join(docs, ",")))
	}
	return cl, listen(c)
}

func executed(reply bson.Raw) (shards []string, requests map[string]int) {
	requests = map[string]int{}
	list, _ := reply.Lookup("executionStats", "executionStages", "shards").ArrayOK()
	values, _ := list.Values()
	for _, v := range values {
		name := v.Document().Lookup("shardName").StringValue()
		shards = append(shards, name)
		requests[name] = int(v.Document().Lookup("requests").AsInt64())
	}
	slices.Sort(shards)
	return shards, requests
}

func planShards(reply bson.Raw) (shards []string) {
	list, _ := reply.Lookup("queryPlanner", "winningPlan", "shards").ArrayOK()
	values, _ := list.Values()
	for _, v := range values {
		shards = append(shards, v.Document().Lookup("shardName").StringValue())
	}
	slices.Sort(shards)
	return shards
}

func drawCondition(r *rand.Rand) string {
	n := func() int { return r.IntN(9) - 1 }
	switch r.IntN(8) {
	case 0:
		return fmt.Sprintf(`{"$in": [%d, %d]}`, n(), n())
	case 1:
		return fmt.Sprintf(`{"$gt": %d, "$lte": %d}`, n(), n()+2)
	case 2:
		return fmt.Sprintf(`{"$lt": %d}`, n())
	case 3:
		return `null`
	case 4:
		return fmt.Sprintf(`{"$ne": %d}`, n())
	default:
		return fmt.Sprint(n())
	}
}

func drawFilter(r *rand.Rand) string {
	switch r.IntN(6) {
	case 0:
		return fmt.Sprintf(`{"$or": [%s, %s]}`, drawFilter(r), drawFilter(r))
	case 1:
		return fmt.Sprintf(`{"a": %s, "b": %s}`, drawCondition(r), drawCondition(r))
	case 2:
		return fmt.Sprintf(`{"v": {"$lt": %d}}`, r.IntN(30))
	case 3:
		return fmt.Sprintf(`{"b": %s}`, drawCondition(r))
	}
	return fmt.Sprintf(`{"a": %s}`, drawCondition(r))
}

// TestExplainTellsWhatHappens explains random commands, and runs them: the shards and requests
// of executionStats are those that were asked, the plan's shards are the ones that the command
// itself asks, and documents are those of a collection with a single chunk.
func TestExplainTellsWhatHappens(t *testing.T) {
	for key := range keys {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { explainReads(t, key) })
		})
	}
}

func explainReads(t *testing.T, key string) {
	cl, a := orders(t, key)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		if i%10 == 9 {
			cl.rearrange(r)
		}
		command := drawRead(r, drawFilter(r))
		many := fmt.Sprintf(command, "many")
		a.reset()
		x := cl.run(fmt.Sprintf(`{"explain": %s, "verbosity": "executionStats"}`, many))
		shards, requests := executed(x)
		if got := a.reads(); !maps.Equal(got, requests) {
			t.Fatalf("%s: explain says %v, asked were %v", many, requests, got)
		}
		a.reset()
		reply := cl.run(many)
		asked := a.shards("read")
		if !slices.Equal(asked, shards) {
			t.Fatalf("%s: explain says %v, the command asked %v", many, shards, asked)
		}
		inOrder := x.Lookup("queryPlanner", "winningPlan", "inKeyOrder").Type != 0
		if planned := planShards(x); !inOrder && !slices.Equal(planned, asked) {
			t.Fatalf("%s: the plan says %v, the command asked %v", many, planned, asked)
		}
		if one := cl.run(fmt.Sprintf(command, "one")); results(t, one, many) != results(t, reply, many) {
			t.Fatalf("%s:\n%v\nbut of one chunk\n%v", many, reply, one)
		}
		stats := x.Lookup("executionStats").Document()
		if n := reply.Lookup("n"); n.Type != 0 && n.AsInt64() != countedIn(stats) {
			t.Fatalf("%s: counts %v, explain says %v", many, n, stats)
		} else if n.Type == 0 && int64(count(reply)) != stats.Lookup("nReturned").AsInt64() {
			t.Fatalf("%s: %d documents, explain says %v", many, count(reply), stats)
		}
	}
}

// rearrange moves a chunk, cuts one, or puts neighbours together. The router sees it at once: a
// request that a shard refuses, planned on an older map, is none that answers.
func (c client) rearrange(r *rand.Rand) {
	c.t.Helper()
	shard := fmt.Sprintf("shard%02d", 1+r.IntN(3))
	switch r.IntN(4) {
	case 0:
		_ = c.ask(fmt.Sprintf(`{"split": "db.many", "find": {"a": %d, "b": %d}}`, r.IntN(8), r.IntN(16))) // it may have one value
	case 1:
		c.run(fmt.Sprintf(`{"mergeAllChunksOnShard": "db.many", "shard": %q}`, shard))
	default:
		c.run(fmt.Sprintf(`{"moveChunk": "db.many", "find": {"a": %d, "b": %d}, "to": %q}`, r.IntN(8), r.IntN(16), shard))
	}
	c.run(`{"flushRouterConfig": 1}`)
}

// drawRead is a command of any kind with a filter; %s stands for the collection.
func drawRead(r *rand.Rand, filter string) string {
	find := fmt.Sprintf(`{"find": "%%s", "batchSize": 1000, "filter": %s`, filter)
	aggregate := fmt.Sprintf(`{"aggregate": "%%s", "cursor": {"batchSize": 1000}, "pipeline": [{"$match": %s}, `, filter)
	return []string{
		find + `}`,
		find + fmt.Sprintf(`, "sort": {"v": -1, "_id": 1}, "skip": %d, "limit": %d}`, r.IntN(5), r.IntN(9)),
		find + fmt.Sprintf(`, "sort": {"a": 1, "b": 1, "_id": 1}, "skip": %d, "limit": %d}`, r.IntN(5), r.IntN(9)),
		find + fmt.Sprintf(`, "sort": {"a": -1, "b": -1, "_id": -1}, "limit": %d}`, r.IntN(30)),
		find + fmt.Sprintf(`, "sort": {"b": 1, "_id": 1}, "limit": %d}`, r.IntN(30)),
		fmt.Sprintf(`{"count": "%%s", "query": %s, "skip": %d, "limit": %d}`, filter, r.IntN(5), r.IntN(9)),
		fmt.Sprintf(`{"distinct": "%%s", "key": "v", "query": %s}`, filter),
		aggregate + `{"$group": {"_id": "$v", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]}`,
		aggregate + `{"$group": {"_id": 1, "n": {"$sum": 1}}}]}`,
	}[r.IntN(9)]
}

func countedIn(stats bson.Raw) int64 {
	return stats.Lookup("executionStages", "nCounted").AsInt64()
}

func count(reply bson.Raw) int {
	v := reply.Lookup("cursor", "firstBatch")
	if v.Type == 0 {
		v = reply.Lookup("values")
	}
	list, _ := v.ArrayOK()
	values, _ := list.Values()
	return len(values)
}

// results are what a reply says, without names; in any order when the command has no sort.
func results(t *testing.T, reply bson.Raw, command string) string {
	t.Helper()
	v := reply.Lookup("cursor", "firstBatch")
	if v.Type == 0 {
		v = reply.Lookup("values")
	}
	if v.Type == 0 {
		return reply.Lookup("n").String()
	}
	list, _ := v.ArrayOK()
	values, _ := list.Values()
	var out []string
	for _, x := range values {
		out = append(out, x.String())
	}
	if !strings.Contains(command, `"sort"`) {
		slices.Sort(out)
	}
	text, _ := json.Marshal(out)
	return string(text)
}

// TestExplainOfAWriteWritesNothing explains writes, and then does them: what it said would be
// matched, changed and removed is, in the shards that the plan says, and both collections have
// the same documents afterwards.
func TestExplainOfAWriteWritesNothing(t *testing.T) {
	for key := range keys {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { explainWrites(t, key) })
		})
	}
}

func explainWrites(t *testing.T, key string) {
	cl, a := orders(t, key)
	r := rand.New(rand.NewPCG(3, 4))
	documents := func(name string) string {
		return results(t, cl.run(fmt.Sprintf(`{"find": %q, "batchSize": 1000, "sort": {"_id": 1}}`, name)), `"sort"`)
	}
	for i := range 100 {
		if i%10 == 9 {
			cl.rearrange(r)
		}
		command := drawWrite(r, drawFilter(r))
		many := fmt.Sprintf(command, "many")
		before := documents("many")
		a.reset()
		x := cl.run(fmt.Sprintf(`{"explain": %s, "verbosity": "executionStats"}`, many))
		if asked := a.shards("write"); len(asked) > 0 || documents("many") != before {
			t.Fatalf("%s: explain wrote to %v", many, asked)
		}
		a.reset()
		reply := cl.run(many)
		for _, shard := range a.shards("write") {
			if !slices.Contains(planShards(x), shard) {
				t.Fatalf("%s: it wrote to %s, the plan says %v", many, shard, planShards(x))
			}
		}
		stages := x.Lookup("executionStats", "executionStages").Document()
		if said, did := saidMatched(stages), didMatch(reply); said != did {
			t.Fatalf("%s: explain says %v, it did %v", many, stages, reply)
		}
		if m := reply.Lookup("nModified"); m.Type != 0 && m.AsInt64() != stages.Lookup("nWouldModify").AsInt64() {
			t.Fatalf("%s: explain says %v, it did %v", many, stages, reply)
		}
		if one := cl.run(fmt.Sprintf(command, "one")); didMatch(one) != didMatch(reply) || documents("one") != documents("many") {
			t.Fatalf("%s:\n%v %v\nbut of one chunk\n%v %v", many, reply, documents("many"), one, documents("one"))
		}
	}
}

// drawWrite is a write of any kind, whose outcome does not depend on the order of documents.
func drawWrite(r *rand.Rand, filter string) string {
	id := fmt.Sprintf(`{"_id": %d}`, r.IntN(130))
	one := fmt.Sprintf(`{"$and": [%s, %s]}`, filter, id)
	return []string{
		fmt.Sprintf(`{"update": "%%s", "updates": [{"q": %s, "u": {"$max": {"v": %d}}, "multi": true}]}`, filter, r.IntN(60)),
		fmt.Sprintf(`{"update": "%%s", "updates": [{"q": %s, "u": {"$inc": {"v": 1}}}]}`, one),
		fmt.Sprintf(`{"delete": "%%s", "deletes": [{"q": {"$and": [%s, %s]}, "limit": 0}]}`, filter, id),
		fmt.Sprintf(`{"delete": "%%s", "deletes": [{"q": %s, "limit": 1}]}`, one),
		fmt.Sprintf(`{"findAndModify": "%%s", "query": %s, "sort": {"v": -1, "_id": 1}, "update": {"$inc": {"v": 1}}}`, filter),
		fmt.Sprintf(`{"findAndModify": "%%s", "query": %s, "remove": true}`, one),
	}[r.IntN(6)]
}

func saidMatched(stages bson.Raw) int64 {
	if n := stages.Lookup("nMatched"); n.Type != 0 {
		return n.AsInt64()
	}
	return stages.Lookup("nWouldDelete").AsInt64()
}

func didMatch(reply bson.Raw) int64 {
	if n := reply.Lookup("n"); n.Type != 0 {
		return n.AsInt64()
	}
	return reply.Lookup("lastErrorObject", "n").AsInt64()
}

// TestAVisitInOrderEndsAtTheLimit: of the shards that a sort by the key would visit, those are
// asked that the limit needs, and no other.
func TestAVisitInOrderEndsAtTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cl, a := orders(t, "compound")
		for _, direction := range []int{1, -1} {
			sort := fmt.Sprintf(`"sort": {"a": %d, "b": %d, "_id": %d}`, direction, direction, direction)
			everything := cl.run(fmt.Sprintf(`{"explain": {"find": "many", %s}, "verbosity": "queryPlanner"}`, sort))
			if n := everything.Lookup("queryPlanner", "winningPlan", "chunks").AsInt64(); n != 6 {
				t.Fatalf("%d chunks", n)
			}
			most := 0
			for limit := 1; limit <= 120; limit++ {
				a.reset()
				if n := count(cl.run(fmt.Sprintf(`{"find": "many", "batchSize": 1000, "limit": %d, %s}`, limit, sort))); n != limit {
					t.Fatalf("%d documents, limit %d", n, limit)
				}
				asked := 0
				for _, n := range a.reads() {
					asked += n
				}
				// One more run is asked only when those before have too little.
				if asked < most || asked > most+1 {
					t.Fatalf("limit %d: %d requests, %d for one less", limit, asked, most)
				}
				most = asked
			}
			if most != 6 {
				t.Fatalf("all documents were found with %d requests", most)
			}
		}
	})
}

// TestExplainCountsWhatTheBucketIsAsked: nothing while an owner has all in memory, and what a
// read of a free shard costs, whose rows are in the bucket only.
func TestExplainCountsWhatTheBucketIsAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		cl := client{t, New(c.Router, nil)}
		cl.run(`{"shardCollection": "db.many", "key": {"a": 1}, "splitPoints": [{"a": 1}, {"a": 2}]}`)
		cl.run(`{"insert": "many", "documents": [{"a": 0}, {"a": 1}, {"a": 2}]}`)
		bucket := func(field string) int64 {
			x := cl.run(`{"explain": {"find": "many"}, "verbosity": "executionStats"}`)
			var sum int64
			list, _ := x.Lookup("executionStats", "executionStages", "shards").ArrayOK()
			values, _ := list.Values()
			for _, v := range values {
				sum += v.Document().Lookup(field).AsInt64()
			}
			if total := x.Lookup("executionStats", field).AsInt64(); total != sum || len(values) != 3 {
				t.Fatalf("%s: %d, of the shards %d: %v", field, total, sum, values)
			}
			return sum
		}
		if n := bucket("bucketRequests"); n != 0 {
			t.Fatalf("%d requests for rows in memory", n)
		}
		for _, h := range c.State().Shards() {
			c.Stop(h.ID)
		}
		if n := bucket("bucketBytes"); n == 0 {
			t.Fatal("no byte for rows in the bucket")
		}
	})
}
