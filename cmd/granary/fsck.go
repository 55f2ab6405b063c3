package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func fsckCommand() *cli.Command {
	return &cli.Command{
		Name:  "fsck",
		Usage: "check every invariant against the objects in the store",
		Description: `Reads only, also beside a running cluster. Exit code 3 when something is wrong; every
problem names the rule, the object and the documents at stake. A root that is lost or cannot
be read is one: granary repair makes another.

   granary fsck --store dir:./granary-data --deep`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(),
			&cli.BoolFlag{Name: "deep", Usage: "read every row of every segment, not only their tails"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			b, c, err := openChecker(ctx, cmd, host.System(), 0)
			if err != nil {
				return err
			}
			defer b.Close()
			c.Deep = cmd.Bool("deep")
			if isTerminal(os.Stderr) {
				c.Progress = func(done, total int) { fmt.Fprintf(os.Stderr, "\r%d of %d chunks", done, total) }
				defer fmt.Fprintln(os.Stderr)
			}
			r, err := c.Run(ctx)
			if errors.Is(err, errkind.NotFound) {
				return neverMade(cmd)
			}
			if err != nil {
				return err
			}
			return reported(cmd, r)
		},
	}
}

// openChecker opens a store and makes a checker of it, which reads at most rate bytes a second;
// 0: as fast as it can. The store may have no root.
func openChecker(ctx context.Context, cmd *cli.Command, h host.Host, rate int64) (*store, *fsck.Checker, error) {
	b, err := openExisting(ctx, cmd, h)
	if err != nil {
		return nil, nil, err
	}
	pace := layer.NewPacer(h, func() layer.Rate { return layer.Rate{Bytes: rate} }).Pace
	b = pace(b)
	open := openLocation(h)
	s := &store{b, places.New(b, func(ctx context.Context, url string) (bucket.Bucket, error) {
		elsewhere, err := open(ctx, url)
		if err != nil {
			return nil, err
		}
		return pace(elsewhere), nil
	}, h, nil)}
	return s, &fsck.Checker{Root: s.Root(), Bucket: b, Open: s.Open}, nil
}

// reported prints a report; the error says how many problems there are.
func reported(cmd *cli.Command, r *fsck.Report) error {
	if err := printReport(cmd, r); err != nil {
		return err
	}
	if n := len(r.Problems); n > 0 {
		return coded{fmt.Errorf("%d problems", n), codePartial}
	}
	return nil
}

func printReport(cmd *cli.Command, r *fsck.Report) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, r)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "PROBLEM  %s\n  object %s\n", p.Rule, p.Object)
		printRanges(out, p.AtStake, p.More)
		fmt.Fprintf(out, "  %s\n", p.Detail)
	}
	_, err := fmt.Fprintf(out, "root version %d: %d collections, %d chunks, %d segments (%d bytes), %d log objects above the floors with %d records, %d copies of the root, %d orphans (%d bytes)\n",
		r.Version, r.Collections, r.Chunks, r.Segments, r.Bytes, r.WALObjects, r.WALRecords, r.Copies, r.Orphans, r.OrphanBytes)
	if err == nil && len(r.Problems) == 0 {
		_, err = fmt.Fprintln(out, "clean")
	}
	return err
}

// printRanges prints which documents a problem concerns.
func printRanges(out io.Writer, ranges []fsck.KeyRange, more int) {
	for _, k := range ranges {
		fmt.Fprintf(out, "  documents %s\n", k)
	}
	if more > 0 {
		fmt.Fprintf(out, "  documents of %d more chunks\n", more)
	}
}

// isTerminal reports whether progress may be drawn.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}
