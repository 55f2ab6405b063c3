package main

import (
	"context"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func moveCommand() *cli.Command {
	return &cli.Command{
		Name:  "move",
		Usage: "give a chunk, or a range, to a shard",
		Description: `Asks the owner to hand it over. No document is copied: what is not in segments yet is flushed,
and the root says who owns it. A range may begin and end inside chunks: they are cut there.
Where writers have a secret, GRANARY_SECRET must be set.

   granary move --ns shop.orders --find '{"customer": 1234}' --to shard02
   granary move --ns shop.orders --bounds '[{"customer": 1000}, {"customer": 2000}]' --to shard02 --dry-run`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), namespaceFlag(), dryRunFlag(),
			&cli.StringFlag{Name: "find", Usage: `a document with the shard key: the chunk that it belongs to`},
			boundsFlag("a range"),
			&cli.StringFlag{Name: "to", Required: true, Usage: "the shard: granary status lists them"},
		},
		Action: runMove,
	}
}

func runMove(ctx context.Context, cmd *cli.Command) error {
	if (cmd.String("find") == "") == (cmd.String("bounds") == "") {
		return usage(`move needs --find '{"k": 1}' or --bounds '[{"k": 1}, {"k": 5}]', one of them`)
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
	to := manifest.ShardID(cmd.String("to"))
	chunks, err := router.PlanMove(c.root.State(), c.ns, at, to)
	if err != nil {
		return err
	}
	if len(chunks) > 0 && !cmd.Bool("dry-run") {
		if err := c.reachable(chunks, to); err != nil {
			return err
		}
		if at.Find != nil {
			err = c.router.MoveChunk(ctx, c.ns, at, to, chunkWait)
		} else {
			err = c.router.MoveRange(ctx, c.ns, at.Bounds[0], at.Bounds[1], to, chunkWait)
		}
		if err != nil {
			return err
		}
	}
	return c.show(done{verb: "moved", To: to, Chunks: linesOf(chunks)})
}
