package localstack_test

import (
	"context"
	"testing"

	"github.com/granarydb/granary/balancer"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// lone runs a balancer with a root of its own. stop ends it at once, as a kill does.
func lone(t *testing.T, b bucket.Bucket, d rpc.Dialer, name string) (root *manifest.Root, stop func()) {
	t.Helper()
	root = manifest.NewRoot(bucket.NewCell(b), host.System(), nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	one := balancer.New(balancer.Config{Root: root, Dial: d, Host: host.System(), Holder: name})
	go func() {
		defer close(done)
		_ = one.Run(ctx)
	}()
	return root, func() { cancel(); <-done }
}
