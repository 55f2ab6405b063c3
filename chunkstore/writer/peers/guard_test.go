package peers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// silent is an owner that answers nothing before the call is given up, and its dialer.
type silent struct{}

func (s silent) Dial(manifest.ShardID, string, string) (rpc.Owner, error) { return s, nil }

func wait[R any](ctx context.Context) (*R, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (silent) Read(ctx context.Context, _ *rpc.ReadRequest) (*rpc.ReadReply, error) {
	return wait[rpc.ReadReply](ctx)
}

func (silent) Cursor(ctx context.Context, _ *rpc.CursorRequest) (*rpc.ReadReply, error) {
	return wait[rpc.ReadReply](ctx)
}

func (silent) Write(ctx context.Context, _ *rpc.WriteRequest) (*rpc.WriteReply, error) {
	return wait[rpc.WriteReply](ctx)
}

func (silent) Promise(ctx context.Context, _ *rpc.PromiseRequest) (*rpc.PromiseReply, error) {
	return wait[rpc.PromiseReply](ctx)
}

func (silent) Prepare(ctx context.Context, _ *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	return wait[rpc.PrepareReply](ctx)
}

func (silent) Decide(ctx context.Context, _ *rpc.DecideRequest) (*rpc.DecideReply, error) {
	return wait[rpc.DecideReply](ctx)
}

func (silent) Move(ctx context.Context, _ *rpc.MoveRequest) (*rpc.MoveReply, error) {
	return wait[rpc.MoveReply](ctx)
}

func (silent) Loads(ctx context.Context, _ *rpc.LoadsRequest) (*rpc.LoadsReply, error) {
	return wait[rpc.LoadsReply](ctx)
}

func (silent) Flush(ctx context.Context, _ *rpc.FlushRequest) (*rpc.FlushReply, error) {
	return wait[rpc.FlushReply](ctx)
}

// A call to a holder that never answers ends soon after the shard went to another one, and
// not before: a slow answer is waited for.
func TestACallToAFormerHolderIsGivenUp(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, func(t *testing.T, w *world) {
		a := w.start("a:1")
		w.until("a has it", 5*time.Second, w.eachHolds(1, "a:1"))
		root := manifest.NewRoot(bucket.NewCell(w.mem), host.System(), nil)
		g := NewGuard(silent{}, root, host.System(), slog.New(slog.NewTextHandler(io.Discard, nil)))
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- g.Run(ctx) }()
		x := w.state().Shard("shard01")
		o, err := g.Dial(x.ID, x.Holder, x.Address)
		if err != nil {
			t.Fatal(err)
		}
		const calls = 7
		ended := make(chan error, calls)
		start := time.Now()
		go func() { _, err := o.Read(t.Context(), &rpc.ReadRequest{}); ended <- err }()
		go func() { _, err := o.Cursor(t.Context(), &rpc.CursorRequest{}); ended <- err }()
		go func() { _, err := o.Write(t.Context(), &rpc.WriteRequest{}); ended <- err }()
		go func() { _, err := o.Promise(t.Context(), &rpc.PromiseRequest{}); ended <- err }()
		go func() { _, err := o.Move(t.Context(), &rpc.MoveRequest{}); ended <- err }()
		go func() { _, err := o.Loads(t.Context(), &rpc.LoadsRequest{}); ended <- err }()
		go func() { _, err := o.Flush(t.Context(), &rpc.FlushRequest{}); ended <- err }()
		time.Sleep(time.Minute)
		if len(ended) > 0 {
			t.Fatalf("given up while the holder had the shard: %v", <-ended)
		}
		w.start("b:1")
		a.kill(w)
		w.until("b has it", 10*time.Second, w.eachHolds(1, "b:1"))
		claimed := time.Since(start)
		for range calls {
			if err := <-ended; !errors.Is(err, errkind.Fenced) {
				t.Errorf("ended with %v", err)
			}
		}
		if late := time.Since(start) - claimed; late > 2*guardEvery {
			t.Errorf("given up %v after the takeover", late)
		}
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}
