package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// full is a dialer of owners that refuse a request when say says so.
type full struct {
	rpc.Dialer
	say func(shard manifest.ShardID) bool
}

func (f full) Dial(shard manifest.ShardID, holder, address string) (rpc.Owner, error) {
	o, err := f.Dialer.Dial(shard, holder, address)
	return fullOwner{o, f, shard}, err
}

type fullOwner struct {
	rpc.Owner
	f     full
	shard manifest.ShardID
}

func (o fullOwner) refuse() error {
	if o.f.say(o.shard) {
		return admission.Refuse("shard %s is full", o.shard)
	}
	return nil
}

func (o fullOwner) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	if err := o.refuse(); err != nil {
		return nil, err
	}
	return o.Owner.Read(ctx, r)
}

func (o fullOwner) Write(ctx context.Context, r *rpc.WriteRequest) (*rpc.WriteReply, error) {
	if err := o.refuse(); err != nil {
		return nil, err
	}
	return o.Owner.Write(ctx, r)
}

// wantRefusal requires a refusal with these labels, and that no time has passed.
func wantRefusal(t *testing.T, c *routertest.Cluster, start time.Duration, err error, labels ...string) {
	t.Helper()
	m := router.MongoError(err)
	if m.Code != mongoerr.ExceededTimeLimit || !slices.Equal(m.Labels, labels) {
		t.Fatalf("code %v, labels %v: %v", m.Code, m.Labels, err)
	}
	if took := c.Host.Mono() - start; took > 50*time.Millisecond {
		t.Errorf("refused after %v", took)
	}
}

var refusal = []string{admission.SystemOverloaded, admission.Retryable, admission.NoWritesPerformed}

// TestWhoIsFullIsNotAskedAgain: a refusal goes to the client at once, with the labels of one
// that had no effect, and that of a write that can be sent again when it can be.
func TestWhoIsFullIsNotAskedAgain(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		rows(t, c.Router, 30)
		r := router.New(router.Config{Root: c.Router.Root(), Host: c.Host, Dialer: full{c, func(manifest.ShardID) bool { return true }}})
		start := c.Host.Mono()
		_, err := r.Find(ctx, ns, router.Query{})
		wantRefusal(t, c, start, err, refusal...)
		_, err = r.Count(ctx, ns, router.Query{Filter: raw(t, `{"a": 1}`)})
		wantRefusal(t, c, start, err, refusal...)
		_, err = r.Distinct(ctx, ns, "v", router.Query{})
		wantRefusal(t, c, start, err, refusal...)
		insert := router.Statement{Kind: rpc.Insert, Doc: raw(t, `{"_id": 1000}`)}
		for _, retry := range []*router.Retry{nil, {Txn: 1}} {
			want := refusal
			if retry != nil {
				want = append(slices.Clone(refusal), router.RetryableWrite)
			}
			for _, ordered := range []bool{false, true} {
				_, err = r.Write(ctx, ns, router.Writes{Statements: []router.Statement{insert}, Ordered: ordered, Retry: retry})
				wantRefusal(t, c, start, err, want...)
			}
			_, err = r.Write(ctx, ns, router.Writes{Retry: retry, Statements: []router.Statement{
				updateOf(t, `{"v": 3}`, `{"$set": {"w": 1}}`)}})
			wantRefusal(t, c, start, err, want...)
		}
	})
}

// TestWhatWasBegunIsGoneOnWith: a write of which a part is done waits for the shard that is
// full, since nobody can be told that nothing was done.
func TestWhatWasBegunIsGoneOnWith(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		until := c.Host.Mono() + 3*time.Second
		r := router.New(router.Config{Root: c.Router.Root(), Host: c.Host, Dialer: full{c, func(s manifest.ShardID) bool {
			return s == "shard02" && c.Host.Mono() < until
		}}})
		var statements []router.Statement
		for i := range 30 {
			statements = append(statements, router.Statement{Kind: rpc.Insert, Doc: raw(t, doc(i, i))})
		}
		got, err := r.Write(context.Background(), ns, router.Writes{Statements: statements})
		if err != nil || slices.ContainsFunc(got, func(r router.Result) bool { return !r.Done || r.N != 1 }) {
			t.Fatalf("%v: %+v", err, got)
		}
		if c.Host.Mono() < until {
			t.Error("no shard was full")
		}
		until = c.Host.Mono() + time.Minute
		statements = statements[:0]
		for i := range 30 {
			statements = append(statements, updateOf(t, fmt.Sprintf(`{"_id": %d}`, i), `{"$set": {"w": 1}}`))
		}
		_, err = r.Write(context.Background(), ns, router.Writes{Statements: statements, MaxTime: time.Second})
		if m := router.MongoError(err); m.Code != mongoerr.MaxTimeMSExpired || len(m.Labels) > 0 || errors.Is(err, admission.Overloaded) {
			t.Errorf("half done: %v %v", m, m.Labels)
		}
	})
}
