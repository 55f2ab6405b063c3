package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// bounded serves an owner with limits.
func bounded(t *testing.T, o rpc.Owner, l rpc.Limits) rpc.Owner {
	t.Helper()
	s := httptest.NewServer(rpc.Handler(o, nil, "secret", host.System(), valid, l))
	t.Cleanup(s.Close)
	return dial(t, rpc.NewHTTPDialer("secret", host.System(), nil), s.URL)
}

// busy is an owner that answers writes when it is told to.
type busy struct {
	owner
	begun, go_ chan struct{}
}

func (b *busy) Write(context.Context, *rpc.WriteRequest) (*rpc.WriteReply, error) {
	b.begun <- struct{}{}
	<-b.go_
	return &rpc.WriteReply{}, nil
}

// Who is refused at the gate, or for its body, is told so, without an effect and whatever the
// size of what it sends; what continues, flushes and moves is never refused at the gate.
func TestHTTPRefusesWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	pot := admission.NewPot(1 << 20)
	l := rpc.Limits{Gate: admission.New(host.System(), admission.Settings{Most: 1}), Bodies: pot.Account("bodies", 100)}
	b := &busy{begun: make(chan struct{}), go_: make(chan struct{})}
	remote := bounded(t, b, l)
	first := make(chan error, 1)
	go func() {
		_, err := remote.Write(t.Context(), &rpc.WriteRequest{Targets: []rpc.Target{{}}, Ops: []rpc.WriteOp{{Doc: doc()}}})
		first <- err
	}()
	<-b.begun
	large := &rpc.WriteRequest{Targets: []rpc.Target{{}}, Ops: []rpc.WriteOp{{Doc: doc(bson.E{Key: "v", Value: bytes.Repeat([]byte("x"), 900<<10)})}}}
	start := time.Now()
	for range 3 {
		if _, err := remote.Write(t.Context(), large); !errors.Is(err, admission.Overloaded) || !strings.Contains(err.Error(), "under way") {
			t.Errorf("at the gate: %v", err)
		}
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("refused after %v", took)
	}
	if _, err := remote.Cursor(t.Context(), &rpc.CursorRequest{}); err != nil {
		t.Errorf("a cursor: %v", err)
	}
	if _, err := remote.Flush(t.Context(), &rpc.FlushRequest{}); err != nil {
		t.Errorf("a flush: %v", err)
	}
	taken := int64(900 << 10)
	l.Bodies.Add(taken)
	if _, err := remote.Write(t.Context(), large); !errors.Is(err, admission.Overloaded) || !strings.Contains(err.Error(), "bodies have") {
		t.Errorf("for its body: %v", err)
	}
	l.Bodies.Add(-taken)
	b.go_ <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if used := pot.Bounds()[0].Used; used != 0 || l.Gate.Bound().Used != 0 {
		t.Errorf("%d bytes and %d places are not given back", used, l.Gate.Bound().Used)
	}
}

// An answer is no larger than the memory that there is for answers.
func TestHTTPBoundsAnswers(t *testing.T) {
	t.Parallel()
	pot := admission.NewPot(4 << 20)
	answers := pot.Account("answers", 100)
	o := &owner{}
	remote := bounded(t, o, rpc.Limits{Answers: answers})
	for _, c := range []struct{ asked, want int }{{0, 1 << 20}, {300 << 10, 300 << 10}} {
		if _, err := remote.Read(t.Context(), &rpc.ReadRequest{Batch: rpc.Batch{Bytes: c.asked}}); err != nil {
			t.Fatal(err)
		}
		if got := o.got.(*rpc.ReadRequest).Batch.Bytes; got != c.want {
			t.Errorf("of %d bytes %d are allowed, want %d", c.asked, got, c.want)
		}
	}
	if used := pot.Bounds()[0].Used; used != 0 {
		t.Errorf("%d bytes are not given back", used)
	}
}
