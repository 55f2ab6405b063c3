package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// lossy loses a tenth of the writes on the way there and a tenth on the way back.
func lossy(c *routertest.Cluster, seed uint64) { lossyBy(c, seed, 10) }

// lossyBy loses one of n writes on the way there, and one on the way back.
func lossyBy(c *routertest.Cluster, seed uint64, n int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	c.Fate(func(m routertest.Message) routertest.Fate {
		mu.Lock()
		defer mu.Unlock()
		if i := rng.IntN(n); m.Verb == "write" && i < 2 {
			return routertest.Fate(i + 1)
		}
		return routertest.Deliver
	})
}

// TestEveryWriteHappensOnceThoughMessagesAreLost sends increments of all kinds while
// messages get lost and chunks are moved and split: each is in the end exactly once in the sum.
func TestEveryWriteHappensOnceThoughMessagesAreLost(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				thirds(t, c.Router)
				rows(t, c.Router, 30)
				coll := c.State().CollectionByName("db", "c")
				want := 135
				lossy(c, seed)
				rng := rand.New(rand.NewPCG(seed, 2))
				for i := range 60 {
					id := rng.IntN(30)
					s := updateOf(t, fmt.Sprintf(`{"_id": %d}`, id), `{"$inc": {"v": 1}}`)
					switch rng.IntN(5) {
					case 1:
						s.Filter = raw(t, `{"v": {"$gte": 0}}`)
					case 2:
						s.Filter, s.Multi = raw(t, `{"_id": {"$gte": 5, "$lt": 25}}`), true
						want += 19
					case 3:
						s.Filter, s.Upsert = raw(t, fmt.Sprintf(`{"new": %d}`, i)), true
					case 4:
						s = insertOf(t, fmt.Sprintf(`{"_id": %d, "v": 1}`, 100+i))
					}
					want++
					write(t, c.Router, s)
					if i%7 == 3 {
						split(t, c, coll, rng.IntN(28)*1+1)
					}
					if i%7 == 6 {
						from := c.State().ChunkOf(coll.ID, key(t, coll, id)).Shard
						to := []manifest.ShardID{"shard01", "shard02", "shard03"}[rng.IntN(3)]
						if from != to {
							c.Move(coll, key(t, coll, id), to)
						}
					}
				}
				c.Fate(nil)
				same(t, want, sum(t, c.NewRouter(router.Settings{})))
			})
		})
	}
}

// TestAWriteThatAClientSendsAgainHappensOnce sends retryable statements twice, through
// another router, after the map has changed: the second answer is the first.
func TestAWriteThatAClientSendsAgainHappensOnce(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 30) // one chunk
		coll := c.State().CollectionByName("db", "c")
		find1 := updateOf(t, `{"v": {"$gte": 0, "$lt": 100}}`, `{"$inc": {"v": 100}}`)
		find1.Return = rpc.ReturnAfter
		statements := []router.Statement{
			find1, deleteOf(t, `{"v": {"$lt": 100}}`), insertOf(t, `{"_id": 50, "v": 1}`), upsert(updateOf(t, `{"x": 1}`, `{"$set": {"v": 3}}`)),
			updateOf(t, `{"_id": 12}`, `{"$inc": {"v": 1}}`), updateOf(t, `{"v": 123456}`, `{"$inc": {"v": 1}}`),
			upsert(updateOf(t, `{"_id": 60}`, `{"$inc": {"v": 1}}`)),
		}
		for round := range 4 {
			for i, s := range statements {
				id := session(byte(10*round+i), 1)
				if s.Kind == rpc.Insert {
					s.Doc = raw(t, fmt.Sprintf(`{"_id": %d, "v": 1}`, 50+round))
				}
				var first router.Result
				for try := range 3 {
					r := c.NewRouter(router.Settings{})
					results, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: id})
					if err != nil || results[0].Err != nil {
						t.Fatalf("round %d, statement %d, try %d: %+v, %v", round, i, try, results, err)
					}
					if try == 0 {
						first = results[0]
						n := len(find(t, c.Router, `{}`))
						switch round {
						case 1:
							split(t, c, coll, 3+i)
						case 2:
							at := c.State().ChunkOf(coll.ID, key(t, coll, i))
							c.Move(coll, key(t, coll, i), map[manifest.ShardID]manifest.ShardID{"shard01": "shard02", "shard02": "shard03", "shard03": "shard01"}[at.Shard])
						}
						same(t, n, len(find(t, c.Router, `{}`)))
					} else if results[0].N != first.N || results[0].Modified != first.Modified || !slices.Equal(results[0].Value, first.Value) ||
						!results[0].UpsertedID.Equal(first.UpsertedID) {
						t.Fatalf("round %d, statement %d, try %d: %+v, first %+v", round, i, try, results[0], first)
					}
				}
			}
		}
	})
}

// TestTwoTriesAtOnceChangeOneDocument: a client's second try runs while the first is still
// under way, and both concern one document that the filter does not name.
func TestTwoTriesAtOnceChangeOneDocument(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		for txn := range int64(10) {
			before := len(find(t, c.Router, `{}`))
			done := make(chan error)
			for range 3 {
				r := c.NewRouter(router.Settings{})
				go func() {
					s := deleteOf(t, `{"v": {"$gte": 0}}`)
					results, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: session(1, txn)})
					if err == nil && results[0].N != 1 {
						err = fmt.Errorf("%+v", results[0])
					}
					done <- err
				}()
			}
			for range 3 {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			same(t, before-1, len(find(t, c.Router, `{}`)))
		}
	})
}

// TestAChosenRowThatChangesIsChosenAgain changes the document between the search and the
// write, each of the first few times.
func TestAChosenRowThatChangesIsChosenAgain(t *testing.T) {
	for _, retry := range []*router.Retry{nil, session(3, 1)} {
		t.Run(fmt.Sprint(retry != nil), func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				thirds(t, c.Router)
				rows(t, c.Router, 30)
				other := c.NewRouter(router.Settings{})
				stolen := 0
				c.Fate(func(m routertest.Message) routertest.Fate {
					if m.Verb != "write" || stolen == 3 || m.Write.Ops[0].Kind != rpc.Update || m.Write.Ops[0].Key == nil {
						return routertest.Deliver
					}
					stolen++
					c.Fate(nil)
					s := updateOf(t, `{"v": 3}`, `{"$set": {"v": 1000}}`)
					s.Sort = raw(t, `{"_id": 1}`)
					write(t, other, s)
					return routertest.Deliver
				})
				s := updateOf(t, `{"v": 3}`, `{"$set": {"v": 2000}}`)
				s.Sort = raw(t, `{"_id": 1}`)
				results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: retry})
				if err != nil || results[0].N != 1 {
					t.Fatalf("%+v, %v", results, err)
				}
				same(t, 1, stolen)
				same(t, []string{doc(3, 1000), doc(13, 2000), doc(23, 3)}, find(t, c.Router, `{"_id": {"$in": [3, 13, 23]}}`, sorted(t, `{"_id": 1}`)))
			})
		})
	}
}

// TestARacedUpsertBecomesAnUpdate inserts the document right before an upsert does.
func TestARacedUpsertBecomesAnUpdate(t *testing.T) {
	for _, retry := range []*router.Retry{nil, session(4, 1)} {
		for _, multi := range []bool{false, true} {
			if multi && retry != nil {
				continue
			}
			t.Run(fmt.Sprint(retry != nil, multi), func(t *testing.T) {
				in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
					shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`)
					other := c.NewRouter(router.Settings{})
					c.Fate(func(m routertest.Message) routertest.Fate {
						if m.Verb == "write" && m.Write.Ops[0].Kind == rpc.Insert {
							c.Fate(nil)
							write(t, other, insertOf(t, `{"_id": 1, "k": 15, "v": 5}`))
						}
						return routertest.Deliver
					})
					s := upsert(updateOf(t, `{"_id": 1}`, `{"$set": {"k": 15}, "$inc": {"v": 1}}`))
					s.Multi = multi
					results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: retry})
					if err != nil || results[0].Err != nil || results[0].N != 1 || results[0].UpsertedID.Type != 0 {
						t.Fatalf("%+v, %v", results, err)
					}
					same(t, 6, sum(t, c.Router))
				})
			})
		}
	}
}

// TestAnUnknownOutcomeIsSaidToBeUnknown loses every answer: a client that can try again is
// told to, and its next try gets the outcome.
func TestAnUnknownOutcomeIsSaidToBeUnknown(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 3)
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "write" {
				return routertest.LoseReply
			}
			return routertest.Deliver
		})
		s := updateOf(t, `{"_id": 1}`, `{"$inc": {"v": 10}}`)
		w := router.Writes{Statements: []router.Statement{s}, Retry: session(5, 1), MaxTime: time.Second}
		_, err := c.Router.Write(context.Background(), ns, w)
		if m := wantCode(t, err, mongoerr.RetryableInternal); !slices.Contains(m.Labels, router.RetryableWrite) {
			t.Fatalf("labels %v", m.Labels)
		}
		_, err = c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, MaxTime: time.Second})
		if m := wantCode(t, err, mongoerr.MaxTimeMSExpired); len(m.Labels) > 0 {
			t.Fatalf("labels %v", m.Labels)
		}
		c.Fate(nil)
		results, err := c.NewRouter(router.Settings{}).Write(context.Background(), ns, w)
		if err != nil || results[0].Modified != 1 {
			t.Fatalf("%+v, %v", results, err)
		}
		same(t, []string{doc(1, 21)}, find(t, c.Router, `{"_id": 1}`))
	})
}

// TestAFailureAfterALostRequestIsFinal loses a request and then gets a failure: the lost one
// must not be applied when it arrives after all.
func TestAFailureAfterALostRequestIsFinal(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 3)
		var late *rpc.WriteRequest
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "write" && late == nil {
				late = m.Write
				return routertest.LoseRequest
			}
			return routertest.Deliver
		})
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{insertOf(t, `{"_id": 1, "late": true}`)}})
		if err != nil || results[0].Err.Code != mongoerr.DuplicateKey {
			t.Fatalf("%+v, %v", results, err)
		}
		write(t, c.Router, deleteOf(t, `{"_id": 1}`))
		owner, err := c.Dial("shard01", c.State().Shard("shard01").Holder, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := owner.Write(context.Background(), late); err != nil {
			t.Fatal(err)
		}
		same(t, 2, len(find(t, c.Router, `{}`)))
	})
}

// TestARefusedInsertFailsAgain: the second try of an insert that failed after a lost request
// fails as the first one did, and not silently.
func TestARefusedInsertFailsAgain(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 3)
		var once sync.Once
		c.Fate(func(m routertest.Message) (f routertest.Fate) {
			if m.Verb == "write" {
				once.Do(func() { f = routertest.LoseRequest })
			}
			return f
		})
		for range 3 {
			w := router.Writes{Statements: []router.Statement{insertOf(t, `{"_id": 1}`)}, Retry: session(7, 1)}
			results, err := c.NewRouter(router.Settings{}).Write(context.Background(), ns, w)
			if err != nil || results[0].Err == nil || results[0].Err.Code != mongoerr.DuplicateKey {
				t.Fatalf("%+v, %v", results, err)
			}
		}
	})
}

// TestARetryableStatementMeetsAStaleMap sends statements that do not name the key on a map
// on which one chunk decides, though there are two by now.
func TestARetryableStatementMeetsAStaleMap(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 30)
		coll := c.State().CollectionByName("db", "c")
		for txn := range int64(5) {
			split(t, c, coll, 5+3*int(txn))
			for try := range 2 {
				s := updateOf(t, `{"v": {"$lt": 100}}`, `{"$inc": {"v": 100}}`)
				results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: session(8, txn)})
				if err != nil || results[0].N != 1 {
					t.Fatalf("try %d: %+v, %v", try, results, err)
				}
			}
		}
		same(t, 135+500, sum(t, c.Router))
	})
}

func TestAWriteWithoutAWriterSaysHowToStartOne(t *testing.T) {
	in(t, routertest.Options{Held: -1}, func(t *testing.T, c *routertest.Cluster) {
		r := router.New(router.Config{Root: c.Root, Dialer: c, Host: c.Host})
		_, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{insertOf(t, `{"_id": 1}`)}, MaxTime: time.Second})
		m := wantCode(t, err, mongoerr.MaxTimeMSExpired)
		same(t, "operation exceeded time limit: ask shard shard01: no writer holds it, start one with granary writer --any: unreachable", m.Message)
	})
}

// TestEveryRetryableWriteHappensOnce is the same with a client that gives up soon, and sends
// the statement again through another router, until it has an answer.
func TestEveryRetryableWriteHappensOnce(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				rows(t, c.Router, 30)
				coll := c.State().CollectionByName("db", "c")
				routers := []*router.Router{c.Router, c.NewRouter(router.Settings{}), c.NewRouter(router.Settings{})}
				want := 135
				lossyBy(c, seed, 6)
				rng := rand.New(rand.NewPCG(seed, 2))
				for txn := range int64(40) {
					s := updateOf(t, `{"v": {"$gte": 0}}`, `{"$inc": {"v": 1}}`)
					switch rng.IntN(5) {
					case 0:
						s.Sort = raw(t, `{"v": -1}`)
					case 1:
						s.Filter, s.Upsert = raw(t, fmt.Sprintf(`{"new": %d}`, txn)), true
					case 2:
						s.Filter = raw(t, fmt.Sprintf(`{"_id": {"$gte": %d}}`, rng.IntN(20)))
					case 3:
						s = insertOf(t, fmt.Sprintf(`{"_id": %d, "v": 1}`, 100+txn))
					}
					want++
					for try := 0; ; try++ {
						w := router.Writes{Statements: []router.Statement{s}, Retry: session(9, txn), MaxTime: time.Duration(1+rng.IntN(20)) * time.Millisecond}
						results, err := routers[rng.IntN(3)].Write(context.Background(), ns, w)
						if err == nil {
							if results[0].N != 1 {
								t.Fatalf("txn %d, try %d: %+v", txn, try, results[0])
							}
							break
						}
						if try > 500 {
							t.Fatal(err)
						}
						if rng.IntN(4) == 0 {
							split(t, c, coll, 1+rng.IntN(28))
						}
					}
					if txn%9 == 8 { // another writer takes a shard over
						if err := c.Claim(context.Background(), []manifest.ShardID{"shard01", "shard02", "shard03"}[rng.IntN(3)]); err != nil {
							t.Fatal(err)
						}
					}
					if txn%5 == 4 {
						id := rng.IntN(30)
						from := c.State().ChunkOf(coll.ID, key(t, coll, id)).Shard
						if to := []manifest.ShardID{"shard01", "shard02", "shard03"}[rng.IntN(3)]; from != to {
							c.Move(coll, key(t, coll, id), to)
						}
					}
				}
				c.Fate(nil)
				same(t, want, sum(t, c.NewRouter(router.Settings{})))
			})
		})
	}
}
