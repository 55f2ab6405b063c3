package main

import (
	"context"
	"fmt"
	"os"

	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func fsckCommand() *cli.Command {
	return &cli.Command{
		Name:  "fsck",
		Usage: "check every invariant against the objects in the store",
		Description: `Reads only, also beside a running cluster. Exit code 3 when something is wrong; every
problem names the rule, the object and the key range at stake.

   granary fsck --store dir:./granary-data --deep`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(),
			&cli.BoolFlag{Name: "deep", Usage: "read every row of every segment, not only their tails"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			h := host.System()
			b, root, err := openCluster(ctx, cmd, h)
			if err != nil {
				return err
			}
			defer b.Close()
			c := &fsck.Checker{Root: root, Bucket: b, Open: b.Open, Deep: cmd.Bool("deep")}
			if isTerminal(os.Stderr) {
				c.Progress = func(done, total int) { fmt.Fprintf(os.Stderr, "\r%d of %d chunks", done, total) }
				defer fmt.Fprintln(os.Stderr)
			}
			r, err := c.Run(ctx)
			if err != nil {
				return err
			}
			if err := printReport(cmd, r); err != nil {
				return err
			}
			if n := len(r.Problems); n > 0 {
				return coded{fmt.Errorf("%d problems", n), codePartial}
			}
			return nil
		},
	}
}

func printReport(cmd *cli.Command, r *fsck.Report) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, r)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "PROBLEM  %s\n  object %s\n  chunk  %s\n  %s\n", p.Rule, p.Object, p.Chunk, p.Detail)
	}
	_, err := fmt.Fprintf(out, "root version %d: %d collections, %d chunks, %d segments (%d bytes), %d log objects above the floors with %d records, %d orphans (%d bytes)\n",
		r.Version, r.Collections, r.Chunks, r.Segments, r.Bytes, r.WALObjects, r.WALRecords, r.Orphans, r.OrphanBytes)
	if err == nil && len(r.Problems) == 0 {
		_, err = fmt.Fprintln(out, "clean")
	}
	return err
}

// isTerminal reports whether progress may be drawn.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}
