package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func initCommand() *cli.Command {
	return &cli.Command{
		Name:  "init",
		Usage: "probe a store and make an empty cluster in it",
		Description: `Races writers against one another on a few keys under meta/probe/, refuses a store
whose conditional writes are not atomic, and then writes the first root.
A store that holds a cluster already is left as it is.

   granary init --store dir:/var/lib/granary --shards 3`,
		Flags: []cli.Flag{
			storeFlag(),
			&cli.IntFlag{Name: "shards", Value: 3, Sources: env("shards"), Usage: "how many shards to begin with (1 to 99)"},
			&cli.BoolFlag{Name: "dry-run", Usage: "probe only"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			shards, err := localstack.ShardNames(cmd.Int("shards"))
			if err != nil {
				return usage("%v", err)
			}
			h := host.System()
			b, err := openStore(ctx, cmd, h)
			if err != nil {
				return err
			}
			defer b.Close()
			if err := bucket.Probe(ctx, b, h); err != nil {
				return err
			}
			out := cmd.Root().Writer
			if cmd.Bool("dry-run") {
				_, err := fmt.Fprintf(out, "%s is safe; nothing was written (--dry-run)\n", b)
				return err
			}
			if _, err := b.Head(ctx, manifest.RootKey); errors.Is(err, errkind.NotFound) {
				if err := localstack.NeverHeld(ctx, b); err != nil {
					return err
				}
			}
			state, err := manifest.Create(ctx, bucket.NewCell(b), h, manifest.InitOptions{Shards: shards, Millis: h.Wall().UnixMilli()})
			if errors.Is(err, errkind.Conflict) {
				return fmt.Errorf("%s holds a cluster already: granary status --store %s shows it", b, cmd.String("store"))
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "cluster %x in %s with %d shards\nnext: granary local --store %s\n", state.ClusterID(), b, len(shards), cmd.String("store"))
			return err
		},
	}
}
