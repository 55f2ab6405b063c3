package bucket_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// A compare-and-swap: who read the same tag earlier loses.
func ExampleCell() {
	ctx, root := context.Background(), bucket.NewCell(membucket.New())
	tag, _ := root.Swap(ctx, "meta/root", []byte("version 1"), "")
	_, err := root.Swap(ctx, "meta/root", []byte("version 2"), tag)
	fmt.Println(err)
	_, err = root.Swap(ctx, "meta/root", []byte("another 2"), tag)
	fmt.Println(errors.Is(err, errkind.Conflict))
	body, _, _ := root.Load(ctx, "meta/root", "")
	fmt.Println(string(body))
	// Output:
	// <nil>
	// true
	// version 2
}

// What an operation costs, asserted as counts.
func Example_metrics() {
	ctx, b := context.Background(), layer.Metrics(membucket.New())
	before := b.Snapshot()
	_, _ = b.Put(ctx, "wal/shard01/1/0", []byte("batch"), bucket.IfAbsent)
	_, _ = b.Get(ctx, "meta/root", bucket.GetOptions{})
	fmt.Println(b.Snapshot().Sub(before))
	// Output: get root=1 put wal=1
}

// A reply that is lost after the effect: the outcome is unknown, and reading resolves it.
func Example_faults() {
	ctx := context.Background()
	b := faultbucket.New(membucket.New(), host.System(), faultbucket.FailAt(1, faultbucket.Fault{Kind: faultbucket.After}))
	defer b.Close()
	_, err := b.Put(ctx, "wal/shard01/1/0", []byte("batch with nonce 7"), bucket.IfAbsent)
	fmt.Println(errors.Is(err, errkind.UnknownOutcome))
	o, err := b.Get(ctx, "wal/shard01/1/0", bucket.GetOptions{})
	fmt.Println(string(o.Body), err)
	// Output:
	// true
	// batch with nonce 7 <nil>
}
