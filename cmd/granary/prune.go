package main

import (
	"context"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/backup"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func pruneCommand() *cli.Command {
	return &cli.Command{
		Name:  "prune",
		Usage: "remove old backups, and what only they needed",
		Description: `What --keep or --older keeps stays, with everything that it needs. A backup that is being made
holds it off.

   granary backup prune --to dir:/mnt/backups --keep 7 --dry-run
   granary backup prune --to s3://backups/granary --keep 3 --older 720h`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "keep", Validator: positive[int]("--keep"), Usage: "keep this many, the newest"},
			&cli.DurationFlag{Name: "older", Validator: positive[time.Duration]("--older"), Usage: "remove only those that are older"},
			&cli.BoolFlag{Name: "take-over", Usage: "also when a backup or a prune says that it is under way: it died"},
		},
		Action: runPrune,
	}
}

func runPrune(ctx context.Context, cmd *cli.Command) error {
	if !cmd.IsSet("keep") && !cmd.IsSet("older") {
		return usage("what may go? --keep 7, or --older 720h, or both")
	}
	h := host.System()
	to, err := backupStore(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer to.Close()
	dry := cmd.Bool("dry-run")
	keep := backup.Retention{Keep: cmd.Int("keep"), MaxAgeMillis: cmd.Duration("older").Milliseconds()}
	p, err := backup.Prune(ctx, to, keep, h.Wall().UnixMilli(), dry, cmd.Bool("take-over"))
	if err != nil {
		return err
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, p)
	}
	verb := "removed"
	if dry {
		verb = "would be removed"
	}
	for _, b := range p.Gone {
		fmt.Fprintf(out, "%s: %s, of %s\n", verb, b.Name, time.UnixMilli(b.Millis).UTC().Format(time.RFC3339))
	}
	_, err = fmt.Fprintf(out, "%d backups stay, %d %s, with %d objects (%.1f MB) that no other needs\n", len(p.Kept), len(p.Gone), verb, p.Objects, float64(p.Bytes)/1e6)
	return err
}
