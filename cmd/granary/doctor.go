package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check that a store is safe to use, and how fast it is",
		Description: `Runs the race probe under meta/probe/ and names the property that is missing, if one is.
Safe beside a running cluster.

   granary doctor --store dir:./granary-data`,
		Flags: []cli.Flag{storeFlag(), outputFlag()},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			h := host.System()
			b, err := openStore(ctx, cmd, h)
			if err != nil {
				return err
			}
			defer b.Close()
			start := h.Mono()
			if err := bucket.Probe(ctx, b, h); err != nil {
				return err
			}
			probed := h.Mono() - start
			at := places.New(b, openLocation(h), h, nil)
			defer at.Close()
			state, _, err := at.Root().Load(ctx)
			cluster := "none: granary init makes one"
			switch {
			case err == nil:
				cluster = fmt.Sprintf("%x at version %d", state.ClusterID(), state.Version())
			case !errors.Is(err, errkind.NotFound):
				return err
			}
			if cmd.String("output") == "json" {
				return printJSON(cmd.Root().Writer, map[string]any{"store": b.String(), "safe": true, "probeMillis": probed.Milliseconds(), "cluster": cluster})
			}
			_, err = fmt.Fprintf(cmd.Root().Writer, "store    %s\nsafe     yes: create-if-absent and compare-and-swap are atomic, reads and listings are up to date\nprobe    %v\ncluster  %s\n", b, probed.Round(1e6), cluster)
			return err
		},
	}
}
