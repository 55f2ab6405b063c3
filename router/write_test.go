package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func many(s router.Statement) router.Statement {
	s.Multi = true
	return s
}

func upsert(s router.Statement) router.Statement {
	s.Upsert = true
	return s
}

// session is a client that can send a write again.
func session(id byte, txn int64) *router.Retry {
	return &router.Retry{Session: [32]byte{id}, Txn: txn}
}

// sum adds up v of all documents.
func sum(t testing.TB, r *router.Router) (n int) {
	t.Helper()
	cur, err := r.Find(context.Background(), ns, router.Query{})
	if err != nil {
		t.Fatal(err)
	}
	docs, err := cur.Batch(context.Background(), 0, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		v, _ := document.Lookup(d, "v")
		n += int(v.AsInt64())
	}
	return n
}

func TestABatchOfInsertsTakesOneRequestAShard(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		c.Reset()
		rows(t, c.Router, 30)
		same(t, 3+2, c.Sent("write")) // the first two are asked again whether they are stored
		var list []router.Statement
		for i := range 30 { // in an order that changes the shard each time
			list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d}`, 1000*(i%3)-1000+i/3+500*(i%3-1))))
		}
		c.Reset()
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: list})
		if err != nil || len(results) != 30 {
			t.Fatal(err)
		}
		if n := c.Sent("write"); n > 3 {
			t.Fatalf("%d requests", n)
		}
	})
}

func TestAnOrderedBatchStopsAtItsFirstFailure(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		list := []router.Statement{
			insertOf(t, `{"_id": 1}`), insertOf(t, `{"_id": 15}`), insertOf(t, `{"_id": 1}`), insertOf(t, `{"_id": 2}`), insertOf(t, `{"_id": [1]}`), insertOf(t, `{"_id": 3}`),
		}
		done := func(ordered bool) (ids []int, codes []mongoerr.Code) {
			results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: list, Ordered: ordered})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range results {
				if r.Done && r.Err == nil {
					ids = append(ids, i)
				} else if r.Done {
					codes = append(codes, r.Err.Code)
				}
			}
			return ids, codes
		}
		ids, codes := done(true)
		same(t, []int{0, 1}, ids)
		same(t, []mongoerr.Code{mongoerr.DuplicateKey}, codes)
		ids, codes = done(false)
		same(t, []int{3, 5}, ids)
		same(t, []mongoerr.Code{mongoerr.DuplicateKey, mongoerr.DuplicateKey, mongoerr.DuplicateKey, mongoerr.InvalidIDField}, codes)
	})
}

func TestAnInsertedDocumentBeginsWithItsID(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		write(t, c.Router, insertOf(t, `{"a": 1, "_id": 7, "b": 2}`), insertOf(t, `{"a": 2}`))
		same(t, []string{`{"_id": {"$numberInt":"7"},"a": {"$numberInt":"1"},"b": {"$numberInt":"2"}}`}, find(t, c.Router, `{"a": 1}`))
		cur, err := c.Router.Find(context.Background(), ns, router.Query{Filter: raw(t, `{"a": 2}`)})
		if err != nil {
			t.Fatal(err)
		}
		docs, err := cur.Batch(context.Background(), 0, 1<<20)
		if err != nil || len(docs) != 1 {
			t.Fatal(err)
		}
		if e, _ := docs[0].IndexErr(0); e.Key() != "_id" || e.Value().Type != bson.TypeObjectID {
			t.Fatalf("%v", docs[0])
		}
		for id, code := range map[string]mongoerr.Code{
			`[1]`: mongoerr.InvalidIDField, `{"$regularExpression": {"pattern": "a", "options": ""}}`: mongoerr.InvalidIDField,
			`{"$undefined": true}`: mongoerr.InvalidIDField, `{"a": 1, "$b": 2}`: mongoerr.DollarPrefixedFieldName,
		} {
			results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{insertOf(t, `{"x": 1, "_id": `+id+`}`)}})
			if err != nil || results[0].Err == nil || results[0].Err.Code != code {
				t.Errorf("_id %s: %+v, %v", id, results, err)
			}
		}
		big := bson.Raw(nil)
		big, _ = bson.Marshal(bson.D{{Key: "x", Value: make([]byte, 16<<20-25)}})
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{{Kind: rpc.Insert, Doc: big}}})
		if err != nil || results[0].Err == nil || results[0].Err.Code != mongoerr.BSONObjectTooLarge {
			t.Errorf("large document: %+v, %v", results[0].Err, err)
		}
	})
}

func TestAPinnedStatementTakesOneRequest(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		c.Reset()
		write(t, c.Router, updateOf(t, `{"_id": 3}`, `{"$inc": {"v": 1}}`))
		write(t, c.Router, upsert(updateOf(t, `{"_id": 33}`, `{"$inc": {"v": 1}}`)))
		write(t, c.Router, deleteOf(t, `{"_id": 4}`))
		same(t, 3, c.Sent("write"))
		write(t, c.Router, updateOf(t, `{"_id": 1}`, `{"$inc": {"v": 1}}`), updateOf(t, `{"_id": 2}`, `{"$inc": {"v": 1}}`), deleteOf(t, `{"_id": 5}`))
		same(t, 4, c.Sent("write"))
		same(t, 0, c.Sent("read"))
	})
}

// TestAStatementWithoutTheKeyChangesOneDocument runs single-document statements over three
// chunks of which each has matches.
func TestAStatementWithoutTheKeyChangesOneDocument(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		res := write(t, c.Router, updateOf(t, `{"v": 3}`, `{"$set": {"v": 100}}`), updateOf(t, `{"v": 77}`, `{"$set": {"v": 5}}`), deleteOf(t, `{"v": 4}`))
		same(t, []int64{1, 0, 1}, []int64{res[0].N, res[1].N, res[2].N})
		same(t, 29, len(find(t, c.Router, `{}`)))
		same(t, 1, len(find(t, c.Router, `{"v": 100}`)))
		s := updateOf(t, `{"v": {"$lt": 100}}`, `{"$set": {"v": 200}}`)
		s.Sort, s.Return = raw(t, `{"v": -1, "_id": -1}`), rpc.ReturnBefore
		res = write(t, c.Router, s)
		same(t, doc(29, 9), res[0].Value.String())
		s.Return, s.Projection = rpc.ReturnAfter, raw(t, `{"v": 1, "_id": 0}`)
		res = write(t, c.Router, s)
		same(t, `{"v": {"$numberInt":"200"}}`, res[0].Value.String())
		same(t, []string{doc(19, 200), doc(29, 200)}, find(t, c.Router, `{"v": 200}`, sorted(t, `{"_id": 1}`)))
	})
}

func TestAMultiChangesEveryMatchOnce(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		res := write(t, c.Router, many(updateOf(t, `{"v": {"$lt": 3}}`, `{"$inc": {"v": 1000}}`)))
		same(t, int64(9), res[0].N)
		same(t, int64(9), res[0].Modified)
		same(t, 135+9000, sum(t, c.Router))
		res = write(t, c.Router, many(deleteOf(t, `{"v": {"$gte": 1000}, "_id": {"$lt": 20}}`)))
		same(t, int64(6), res[0].N)
		res = write(t, c.Router, many(updateOf(t, `{"_id": 29}`, `{"$inc": {"v": 1}}`)))
		same(t, int64(1), res[0].N)
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{many(updateOf(t, `{}`, `{"v": 1}`))}})
		if err != nil || results[0].Err.Code != mongoerr.FailedToParse {
			t.Fatalf("%+v, %v", results, err)
		}
	})
}

// TestUpsertsInsertWhenNothingMatches covers an upsert that one chunk decides, one whose
// filter says nothing of the key, one that moves its own key, and a multi.
func TestUpsertsInsertWhenNothingMatches(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`)
		for i, s := range []router.Statement{
			updateOf(t, `{"k": 5, "_id": 1}`, `{"$set": {"v": 1}}`),
			updateOf(t, `{"_id": 2}`, `{"$set": {"v": 2, "k": 15}}`),
			updateOf(t, `{"k": 5, "_id": 3}`, `{"$set": {"v": 3, "w": 1}}`),
			updateOf(t, `{"_id": 4}`, `{"k": 25, "v": 4}`),
			many(updateOf(t, `{"_id": 5}`, `{"$set": {"v": 5, "k": 1}}`)),
			many(updateOf(t, `{"k": 30, "_id": 6}`, `{"$set": {"v": 6}}`)),
		} {
			for try := range 2 {
				res := write(t, c.Router, upsert(s))
				inserted := res[0].UpsertedID.Type != 0
				if res[0].N != 1 || inserted != (try == 0) {
					t.Fatalf("statement %d, time %d: %+v", i, try, res[0])
				}
				if inserted && res[0].UpsertedID.AsInt64() != int64(i+1) {
					t.Fatalf("statement %d: upserted %v", i, res[0].UpsertedID)
				}
			}
		}
		same(t, 6, len(find(t, c.Router, `{}`)))
		s := upsert(updateOf(t, `{"x": 1}`, `{"$set": {"v": 7, "k": 9}}`))
		s.Return, s.Projection = rpc.ReturnAfter, raw(t, `{"_id": 0}`)
		res := write(t, c.Router, s)
		same(t, `{"x": {"$numberInt":"1"},"k": {"$numberInt":"9"},"v": {"$numberInt":"7"}}`, res[0].Value.String())
		if res[0].UpsertedID.Type != bson.TypeObjectID {
			t.Fatalf("%+v", res[0])
		}
		s.Filter, s.Return = raw(t, `{"x": 2}`), rpc.ReturnBefore
		if res = write(t, c.Router, s); res[0].Value != nil || res[0].UpsertedID.Type == 0 {
			t.Fatalf("%+v", res[0])
		}
	})
}

// TestAnUpsertThatSaysNothingOfTheKeyIsRefused: it changes what it matches, however many
// chunks there are, but inserts nothing under a key of null that nobody asked for.
func TestAnUpsertThatSaysNothingOfTheKeyIsRefused(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		for i, points := range [][]string{nil, {`{"k": 10}`}} {
			c.Router.Drop(context.Background(), ns, 0) //nolint:errcheck // the first time there is none
			shard(t, c.Router, `{"k": 1, "l": 1}`, points...)
			for _, s := range []router.Statement{
				updateOf(t, `{"x": 1, "l": 2}`, `{"$inc": {"v": 1}}`), many(updateOf(t, `{"x": 1}`, `{"$inc": {"v": 1}, "$set": {"l": 3}}`)),
			} {
				results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{upsert(s)}})
				if err != nil || results[0].Err == nil || results[0].Err.Code != mongoerr.ShardKeyNotFound ||
					!strings.Contains(results[0].Err.Message, "a value to k of the shard key { k: 1, l: 1 }") {
					t.Fatalf("layout %d: %+v, %v", i, results, err)
				}
			}
			write(t, c.Router, insertOf(t, `{"_id": 1, "x": 1}`))
			res := write(t, c.Router, upsert(updateOf(t, `{"x": 1}`, `{"$inc": {"v": 1}}`)))
			same(t, int64(1), res[0].Modified)
			write(t, c.Router, upsert(updateOf(t, `{"x": 2, "k": null, "l": 1}`, `{"$inc": {"v": 1}}`)))
			same(t, 2, len(find(t, c.Router, `{}`)))
		}
	})
}

func TestStatementsThatCannotBeParsedFailAlone(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		bad := deleteOf(t, `{}`)
		bad.Sort = raw(t, `{"a": 7}`)
		list := []router.Statement{
			updateOf(t, `{"$foo": 1}`, `{"$set": {"a": 1}}`), updateOf(t, `{}`, `{"$foo": {"a": 1}}`), bad,
			deleteOf(t, `{"_id": {"$gt": 5, "$lt": 2}}`), insertOf(t, `{"_id": 1}`),
		}
		results, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: list})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if failed := i < 3; !r.Done || (r.Err != nil) != failed {
				t.Fatalf("statement %d: %+v", i, r)
			}
		}
	})
}

// TestAWriteToWhatDoesNotExist creates a collection only to store something.
func TestAWriteToWhatDoesNotExist(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		res := write(t, c.Router, updateOf(t, `{"a": 1}`, `{"$set": {"b": 1}}`), deleteOf(t, `{}`))
		same(t, int64(0), res[0].N+res[1].N)
		same(t, 0, len(c.State().Collections()))
		done := make(chan error)
		for i := range 4 { // all of them create it
			r := c.NewRouter(router.Settings{})
			go func() {
				_, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{insertOf(t, fmt.Sprintf(`{"_id": %d}`, i))}})
				done <- err
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		same(t, 4, len(find(t, c.Router, `{}`)))
	})
}
