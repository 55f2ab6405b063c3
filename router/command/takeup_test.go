package command

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// died has a router that loses the store for ever at its first segment carry out a command, and
// requires that its job stands afterwards.
func died(t *testing.T, c *routertest.Cluster, json string) {
	t.Helper()
	s := New(c.DyingRouter(), nil)
	ctx, die := c.Host.WithTimeout(context.Background(), 20*time.Second)
	defer die()
	if reply := s.Do(ctx, raw(t, json)); reply.Lookup("ok").Double() == 1 || len(c.State().Jobs()) != 1 {
		t.Fatalf("%v, jobs %v", reply, c.State().Jobs())
	}
}

// TestAnotherRouterTakesUpWhatOneDiedOver: a router dies while it reshards, shards, unshards; one
// that lives finishes it, and leaves nothing behind. What somebody aborts, or has given a time
// limit, or of a collection that was dropped and made anew, is left alone.
func TestAnotherRouterTakesUpWhatOneDiedOver(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, command, then, key string
		sharded                  bool
	}{
		{"reshard", `{"reshardCollection": "db.c", "key": {"x": 1}, "numInitialChunks": 2, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}}`, "", `{ x: 1 }`, true},
		{"unshard", `{"unshardCollection": "db.c", "toShard": "shard02"}`, "", `{ _id: 1 }`, false},
		{"shard", `{"shardCollection": "db.plain", "key": {"x": "hashed"}}`, "", `{ k: 1 }`, true},
		{"aborted", `{"reshardCollection": "db.c", "key": {"x": 1}}`, `{"abortReshardCollection": "db.c"}`, `{ k: 1 }`, true},
		{"with a time limit", `{"reshardCollection": "db.c", "key": {"x": 1}, "maxTimeMS": 100000}`, "", `{ k: 1 }`, true},
		{"dropped", `{"reshardCollection": "db.c", "key": {"x": 1}}`, `{"drop": "c", "$db": "db"}`, `{ k: 1 }`, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := routertest.New(t, routertest.Options{})
				s := New(c.NewRouter(router.Settings{}), nil)
				send := func(json string) bson.Raw { return s.Do(context.Background(), raw(t, json)) }
				again := `{"shardCollection": "db.c", "key": {"k": 1}}`
				wantOK(t, send(again))
				for i := range 20 {
					for _, name := range []string{"c", "plain"} {
						wantOK(t, send(fmt.Sprintf(`{"insert": %q, "$db": "db", "documents": [{"_id": %d, "k": %d, "x": %d}]}`, name, i, i, -i)))
					}
				}
				died(t, c, x.command)
				if x.then != "" {
					wantOK(t, send(x.then))
					wantOK(t, send(again))
				}
				ctx, stop := context.WithCancel(context.Background())
				done := make(chan error)
				go func() { done <- s.Run(ctx) }()
				_ = c.Host.Sleep(ctx, 3*time.Minute)
				stop()
				<-done
				st := c.State()
				coll := st.CollectionByName("db", "c")
				if coll.Key.String() != x.key || coll.Sharded != x.sharded {
					t.Errorf("%v, sharded %t", coll.Key, coll.Sharded)
				}
				if plain := st.CollectionByName("db", "plain"); x.name == "shard" && plain.Key.String() != `{ x: "hashed" }` {
					t.Errorf("%v", plain.Key)
				}
				left := x.name == "with a time limit" || x.name == "dropped"
				if (len(st.Jobs()) > 0) != left {
					t.Errorf("jobs %v", st.Jobs())
				}
				c.Check()
			})
		})
	}
}
