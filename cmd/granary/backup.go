package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/chunkstore/backup"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func backupCommand() *cli.Command {
	return &cli.Command{
		Name:  "backup",
		Usage: "copy one moment of the cluster to another store",
		Description: `Beside a running cluster, which does not wait. What the other store has already is not copied
again, so every backup after the first is small, and one that was interrupted goes on.

   granary backup --store s3://prod/granary --to s3://backups/granary
   granary backup --store dir:./granary-data --to dir:/mnt/backups --snapshot monday
   granary backup --to dir:/mnt/backups --list
   granary backup prune --to dir:/mnt/backups --keep 7 --dry-run
   granary restore --from dir:/mnt/backups --name 2026-12-01T020000Z --store dir:./restored`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(),
			toFlag(),
			&cli.StringFlag{Name: "name", Usage: "what to call it; without, the time"},
			&cli.StringFlag{Name: "snapshot", Usage: "back up this snapshot; without, one is made for the time of the backup"},
			&cli.BoolFlag{Name: "list", Usage: "list the backups there are, and make none"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be copied; needs --snapshot"},
			parallelFlag(),
		},
		Commands: []*cli.Command{pruneCommand()},
		Action:   runBackup,
	}
}

// toFlag is not required by the library, which would ask for it before a subcommand's.
func toFlag() cli.Flag { return &cli.StringFlag{Name: "to", Usage: "the store of the backups"} }

func parallelFlag() cli.Flag {
	return &cli.IntFlag{Name: "parallel", Value: 4, Validator: positive[int]("--parallel"), Usage: "objects copied at once, each in memory as a whole"}
}

// backupStore opens the store of the backups.
func backupStore(ctx context.Context, cmd *cli.Command, h host.Host) (bucket.Bucket, error) {
	if cmd.String("to") == "" {
		return nil, usage(`required flag "to" not set: --to s3://backups/granary, or --to dir:/mnt/backups`)
	}
	return otherStore(ctx, cmd, "to", h)
}

// otherStore opens a store that a flag names.
func otherStore(ctx context.Context, cmd *cli.Command, flag string, h host.Host) (bucket.Bucket, error) {
	b, err := open.URL(ctx, cmd.String(flag), h)
	if errors.Is(err, errkind.Invalid) {
		return nil, coded{fmt.Errorf("--%s: %w", flag, err), codeUsage}
	}
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, cmd.String(flag), err)
	}
	return layer.Retry(b, h, nil), nil
}

func runBackup(ctx context.Context, cmd *cli.Command) error {
	h := host.System()
	to, err := backupStore(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer to.Close()
	if cmd.Bool("list") {
		return printBackups(ctx, cmd, to)
	}
	name := cmd.String("name")
	if name == "" {
		name = h.Wall().UTC().Format("2006-01-02T150405Z")
	}
	if err := backup.CheckName(name); err != nil {
		return coded{err, codeUsage}
	}
	if snapshot := cmd.String("snapshot"); snapshot != "" {
		b, root, err := openCluster(ctx, cmd, h)
		if err != nil {
			return err
		}
		defer b.Close()
		pins := root.State().Pins()
		i := slices.IndexFunc(pins, func(p manifest.Pin) bool { return p.Name == snapshot })
		if i < 0 {
			return fmt.Errorf("there is no snapshot %q; the ones there are: granary snapshot list", snapshot)
		}
		return copyBackup(ctx, cmd, b, to, name, pins[i])
	}
	if cmd.Bool("dry-run") {
		return usage("--dry-run makes no snapshot: name one with --snapshot, granary snapshot create makes it")
	}
	return withRouter(ctx, cmd, func(ctx context.Context, b bucket.Bucket, r *router.Router) error {
		// Should this process die, the snapshot ends by itself.
		pin, err := r.CreateSnapshot(ctx, "backup "+name, 24*time.Hour, 0)
		if err != nil {
			return err
		}
		err = copyBackup(ctx, cmd, b, to, name, pin)
		return errors.Join(err, r.Root().Unpin(context.WithoutCancel(ctx), pin.ID, h.Wall().UnixMilli()))
	})
}

// copied is the report of a backup or restore.
type copied struct {
	Name    string           `json:"name"`
	Version manifest.Version `json:"version"`
	Objects int              `json:"objects"`
	Copied  int              `json:"copied"`
	There   int              `json:"there"`
	Bytes   int64            `json:"bytes"`
	DryRun  bool             `json:"dryRun,omitempty"`
}

func copyBackup(ctx context.Context, cmd *cli.Command, from, to bucket.Bucket, name string, pin manifest.Pin) error {
	plan, err := backup.Read(ctx, from, manifest.PinKey(pin.ID))
	if err != nil {
		return err
	}
	if cmd.Bool("dry-run") {
		r, err := copyPlan(ctx, cmd, from, to, plan)
		if err != nil {
			return err
		}
		return printCopied(cmd, "backed up", name, plan, r)
	}
	// Should it fail, the mark stays: what was copied is found by the next try, unless pruned.
	if err := backup.Begin(ctx, to, name); err != nil {
		return err
	}
	r, err := copyPlan(ctx, cmd, from, to, plan)
	if err == nil {
		err = backup.Finish(ctx, to, name, plan)
	}
	if err != nil {
		return err
	}
	if err := backup.End(ctx, to, name); err != nil {
		return err
	}
	return printCopied(cmd, "backed up", name, plan, r)
}

// copyPlan copies with progress, or says what there is to copy.
func copyPlan(ctx context.Context, cmd *cli.Command, from, to bucket.Bucket, plan *backup.Plan) (backup.Result, error) {
	if cmd.Bool("dry-run") {
		return backup.Result{Objects: len(plan.Objects), Bytes: plan.Bytes}, nil
	}
	c := &backup.Copier{From: from, To: to, Parallel: cmd.Int("parallel")}
	if isTerminal(os.Stderr) {
		c.Progress = func(r backup.Result) {
			fmt.Fprintf(os.Stderr, "\r%d of %d objects, %.1f MB copied", r.Copied+r.There, r.Objects, float64(r.Bytes)/1e6)
		}
		defer fmt.Fprintln(os.Stderr)
	}
	return c.Copy(ctx, plan)
}

func printCopied(cmd *cli.Command, did, name string, plan *backup.Plan, r backup.Result) error {
	out := cmd.Root().Writer
	dry := cmd.Bool("dry-run")
	if cmd.String("output") == "json" {
		return printJSON(out, copied{Name: name, Version: plan.State.Version(), Objects: r.Objects, Copied: r.Copied, There: r.There, Bytes: r.Bytes, DryRun: dry})
	}
	if dry {
		_, err := fmt.Fprintf(out, "%s: %d objects, at most %.1f MB; nothing was copied\n", name, r.Objects, float64(r.Bytes)/1e6)
		return err
	}
	_, err := fmt.Fprintf(out, "%s %s, root version %d: %d objects, %d of them copied (%.1f MB), %d were there\n",
		did, name, plan.State.Version(), r.Objects, r.Copied, float64(r.Bytes)/1e6, r.There)
	return err
}

func printBackups(ctx context.Context, cmd *cli.Command, to bucket.Bucket) error {
	list, err := backup.List(ctx, to)
	if err != nil {
		return err
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, list)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tFINISHED")
	for _, b := range list {
		fmt.Fprintf(t, "%s\t%s\n", b.Name, time.UnixMilli(b.Millis).UTC().Format(time.RFC3339))
	}
	return t.Flush()
}
