package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func gcCommand() *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "delete what nothing refers to, or show what that is and why",
		Description: `Garbage is collected by itself, by granary local, or by the granary writer that holds the first
shard. This does it once and ends: for stores that nobody serves, and for whoever wants to
know. An object goes when neither the root nor a snapshot refers to it, and nobody could make
one refer to it any more; its age does not matter. It is safe beside everything else, and
needs the rights to list and to delete.

   granary gc --dry-run --store dir:/srv/granary
   granary gc --dry-run -o json --store dir:/srv/granary
   granary gc --store dir:/srv/granary`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), dryRunFlag(),
			&cli.DurationFlag{Name: "courtesy", Value: gc.Courtesy, Validator: positive[time.Duration]("--courtesy"), Usage: "how long replaced segments stay for those that still read an older root"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "name every object"},
		},
		Action: runGC,
	}
}

// collected is what gc did, or would do.
type collected struct {
	DryRun       bool  `json:"dryRun"`
	Deleted      int   `json:"deleted"`
	Kept         int   `json:"kept"`         // that nothing refers to, and that may not go yet
	Orphans      int64 `json:"orphans"`      // that were never committed, or are not in the root any more
	OrphanBytes  int64 `json:"orphanBytes"`  // the part of SegmentBytes in them
	Segments     int64 `json:"segments"`     // all there are
	SegmentBytes int64 `json:"segmentBytes"` // before anything went
	// Objects are all that would go or stay in a dry run, and with --verbose.
	Objects []gc.Verdict `json:"objects,omitempty"`
}

func runGC(ctx context.Context, cmd *cli.Command) error {
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	d := collected{DryRun: cmd.Bool("dry-run")}
	s := &gc.Sweeper{Root: root, Bucket: b, Open: b.Open, Host: h, Courtesy: cmd.Duration("courtesy")}
	listed := d.DryRun || cmd.Bool("verbose")
	s.Report = func(v gc.Verdict) {
		if !v.Delete {
			d.Kept++
		}
		if listed {
			d.Objects = append(d.Objects, v)
		}
	}
	stopped := d.run(ctx, s)
	if stopped != nil && ctx.Err() == nil {
		return fmt.Errorf("after %d objects: %w", d.Deleted, stopped)
	}
	if err := d.show(cmd); err != nil {
		return err
	}
	if stopped != nil {
		return coded{errors.New("stopped before everything was deleted: granary gc goes on"), codePartial}
	}
	return nil
}

// run sweeps until there is nothing left; a dry look shows as much as one sweep would do.
func (d *collected) run(ctx context.Context, s *gc.Sweeper) error {
	for left := true; left; {
		d.Kept = 0 // they are told of each time
		r, err := s.Sweep(ctx, d.DryRun)
		d.Deleted += r.Deleted
		if err != nil {
			return err
		}
		left = r.Left && !d.DryRun
	}
	for left := true; left; {
		o, err := s.Orphans(ctx, d.DryRun)
		d.Deleted, d.Orphans, d.OrphanBytes = d.Deleted+int(o.Deleted), d.Orphans+o.Found, d.OrphanBytes+o.FoundBytes
		d.Segments, d.SegmentBytes = max(d.Segments, o.Segments), max(d.SegmentBytes, o.Bytes)
		if err != nil {
			return err
		}
		left = o.Left && !d.DryRun
	}
	return nil
}

func (d *collected) show(cmd *cli.Command) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, d)
	}
	for _, v := range d.Objects {
		if err := printVerdict(out, v, d.DryRun); err != nil {
			return err
		}
	}
	verb := "deleted"
	if d.DryRun {
		verb = "would be deleted"
	}
	_, err := fmt.Fprintf(out, "%s: %d objects; %d stay for now; of %d segments (%d bytes) %d were orphans (%d bytes)\n",
		verb, d.Deleted, d.Kept, d.Segments, d.SegmentBytes, d.Orphans, d.OrphanBytes)
	return err
}

func printVerdict(out io.Writer, v gc.Verdict, dry bool) error {
	verb := "kept"
	switch {
	case v.Delete && dry:
		verb = "would be deleted"
	case v.Delete:
		verb = "deleted"
	}
	_, err := fmt.Fprintf(out, "%s  %s: %s\n", verb, v.Key, v.Why)
	return err
}
