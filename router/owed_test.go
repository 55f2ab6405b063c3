package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// toAndFro is n inserts, each for another chunk and shard than the one before.
func toAndFro(t *testing.T, n int) (list []router.Statement) {
	for i := range n {
		list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d, "v": 1}`, i, i%3*10+5)))
	}
	return list
}

// slowLog has each append to a log take so long.
func slowLog(d time.Duration) faultbucket.Plan {
	return func(c faultbucket.Call) (f faultbucket.Fault) {
		if c.Verb == layer.Put && strings.HasPrefix(c.Key, "wal/") {
			f = faultbucket.Fault{Kind: faultbucket.Slow, Delay: d}
		}
		return f
	}
}

func TestOrderedInsertsWaitOnceHoweverOftenTheShardChanges(t *testing.T) {
	const put = 50 * time.Millisecond
	in(t, routertest.Options{Plan: slowLog(put)}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`)
		start := time.Now()
		write(t, c.Router, toAndFro(t, 300)...)
		if d := time.Since(start); d > 4*put {
			t.Errorf("300 ordered inserts took %v, a PUT takes %v", d, put)
		}
		same(t, 300, sum(t, c.Router))
	})
}

// TestOrderedInsertsStopAtADuplicate: those before it are stored, none behind it.
func TestOrderedInsertsStopAtADuplicate(t *testing.T) {
	in(t, routertest.Options{Plan: slowLog(time.Millisecond)}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`)
		list := toAndFro(t, 30)
		write(t, c.Router, list[17])
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: list, Ordered: true})
		if err != nil || results[17].Err == nil || results[17].Err.Code != mongoerr.DuplicateKey {
			t.Fatalf("%+v, %v", results[17], err)
		}
		for i, res := range results {
			if res.Done != (i <= 17) || i < 17 && res.N != 1 {
				t.Fatalf("statement %d: %+v", i, res)
			}
		}
		same(t, 18, sum(t, c.Router))
	})
}

// TestWhatAnOwnerOnlyDecidedIsSentAgain: its log gets nothing any more, and another process
// takes the shard over, which never heard of the inserts.
func TestWhatAnOwnerOnlyDecidedIsSentAgain(t *testing.T) {
	var dead atomic.Bool
	plan := func(c faultbucket.Call) (f faultbucket.Fault) {
		if dead.Load() && c.Verb == layer.Put && strings.HasPrefix(c.Key, "wal/shard02/00000000000000000001/") && c.Size > 200 { // no seal
			f.Kind = faultbucket.Stuck
		}
		return f
	}
	in(t, routertest.Options{Plan: plan}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`)
		write(t, c.Router, toAndFro(t, 3)...)
		dead.Store(true)
		asked := 0
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "write" && m.Write.After != (manifest.Position{}) && m.Shard == "shard02" {
				if asked++; asked == 1 {
					c.Unplug("shard02")
					return routertest.LoseRequest
				}
			}
			return routertest.Deliver
		})
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: toAndFro(t, 60)[3:], Ordered: true, MaxTime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for i, res := range results {
			if res.Err != nil || !res.Done || res.N != 1 {
				t.Fatalf("statement %d: %+v", i, res)
			}
		}
		same(t, 60, sum(t, c.Router))
		if s := c.State().Shard("shard02"); s.Epoch < 2 || asked == 0 {
			t.Errorf("epoch %d, asked %d times", s.Epoch, asked)
		}
	})
}
