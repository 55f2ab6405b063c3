package wal_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Example appends as epoch 1, then takes over: seals epoch 1 and replays it.
func Example() {
	ctx, bucket, h := context.Background(), membucket.New(), host.System()
	cluster := manifest.ClusterID{1}

	log := wal.NewLog(bucket, h, cluster, "shard01", 1, 0)
	var batch wal.Batch
	for seq := manifest.Seq(1); seq <= 2; seq++ {
		if err := batch.Add(wal.Record{Collection: 1, Key: []byte("k"), Op: wal.Delete, Seq: seq}); err != nil {
			panic(err)
		}
	}
	res, err := log.Append(ctx, &batch)
	fmt.Println(res.Position, err)

	end, _, err := wal.Seal(ctx, bucket, h, cluster, "shard01", 1, 0, 2)
	fmt.Println("sealed at", end, err)
	_, err = log.Append(ctx, &batch)
	fmt.Println("fenced:", errors.Is(err, errkind.Fenced))

	err = wal.Replay(ctx, bucket, cluster, "shard01", 1, 0, end, func(pos manifest.Position, r wal.Record) error {
		fmt.Printf("%v %s seq %d\n", pos, r.Key, r.Seq)
		return nil
	})
	fmt.Println(err)
	// Output:
	// (1,<1) <nil>
	// sealed at 1 <nil>
	// fenced: true
	// (1,<1) k seq 1
	// (1,<1) k seq 2
	// <nil>
}
