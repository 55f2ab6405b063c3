package manifest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// A cluster begins with Create; processes see and change it through a Root.
func ExampleRoot_Commit() {
	ctx, cell, host := context.Background(), &manifesttest.MemCell{}, manifesttest.Host(1)
	if _, err := manifest.Create(ctx, cell, host, manifest.InitOptions{Shards: []manifest.ShardID{"shard01"}}); err != nil {
		fmt.Println(err)
	}
	root := manifest.NewRoot(cell, host, nil)
	claim := func() {
		s, err := root.Commit(ctx, manifest.Edit{Op: host.ID16(), Changes: []manifest.Change{
			manifest.Claim{Shard: "shard01", Epoch: 0, Holder: "writer-1"},
		}})
		if errors.Is(err, errkind.Conflict) {
			fmt.Println("somebody else was first:", err)
			return
		}
		fmt.Println("version", s.Version(), "held by", s.Shard("shard01").Holder)
	}
	claim()
	claim() // planned on epoch 0, which is gone
	// Output:
	// version 2 held by writer-1
	// somebody else was first: claim shard shard01: conflict: epoch is 1, expected 0
}

// An observer learns of every newer state; ChangedChunks tells what is different in it.
func ExampleChangedChunks() {
	ctx, cell, host := context.Background(), &manifesttest.MemCell{}, manifesttest.Host(1)
	if _, err := manifest.Create(ctx, cell, host, manifest.InitOptions{Shards: []manifest.ShardID{"a"}}); err != nil {
		fmt.Println(err)
	}
	var last *manifest.State
	root := manifest.NewRoot(cell, host, &manifest.RootOptions{Observe: func(s *manifest.State) {
		for was, now := range manifest.ChangedChunks(last, s) {
			switch {
			case was == nil:
				fmt.Printf("version %d: chunk %d appeared\n", s.Version(), now.ID)
			case now == nil:
				fmt.Printf("version %d: chunk %d is gone\n", s.Version(), was.ID)
			}
		}
		last = s
	}})
	for _, line := range []string{"create db.c chunks=a", "split c1 at=m"} {
		s, _, err := root.Load(ctx)
		if err != nil {
			fmt.Println(err)
		}
		change, err := manifesttest.ParseChange(s, line)
		if err != nil {
			fmt.Println(err)
		}
		if _, err := root.Commit(ctx, manifest.Edit{Op: host.ID16(), Changes: []manifest.Change{change}}); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// version 2: chunk 1 appeared
	// version 3: chunk 1 is gone
	// version 3: chunk 2 appeared
	// version 3: chunk 3 appeared
}
