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
	body := raw(c.t, json)
	e, err := body.IndexErr(0)
	if err != nil {
		c.t.Fatal(err)
	}
	db := "db"
	if cmd := c.s.table[e.Key()]; cmd != nil && cmd.Admin {
		db = "admin"
	}
	reply := c.s.answer(context.Background(), &wire.Request{Command: e.Key(), DB: db, Body: body}, peer{})
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
		c.t.Fatalf("%s: %v", json, reply)
	}
	return reply
}

// orders is the cluster of these tests: a collection over six chunks of three shards, and the
// same documents in one of a single chunk.
func orders(t *testing.T) (client, *asks) {
	c := routertest.New(t, routertest.Options{})
	s := New(c.Router, &Options{Program: "test"})
	t.Cleanup(func() { s.cursors.closeAll(context.Background()) })
	cl := client{t, s}
	cl.run(`{"shardCollection": "db.many", "key": {"a": 1, "b": 1}, "splitPoints": [{"a": 1}, {"a": 2}, {"a": 2, "b": 5}, {"a": 4}, {"a": 6}]}`)
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cl, a := orders(t)
		r := rand.New(rand.NewPCG(1, 2))
		for range 400 {
			filter := drawFilter(r)
			command := []string{
				fmt.Sprintf(`{"find": "%%s", "batchSize": 1000, "filter": %s}`, filter),
				fmt.Sprintf(`{"find": "%%s", "batchSize": 1000, "filter": %s, "sort": {"v": -1, "_id": 1}, "skip": %d, "limit": %d}`, filter, r.IntN(5), r.IntN(9)),
				fmt.Sprintf(`{"find": "%%s", "batchSize": 1000, "filter": %s, "sort": {"a": 1, "b": 1, "_id": 1}, "skip": %d, "limit": %d}`, filter, r.IntN(5), r.IntN(9)),
				fmt.Sprintf(`{"find": "%%s", "batchSize": 1000, "filter": %s, "sort": {"a": -1, "b": -1, "_id": -1}, "limit": %d}`, filter, r.IntN(30)),
				fmt.Sprintf(`{"count": "%%s", "query": %s, "skip": %d, "limit": %d}`, filter, r.IntN(5), r.IntN(9)),
				fmt.Sprintf(`{"distinct": "%%s", "key": "v", "query": %s}`, filter),
				fmt.Sprintf(`{"aggregate": "%%s", "pipeline": [{"$match": %s}, {"$group": {"_id": "$v", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {"batchSize": 1000}}`, filter),
				fmt.Sprintf(`{"aggregate": "%%s", "pipeline": [{"$match": %s}, {"$group": {"_id": 1, "n": {"$sum": 1}}}], "cursor": {"batchSize": 1000}}`, filter),
			}[r.IntN(8)]
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
			if n := int64(count(reply)); n != stats.Lookup("nReturned").AsInt64() && reply.Lookup("n").Type == 0 {
				t.Fatalf("%s: %d documents, explain says %v", many, n, stats)
			}
			if n := reply.Lookup("n"); n.Type != 0 && n.AsInt64() != countedIn(stats) {
				t.Fatalf("%s: counts %v, explain says %v", many, n, stats)
			}
		}
	})
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
// matched, changed and removed is.
func TestExplainOfAWriteWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cl, a := orders(t)
		r := rand.New(rand.NewPCG(3, 4))
		for range 150 {
			filter, multi := drawFilter(r), r.IntN(2) == 0
			before := cl.run(`{"aggregate": "many", "pipeline": [{"$group": {"_id": 1, "n": {"$sum": 1}, "v": {"$sum": "$v"}}}], "cursor": {}}`).String()
			for _, command := range []string{
				fmt.Sprintf(`{"update": "many", "updates": [{"q": %s, "u": {"$max": {"v": 20}}, "multi": %t}]}`, filter, multi),
				fmt.Sprintf(`{"delete": "many", "deletes": [{"q": {"$and": [{"v": {"$gt": 27}}, %s]}, "limit": %d}]}`, filter, map[bool]int{true: 0, false: 1}[multi]),
				fmt.Sprintf(`{"findAndModify": "many", "query": %s, "update": {"$inc": {"v": 0}}}`, filter),
			} {
				a.reset()
				x := cl.run(fmt.Sprintf(`{"explain": %s, "verbosity": "executionStats"}`, command))
				if asked := a.shards("write"); len(asked) > 0 {
					t.Fatalf("%s: explain wrote to %v", command, asked)
				}
				if now := cl.run(`{"aggregate": "many", "pipeline": [{"$group": {"_id": 1, "n": {"$sum": 1}, "v": {"$sum": "$v"}}}], "cursor": {}}`).String(); now != before {
					t.Fatalf("%s: explain changed %s to %s", command, before, now)
				}
				a.reset()
				reply := cl.run(command)
				stages := x.Lookup("executionStats", "executionStages").Document()
				said := stages.Lookup("nMatched")
				if said.Type == 0 {
					said = stages.Lookup("nWouldDelete")
				}
				n := reply.Lookup("n")
				if n.Type == 0 {
					n = reply.Lookup("lastErrorObject", "n")
				}
				if n.AsInt64() != said.AsInt64() {
					t.Fatalf("%s: explain says %v, it did %v", command, stages, reply)
				}
				if m := reply.Lookup("nModified"); m.Type != 0 && multi && m.AsInt64() != stages.Lookup("nWouldModify").AsInt64() {
					t.Fatalf("%s: explain says %v, it did %v", command, stages, reply)
				}
				for _, shard := range a.shards("write") {
					if !slices.Contains(planShards(x), shard) {
						t.Fatalf("%s: it wrote to %s, the plan says %v", command, shard, planShards(x))
					}
				}
				before = cl.run(`{"aggregate": "many", "pipeline": [{"$group": {"_id": 1, "n": {"$sum": 1}, "v": {"$sum": "$v"}}}], "cursor": {}}`).String()
			}
		}
	})
}
