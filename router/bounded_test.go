package router_test

import (
	"context"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestAMergeHoldsOneBatchOfEachShard sorts 12 MB of three shards by a field outside of the key,
// through a router that may hold 1 MB: it never holds more, and all comes in order. With skip
// and limit a shard sends no more than their sum.
func TestAMergeHoldsOneBatchOfEachShard(t *testing.T) {
	const docs, size, most = 3000, 4 << 10, 1 << 20
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"_id": 1}`, `{"_id": 1000}`, `{"_id": 2000}`)
		var list []router.Statement
		pad := strings.Repeat("x", size)
		for i := range docs {
			list = append(list, router.Statement{Kind: rpc.Insert, Doc: raw(t, bson.D{{Key: "_id", Value: i}, {Key: "v", Value: i * 7919 % docs}, {Key: "pad", Value: pad}})})
		}
		write(t, c.Router, list...)
		answers := admission.NewPot(1<<30).Account("answers", 100)
		r := router.New(router.Config{
			Root: c.Root, Dialer: c, Host: c.Host, Answers: answers, Settings: router.Settings{BatchBytes: most},
		})
		trace := &router.Trace{}
		cur, err := r.Find(ctx, ns, router.Query{Sort: raw(t, `{"v": 1}`), Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		peak := int64(0)
		for want := range docs {
			doc, err := cur.Next(ctx, docs-want)
			if err != nil || doc == nil || doc.Lookup("v").AsInt64() != int64(want) {
				t.Fatalf("document %d: %v, %v", want, doc.Lookup("v"), err)
			}
			peak = max(peak, answers.Bound().Used)
		}
		cur.Close(ctx)
		if peak == 0 || peak > most+64<<10 {
			t.Fatalf("%d bytes at once, at most %d", peak, most)
		}
		if used := answers.Bound().Used; used != 0 {
			t.Fatalf("%d bytes are held in the end", used)
		}
		sent := int64(0)
		for _, v := range trace.Visits() {
			sent += v.Documents
		}
		same(t, int64(docs), sent)

		trace = &router.Trace{}
		if cur, err = r.Find(ctx, ns, router.Query{Sort: raw(t, `{"v": 1}`), Skip: 5, Limit: 7, Trace: trace}); err != nil {
			t.Fatal(err)
		}
		batch, err := cur.Batch(ctx, 0, 1<<30)
		if err != nil || len(batch) != 7 || batch[0].Lookup("v").AsInt64() != 5 {
			t.Fatalf("%d documents, %v", len(batch), err)
		}
		cur.Close(ctx)
		for _, v := range trace.Visits() {
			if v.Documents > 12 {
				t.Fatalf("%s sent %d documents for skip 5 and limit 7", v.Shard, v.Documents)
			}
		}
	})
}
