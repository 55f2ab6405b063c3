package localstack_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// network is who answers at an address.
type network struct {
	mu sync.Mutex
	at map[string]*localstack.Writer
}

func (n *network) find(address string) (*localstack.Writer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.at[address]; w != nil {
		return w, nil
	}
	return nil, errors.Join(rpc.Unreachable, syscall.ECONNREFUSED)
}

func (n *network) Dial(_ manifest.ShardID, _, address string) (rpc.Owner, error) {
	w, err := n.find(address)
	if err != nil {
		return nil, err
	}
	return w.Writer, nil
}

func (n *network) DialPeer(address string) (rpc.Peer, error) {
	w, err := n.find(address)
	if err != nil {
		return nil, err
	}
	return w.Member, nil
}

// start opens a writer at an address.
func (n *network) start(t *testing.T, b *membucket.Bucket, role localstack.WriterRole) *localstack.Writer {
	t.Helper()
	w, err := localstack.OpenWriter(context.Background(), b, host.System(), n, role, localstack.Options{Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[role.Address] = w
	return w
}

// stop closes it.
func (n *network) stop(t *testing.T, address string) {
	t.Helper()
	w, _ := n.find(address)
	if err := w.Close(context.Background()); err != nil {
		t.Error(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.at, address)
}

// TestARouterAndTwoWritersServe starts a router on an empty store, then writers, and stops
// one after the other: every write is acknowledged as long as one writer is there, and in the
// end every shard is free and every log swept.
func TestARouterAndTwoWritersServe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, n := membucket.New(), &network{at: map[string]*localstack.Writer{}}
		r, err := localstack.OpenRouter(t.Context(), b, host.System(), n, localstack.Options{Shards: 2})
		if err != nil {
			t.Fatal(err)
		}
		insert := func(id int) {
			t.Helper()
			body, _ := bson.Marshal(bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}, {Key: "$db", Value: "shop"}})
			reply := r.Commands.Do(context.Background(), body)
			if got, _ := reply.Lookup("n").AsInt64OK(); got != 1 {
				t.Fatalf("insert %d: %v", id, reply)
			}
		}
		n.start(t, b, localstack.WriterRole{Address: "a:1", Any: true})
		insert(1)
		first := n.start(t, b, localstack.WriterRole{Address: "b:1", Any: true})
		time.Sleep(time.Minute) // each has one shard, and the log is flushed and swept
		insert(2)
		if age := first.SinceStore(); age > 10*time.Second {
			t.Errorf("the store answered last %v ago", age)
		}
		n.stop(t, "a:1")
		insert(3)
		time.Sleep(2 * time.Minute)
		if first.Collected() == 0 {
			t.Error("the writer that is left has swept nothing")
		}
		n.stop(t, "b:1")
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		s := open(t, b, localstack.Options{})
		defer s.Close(context.Background())
		if got := count(t, s); got != 3 {
			t.Errorf("%d documents, want 3", got)
		}
		for _, x := range s.Root.State().History() {
			if takeover, _ := x.Detail.Lookup("takeover").BooleanOK(); takeover {
				t.Errorf("a takeover although all stopped in order: %v", x.Detail)
			}
		}
	})
}

// A writer for a shard that the cluster does not have says which there are.
func TestAWriterForNoShardIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		role := localstack.WriterRole{Address: "a:1", Named: []manifest.ShardID{"shard07"}}
		_, err := localstack.OpenWriter(t.Context(), membucket.New(), host.System(), &network{}, role, localstack.Options{Shards: 2})
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "the cluster has [shard01 shard02]") {
			t.Error(err)
		}
	})
}

// What needs a store is tried again for as long as Wait says, and that is said now and then;
// what can never succeed, and a caller that leaves, end it at once.
func TestAStoreIsWaitedForAsLongAsAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		o := localstack.Options{Wait: 25 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))}
		away := errors.New("no route to host")
		begin := time.Now()
		if err := localstack.Patiently(t.Context(), host.System(), o, "s3://b", func() error { return away }); !errors.Is(err, away) {
			t.Error(err)
		}
		if waited := time.Since(begin); waited < o.Wait || waited > o.Wait+time.Second {
			t.Errorf("waited %v", waited)
		}
		if said := strings.Count(log.String(), "cannot be reached, waiting for it"); said != 3 {
			t.Errorf("said %d times:\n%s", said, &log)
		}
		tries := 0
		err := localstack.Patiently(t.Context(), host.System(), o, "s3://b", func() error {
			if tries++; tries < 4 {
				return away
			}
			return nil
		})
		if err != nil || !strings.Contains(log.String(), "the store is there") {
			t.Errorf("%v\n%s", err, &log)
		}
		begin = time.Now()
		_ = localstack.Patiently(t.Context(), host.System(), o, "s3://b", func() error { return errkind.Corrupt })
		ctx, cancel := context.WithCancel(t.Context())
		_ = localstack.Patiently(ctx, host.System(), o, "s3://b", func() error { cancel(); return away })
		_ = localstack.Patiently(t.Context(), host.System(), localstack.Options{Log: o.Log}, "s3://b", func() error { return away })
		if time.Since(begin) > 0 {
			t.Errorf("waited %v where there is nothing to wait for", time.Since(begin))
		}
	})
}
