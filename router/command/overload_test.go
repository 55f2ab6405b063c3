package command

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router/routertest"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// do runs a command on database db.
func do(t *testing.T, s *Commands, json string) bson.Raw {
	t.Helper()
	return s.Do(context.Background(), raw(t, strings.TrimSuffix(json, "}")+`, "$db": "db"}`))
}

// wantOK requires success.
func wantOK(t *testing.T, reply bson.Raw) bson.Raw {
	t.Helper()
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
		t.Fatalf("%s", reply)
	}
	return reply
}

// TestEveryCommandEndsWithItsTimeLimit: with a cluster that does not answer, and a time limit,
// each command that reads or writes ends with MaxTimeMSExpired when the limit is over.
func TestEveryCommandEndsWithItsTimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		s := New(c.Router, nil)
		defer s.cursors.closeAll(context.Background())
		for i := range 10 {
			wantOK(t, do(t, s, fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "v": %d}]}`, i, i)))
		}
		cursor := wantOK(t, do(t, s, `{"find": "c", "batchSize": 1}`)).Lookup("cursor", "id").Int64()
		c.Fate(func(routertest.Message) routertest.Fate { return routertest.LoseRequest })
		for _, cmd := range []string{
			`{"find": "c", "filter": {"v": 3}}`,
			fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, cursor),
			`{"count": "c", "query": {"v": 3}}`,
			`{"distinct": "c", "key": "v"}`,
			`{"aggregate": "c", "pipeline": [{"$group": {"_id": "$v"}}], "cursor": {}}`,
			`{"aggregate": "c", "pipeline": [{"$match": {"v": 1}}, {"$count": "n"}], "cursor": {}}`,
			`{"insert": "c", "documents": [{"_id": 100}]}`,
			`{"update": "c", "updates": [{"q": {"v": 3}, "u": {"$set": {"w": 1}}, "multi": true}]}`,
			`{"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"w": 1}}}]}`,
			`{"delete": "c", "deletes": [{"q": {"v": 3}, "limit": 0}]}`,
			`{"findAndModify": "c", "query": {"v": 3}, "update": {"$set": {"w": 1}}}`,
		} {
			start := time.Now()
			reply := do(t, s, strings.TrimSuffix(cmd, "}")+`, "maxTimeMS": 700}`)
			if code := reply.Lookup("code").Int32(); code != int32(mongoerr.MaxTimeMSExpired) && !strings.HasPrefix(cmd, `{"getMore"`) {
				t.Errorf("%s: %s", cmd, reply)
			}
			if took := time.Since(start); took > 750*time.Millisecond {
				t.Errorf("%s: took %v", cmd, took)
			}
		}
	})
}

// TestStagesEndWithTheTimeLimit: stages that make very many documents of few, which nobody has
// to be asked for, end when the limit is over, too.
func TestStagesEndWithTheTimeLimit(t *testing.T) {
	t.Parallel()
	c := routertest.New(t, routertest.Options{Shards: 1}) // time is real: the work is what takes it
	s := New(c.Router, nil)
	defer s.cursors.closeAll(context.Background())
	array := "[" + strings.TrimSuffix(strings.Repeat("1,", 300), ",") + "]"
	wantOK(t, do(t, s, `{"insert": "c", "documents": [{"_id": 1, "a": `+array+`, "b": `+array+`, "c": `+array+`}]}`))
	start := time.Now()
	reply := do(t, s, `{"aggregate": "c", "pipeline": [{"$unwind": "$a"}, {"$unwind": "$b"}, {"$unwind": "$c"}, {"$group": {"_id": null, "n": {"$sum": "$a"}, "m": {"$sum": "$b"}}}], "cursor": {}, "maxTimeMS": 100}`)
	if code, _ := reply.Lookup("code").AsInt64OK(); code != int64(mongoerr.MaxTimeMSExpired) {
		t.Errorf("%s", reply)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestCommandsAreRefusedWhenTheGateIsFull: who asks for work is refused, with labels; who asks
// how things are, or frees something, is answered; serverStatus shows the bounds.
func TestCommandsAreRefusedWhenTheGateIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		pot := admission.NewPot(1 << 20)
		gate := admission.New(c.Host, admission.Settings{Most: 1})
		s := New(c.Router, &Options{Gate: gate, Sorts: pot.Account("sorts", 50), Bounds: pot.Bounds})
		defer s.cursors.closeAll(context.Background())
		wantOK(t, do(t, s, `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`))
		cursor := wantOK(t, do(t, s, `{"find": "c", "batchSize": 1}`)).Lookup("cursor", "id").Int64()
		pass, err := gate.Enter(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for _, cmd := range []string{`{"find": "c"}`, `{"insert": "c", "documents": [{"_id": 3}]}`, `{"create": "d"}`} {
			reply := do(t, s, cmd)
			if labels := reply.Lookup("errorLabels").String(); reply.Lookup("code").Int32() != int32(mongoerr.ExceededTimeLimit) || !strings.Contains(labels, `"SystemOverloadedError","RetryableError"`) {
				t.Errorf("%s: %s", cmd, reply)
			}
		}
		if took := time.Since(start); took > 3*50*time.Millisecond {
			t.Errorf("refused after %v", took)
		}
		_, e := s.Admit(t.Context(), wire.Glance{Command: []byte("insert"), Retryable: true})
		if e == nil || !strings.Contains(strings.Join(e.Labels, " "), "RetryableWriteError") {
			t.Errorf("a write that can be sent again: %v", e)
		}
		for _, g := range []wire.Glance{{Command: []byte("ping")}, {Command: []byte("getMore")}, {Command: []byte("nonsense")}, {}} {
			if e := s.Full(g); e != nil {
				t.Errorf("%q, which is still on its way: %v", g.Command, e)
			}
		}
		ctx, gone := context.WithCancel(t.Context())
		gone()
		if _, e := s.Admit(ctx, wire.Glance{Command: []byte("find")}); e == nil || e.Code != mongoerr.Interrupted {
			t.Errorf("who has gone: %v", e)
		}
		wantOK(t, do(t, s, `{"ping": 1}`))
		wantOK(t, do(t, s, fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, cursor)))
		status := wantOK(t, do(t, s, `{"serverStatus": 1}`)).Lookup("granary", "bounds").Array()
		vs, _ := status.Values()
		if got := vs[0].String(); got != `{"name": "requests","used": {"$numberLong":"1"},"limit": {"$numberLong":"1"},"waiting": {"$numberLong":"0"},"refused": {"$numberLong":"4"}}` {
			t.Errorf("serverStatus: %s", got)
		}
		if len(vs) != 3 {
			t.Errorf("%d bounds", len(vs))
		}
		gate.Leave(pass)
		wantOK(t, do(t, s, `{"find": "c"}`))
		if b := gate.Bound(); b.Used != 0 {
			t.Errorf("%+v", b)
		}
	})
}

// TestStagesShareTheirMemory: one pipeline holds what there is, another is refused, and may
// run when the first has ended.
func TestStagesShareTheirMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		pot := admission.NewPot(2500 << 10)
		s := New(c.Router, &Options{Sorts: pot.Account("sorts", 100)})
		defer s.cursors.closeAll(context.Background())
		for i := range 30 {
			wantOK(t, do(t, s, fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "s": "%s"}]}`, i, strings.Repeat("x", 10_000))))
		}
		group := `{"aggregate": "c", "pipeline": [{"$project": {"s": 1}}, {"$sort": {"s": 1}}], "cursor": {"batchSize": 1}}`
		first := wantOK(t, do(t, s, group))
		var reply bson.Raw
		for range 10 {
			if reply = do(t, s, group); reply.Lookup("code").Type != 0 {
				break
			}
		}
		if code, _ := reply.Lookup("code").AsInt64OK(); code != int64(mongoerr.ExceededTimeLimit) || !strings.Contains(reply.String(), "sorts have") {
			t.Errorf("%s", reply)
		}
		killed := wantOK(t, do(t, s, fmt.Sprintf(`{"killCursors": "c", "cursors": [{"$numberLong": "%d"}]}`, first.Lookup("cursor", "id").Int64())))
		if n, _ := killed.Lookup("cursorsKilled").Array().Values(); len(n) != 1 {
			t.Errorf("%s", killed)
		}
		wantOK(t, do(t, s, group))
	})
}
