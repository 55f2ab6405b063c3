package router_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// altered is a dialer whose owners' read replies a test can change.
type altered struct {
	rpc.Dialer
	mu    sync.Mutex
	reads int
	alter func(n int, r *rpc.ReadReply) error // n counts the reads, from 1
}

type alteredOwner struct {
	rpc.Owner
	d *altered
}

func (d *altered) Dial(shard manifest.ShardID, holder, address string) (rpc.Owner, error) {
	o, err := d.Dialer.Dial(shard, holder, address)
	return &alteredOwner{o, d}, err
}

func (o *alteredOwner) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	reply, err := o.Owner.Read(ctx, r)
	if err != nil {
		return nil, err
	}
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	o.d.reads++
	return reply, o.d.alter(o.d.reads, reply)
}

// TestAnswersOfDifferentDataVersionsAreNotMixed: between the answers of two shards a batch
// changed both. A scatter asks again; a cursor that already gave something ends.
func TestAnswersOfDifferentDataVersionsAreNotMixed(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		later := func(n int) func(int, *rpc.ReadReply) error {
			return func(i int, r *rpc.ReadReply) error {
				if i >= n {
					r.DataVersion++
				}
				return nil
			}
		}
		reader := func(n int) (*router.Router, *altered) {
			d := &altered{Dialer: c, alter: later(n)}
			return router.New(router.Config{Root: c.Root, Dialer: d, Host: c.Host}), d
		}
		r, d := reader(3)
		same(t, 30, len(find(t, r, `{}`)))
		same(t, 6, d.reads)
		r, d = reader(2)
		n, err := r.Count(context.Background(), ns, router.Query{})
		if err != nil || n != 30 || d.reads != 6 {
			t.Fatalf("count %d after %d reads, %v", n, d.reads, err)
		}
		r, _ = reader(2)
		cur, err := r.Find(context.Background(), ns, router.Query{Sort: raw(t, `{"_id": 1}`)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = cur.Batch(context.Background(), 0, 1<<20)
		wantCode(t, err, mongoerr.SnapshotUnavailable)
		d = &altered{Dialer: c, alter: func(i int, _ *rpc.ReadReply) error {
			if i > 1 {
				return nil
			}
			_, err := c.Root.Commit(context.Background(), manifest.Edit{
				Op: c.Host.ID16(), Changes: []manifest.Change{manifest.RaiseDataVersion{Collection: 1}},
			})
			return err
		}}
		r = router.New(router.Config{Root: c.Root, Dialer: d, Host: c.Host})
		// The first run has no match: nothing was given yet.
		same(t, []string{doc(13, 3), doc(23, 3)}, find(t, r, `{"_id": {"$gte": 5}, "v": 3}`, sorted(t, `{"_id": 1}`)))
		same(t, 4, d.reads)
	})
}

// TestAnAnswerThatIsNoneIsCorrupt: rows that are not as the contract has them are never
// guessed at.
func TestAnAnswerThatIsNoneIsCorrupt(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		d := &altered{Dialer: c, alter: func(_ int, r *rpc.ReadReply) error {
			for i := range r.Docs {
				r.Docs[i] = raw(t, `{"x": 1}`)
			}
			return nil
		}}
		r := router.New(router.Config{Root: c.Root, Dialer: d, Host: c.Host})
		ctx := context.Background()
		cur, err := r.Find(ctx, ns, router.Query{Sort: raw(t, `{"v": 1}`)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = cur.Batch(ctx, 0, 1<<20); router.MongoError(err).Code != mongoerr.DataCorruptionDetected {
			t.Fatalf("merge: %v", err)
		}
		if _, err = r.Distinct(ctx, ns, "v", router.Query{}); router.MongoError(err).Code != mongoerr.DataCorruptionDetected {
			t.Fatalf("distinct: %v", err)
		}
		_, err = r.Write(ctx, ns, router.Writes{Statements: []router.Statement{updateOf(t, `{"v": 1}`, `{"$set": {"v": 2}}`)}})
		if router.MongoError(err).Code != mongoerr.DataCorruptionDetected {
			t.Fatalf("choose: %v", err)
		}
		d.alter = func(int, *rpc.ReadReply) error { return fmt.Errorf("odd: %w", errkind.Corrupt) }
		if _, err = r.Count(ctx, ns, router.Query{}); router.MongoError(err).Code != mongoerr.DataCorruptionDetected {
			t.Fatalf("count: %v", err)
		}
	})
}

// TestARecreatedCollectionIsWrittenAnew loses the answer of a write, and drops and makes the
// collection before the next attempt: nothing of the old one matters.
func TestARecreatedCollectionIsWrittenAnew(t *testing.T) {
	for _, statement := range []string{"direct", "chosen", "multi"} {
		t.Run(statement, func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				thirds(t, c.Router)
				rows(t, c.Router, 30)
				other := c.NewRouter(router.Settings{})
				c.Fate(func(m routertest.Message) routertest.Fate {
					if m.Verb != "write" {
						return routertest.Deliver
					}
					c.Fate(nil)
					if _, err := other.Drop(context.Background(), ns, 0); err != nil {
						t.Error(err)
					}
					shard(t, other, `{"_id": 1}`, `{"_id": 15}`)
					rows(t, other, 30)
					return routertest.LoseReply
				})
				s := updateOf(t, `{"_id": 7}`, `{"$inc": {"v": 100}}`)
				switch statement {
				case "chosen":
					s.Filter = raw(t, `{"v": 3}`)
				case "multi":
					s.Filter, s.Multi = raw(t, `{"v": 3}`), true
				}
				res := write(t, c.Router, s)
				want := map[string]int64{"direct": 1, "chosen": 1, "multi": 3}[statement]
				same(t, want, res[0].N)
				same(t, 135+int(want)*100, sum(t, c.Router))
			})
		})
	}
}

// TestABatchGoesOnWhereTheMapWasStale inserts in order over chunks of which one was split
// and one moved behind the router's back.
func TestABatchGoesOnWhereTheMapWasStale(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint(ordered), func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				thirds(t, c.Router)
				rows(t, c.Router, 1)
				coll := c.State().CollectionByName("db", "c")
				split(t, c, coll, 15)
				at := c.State().ChunkOf(coll.ID, key(t, coll, 25)).Shard
				c.Move(coll, key(t, coll, 25), map[manifest.ShardID]manifest.ShardID{"shard01": "shard02", "shard02": "shard03", "shard03": "shard01"}[at])
				var list []router.Statement
				for i := 1; i < 30; i++ {
					list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "v": %d}`, i, i%10)))
				}
				results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: list, Ordered: ordered})
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range results {
					if !r.Done || r.Err != nil {
						t.Fatalf("statement %d: %+v", i, r)
					}
				}
				same(t, all(30), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
			})
		})
	}
}

// TestALargeBatchIsCut sends what is too much for one request in several.
func TestALargeBatchIsCut(t *testing.T) {
	in(t, routertest.Options{Settings: router.Settings{WriteBytes: 1000}}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 1)
		c.Reset()
		var list []router.Statement
		for i := range 20 {
			list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "v": 1}`, 100+i)))
		}
		write(t, c.Router, list...)
		if n := c.Sent("write"); n < 3 || n > 4 {
			t.Fatalf("%d requests", n)
		}
		c.Reset()
		for i := range list {
			list[i] = updateOf(t, fmt.Sprintf(`{"_id": %d}`, 100+i), `{"$inc": {"v": 1}}`)
		}
		if _, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: list}); err != nil {
			t.Fatal(err)
		}
		if n := c.Sent("write"); n < 3 || n > 6 {
			t.Fatalf("%d requests", n)
		}
		same(t, 40, sum(t, c.Router))
	})
}

func TestADocumentWithoutAPlaceIsRefused(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`)
		for _, s := range []router.Statement{
			insertOf(t, `{"_id": 1, "k": [1, 2]}`), upsert(updateOf(t, `{"_id": 1}`, `{"$set": {"k": [1]}}`)),
			upsert(updateOf(t, `{"k": 1}`, `{"$set": {"k": [1]}}`)), upsert(updateOf(t, `{"_id": {"$gt": 5}, "x": 1}`, `{"$inc": {"x": "a"}}`)),
		} {
			results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}})
			if err != nil || results[0].Err == nil {
				t.Fatalf("%v: %+v, %v", s.Filter, results, err)
			}
		}
	})
}

// TestAFilterThatFailsOnADocumentFailsTheCommand: a document that cannot be compared is not
// one that does not match.
func TestAFilterThatFailsOnADocumentFailsTheCommand(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 3)
		write(t, c.Router, insertOf(t, `{"_id": 7, "v": "text"}`))
		ctx, bad := context.Background(), raw(t, `{"$expr": {"$gt": [{"$add": ["$v", 1]}, 100]}}`)
		q := router.Query{Filter: bad}
		cur, err := c.Router.Find(ctx, ns, q)
		if err == nil {
			_, err = cur.Batch(ctx, 0, 1<<20)
		}
		wantCode(t, err, mongoerr.TypeMismatch)
		_, err = c.Router.Count(ctx, ns, q)
		wantCode(t, err, mongoerr.TypeMismatch)
		_, err = c.Router.Distinct(ctx, ns, "v", q)
		wantCode(t, err, mongoerr.TypeMismatch)
		for _, s := range []router.Statement{updateOf(t, "{}", `{"$set": {"a": 1}}`), deleteOf(t, "{}")} {
			for _, s.Multi = range []bool{false, true} {
				s.Filter = bad
				results, err := c.Router.Write(ctx, ns, router.Writes{Statements: []router.Statement{s}})
				if err == nil {
					err = results[0].Err
				}
				wantCode(t, err, mongoerr.TypeMismatch)
			}
			s.Multi, s.Filter = false, raw(t, `{"_id": 7, "$expr": {"$gt": [{"$add": ["$v", 1]}, 100]}}`)
			results, err := c.Router.Write(ctx, ns, router.Writes{Statements: []router.Statement{s}})
			if err != nil || results[0].Err == nil || results[0].Err.Code != mongoerr.TypeMismatch {
				t.Fatalf("%+v, %v", results, err)
			}
		}
		same(t, 4, len(find(t, c.Router, "{}")))
	})
}
