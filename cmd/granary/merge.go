package main

import (
	"context"
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func mergeCommand() *cli.Command {
	return &cli.Command{
		Name:  "merge",
		Usage: "make one chunk of neighbours",
		Description: `The bounds must be those of chunks, and the chunks of one shard, whose owner flushes them
first if it has to. Where writers have a secret, GRANARY_SECRET must be set.

   granary merge --ns shop.orders --bounds '[{"customer": 1000}, {"customer": 3000}]' --dry-run
   granary merge --ns shop.orders --bounds '[{"customer": {"$minKey": 1}}, {"customer": {"$maxKey": 1}}]'`,
		Flags:  []cli.Flag{storeFlag(), outputFlag(), namespaceFlag(), dryRunFlag(), boundsFlag("the range")},
		Action: runMerge,
	}
}

func runMerge(ctx context.Context, cmd *cli.Command) error {
	if cmd.String("bounds") == "" {
		return usage(`merge needs --bounds '[{"k": 1}, {"k": 5}]'`)
	}
	at, err := whereOf(cmd)
	if err != nil {
		return err
	}
	c, err := openChunks(ctx, cmd)
	if err != nil {
		return err
	}
	defer c.close()
	chunks, err := router.PlanMerge(c.root.State(), c.ns, at.Bounds)
	if err != nil {
		return err
	}
	if len(chunks) == 1 {
		chunks = nil
	}
	if len(chunks) > 0 && !cmd.Bool("dry-run") {
		if c.unflushed(chunks) {
			if err := c.reachable(chunks); err != nil {
				return err
			}
		}
		if err := c.router.MergeChunks(ctx, c.ns, at.Bounds, chunkWait); err != nil {
			return err
		}
	}
	return c.show(done{verb: "merged", Chunks: linesOf(chunks)})
}

// unflushed reports whether the owner has to flush before the chunks can be merged.
func (c *chunkCommand) unflushed(chunks []*manifest.Chunk) bool {
	s := c.root.State()
	return slices.ContainsFunc(chunks, func(x *manifest.Chunk) bool { return s.EffectiveFloor(x) != s.EffectiveFloor(chunks[0]) })
}
