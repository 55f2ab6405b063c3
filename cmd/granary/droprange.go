package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func dropRangeCommand() *cli.Command {
	return &cli.Command{
		Name:  "drop-range",
		Usage: "remove all documents of a range of shard keys at once",
		Description: `One change of the root, and as quick for a million documents as for one: no document is
read or deleted by itself. Chunks that reach out of the range are cut at its ends. Reads that
are under way keep what they see; the space is free when the garbage was collected, and no
snapshot has it.

   granary drop-range --ns logs.events --min '{"day": 20261101}' --max '{"day": 20261102}' --dry-run
   granary drop-range --ns logs.events --min '{"day": 20261101}' --max '{"day": 20261102}'`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), namespaceFlag(), dryRunFlag(),
			&cli.StringFlag{Name: "min", Required: true, Usage: `the lower bound: '{"k": 1}'; fields that it leaves out are MinKey`},
			&cli.StringFlag{Name: "max", Required: true, Usage: "the upper bound, which is not in the range"},
		},
		Action: runDropRange,
	}
}

// droppedRange is what a drop-range removed, or would remove.
type droppedRange struct {
	Namespace string          `json:"ns"`
	DryRun    bool            `json:"dryRun"`
	Min       json.RawMessage `json:"min"`
	Max       json.RawMessage `json:"max"`
	Chunks    int             `json:"chunks"`
	Rows      int64           `json:"rows"`
	Bytes     int64           `json:"bytes"` // uncompressed
	// Estimated: some chunks reach out of the range. Bytes are then their share; rows too,
	// but in a dry run, which counts.
	Estimated bool `json:"estimated"`
}

func runDropRange(ctx context.Context, cmd *cli.Command) error {
	bounds := make([]router.Documents, 2)
	for i, flag := range []string{"min", "max"} {
		docs, err := oneDocument(cmd, flag)
		if err != nil {
			return err
		}
		if docs == nil {
			return usage(`--%s: one document is expected, '{"k": 1}'`, flag)
		}
		bounds[i] = docs
	}
	c, err := openChunks(ctx, cmd)
	if err != nil {
		return err
	}
	defer c.close()
	for _, h := range c.root.State().Shards() {
		if h.Status != manifest.ShardFree && h.Address == "" {
			return noAddress(h)
		}
	}
	min, max := bounds[0][0], bounds[1][0]
	e, err := c.router.DropRange(ctx, c.ns, min, max, cmd.Bool("dry-run"), chunkWait)
	if err != nil {
		return err
	}
	d := droppedRange{
		Namespace: c.ns.String(), DryRun: cmd.Bool("dry-run"), Min: router.ExtendedJSON(min), Max: router.ExtendedJSON(max),
		Chunks: e.Chunks, Rows: e.Rows, Bytes: e.Bytes, Estimated: e.Estimated,
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, d)
	}
	verb, about := "dropped", ""
	if d.DryRun {
		verb = "would be dropped"
	} else if d.Estimated {
		about = "about "
	}
	_, err = fmt.Fprintf(out, "%s: %s%d documents of %s in [%s, %s), in %d chunks, about %d bytes\n", verb, about, d.Rows, d.Namespace, d.Min, d.Max, d.Chunks, d.Bytes)
	return err
}
