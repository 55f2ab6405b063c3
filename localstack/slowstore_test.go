package localstack_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// account is what clients were told of inserts.
type account struct {
	mu      sync.Mutex
	first   time.Time // acknowledgement since it was asked for
	acked   []int64
	refused []time.Duration // how long refusals took
	strange []string        // errors that drivers do not send again
}

func (a *account) note(id int64, began time.Time, reply bson.Raw) {
	a.mu.Lock()
	defer a.mu.Unlock()
	labels := reply.Lookup("errorLabels").String()
	switch {
	case reply.Lookup("n").Type != 0 && reply.Lookup("n").AsInt64() == 1:
		if a.acked = append(a.acked, id); a.first.IsZero() {
			a.first = time.Now()
		}
	case strings.Contains(labels, admission.SystemOverloaded) && strings.Contains(labels, "RetryableWriteError"):
		a.refused = append(a.refused, time.Since(began))
	case strings.Contains(labels, "RetryableWriteError"):
	default:
		a.strange = append(a.strange, reply.String())
	}
}

// TestAStoreThatIsSlowDoesNoMoreHarmThanThat gives a process more to write than its store takes,
// which needs seconds for each object: memory stays within its bounds, whoever finds no room is
// told so soon and may send it again, and when the store is quick again the next acknowledgement
// comes at once. What was acknowledged is there.
func TestAStoreThatIsSlowDoesNoMoreHarmThanThat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const memtable, clients, docBytes = 2 << 20, 150, 40 << 10
		b := membucket.New()
		store := faultbucket.New(b, host.System(), nil)
		defer store.Wait()
		s := open(t, store, localstack.Options{Shards: 2, MemtableBytes: memtable, RequestBytes: 16 << 20})
		defer s.Close(context.Background())
		do(t, s, "shop", insertOne(-1, 10))
		store.SetPlan(faultbucket.Rules(host.System(),
			faultbucket.Rule{Prefix: "wal/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 2 * time.Second}},
			faultbucket.Rule{Prefix: "seg/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 5 * time.Second}}))
		var a account
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range int64(clients) {
			all.Go(func() {
				for n := int64(0); ctx.Err() == nil; n++ {
					began, id := time.Now(), i*1_000_000+n
					cmd, err := bson.Marshal(append(insertOne(id, docBytes), bson.E{Key: "$db", Value: "shop"}))
					if err != nil {
						t.Error(err)
						return
					}
					a.note(id, began, s.Commands.Do(ctx, cmd))
					time.Sleep(500 * time.Millisecond)
				}
			})
		}
		most := int64(0)
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			most = max(most, s.Writer.Status().MemoryBytes)
			for _, n := range s.Bounds(s.Writer) {
				if n.Used > n.Limit {
					t.Fatalf("%s: %d of %d", n.Name, n.Used, n.Limit)
				}
			}
		}
		store.SetPlan(nil)
		quick := time.Now()
		a.mu.Lock()
		slowly := len(a.acked)
		a.first = time.Time{}
		a.mu.Unlock()
		time.Sleep(5 * time.Second)
		a.mu.Lock()
		soon, first := len(a.acked)-slowly, a.first.Sub(quick)
		a.mu.Unlock()
		if soon == 0 || first > 2*time.Second { // what is on its way is still slow
			t.Errorf("%d acknowledged in 5 s after the store is quick again, the first after %v", soon, first)
		}
		stop()
		all.Wait()
		slices.Sort(a.refused)
		t.Logf("%d acknowledged in 60 s, then %d in 5 s, the first after %v; %d refused, within %v; at most %d KiB of rows", slowly, soon, first, len(a.refused), a.refused[len(a.refused)-1], most>>10)
		if len(a.strange) > 0 {
			t.Errorf("%d errors that nobody may send again, the first: %s", len(a.strange), a.strange[0])
		}
		if most > memtable+clients*docBytes {
			t.Errorf("%d bytes of rows, where %d are allowed and one write of each client", most, memtable)
		}
		if slowly == 0 || soon < clients || len(a.refused) == 0 || a.refused[len(a.refused)-1] > 50*time.Millisecond {
			t.Error("too few were acknowledged, or refusals came late")
		}
		if n := count(t, s); n < int64(len(a.acked)) {
			t.Errorf("%d documents, %d were acknowledged", n, len(a.acked))
		}
	})
}

// insertOne is a write that can be sent again, of a document of so many bytes.
func insertOne(id int64, docBytes int) bson.D {
	session := make([]byte, 16)
	session[0], session[1], session[2], session[3] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
	return bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "s", Value: strings.Repeat("x", docBytes)}}}},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: session}}}}, {Key: "txnNumber", Value: int64(1)}}
}
