package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/granarydb/granary/chunkstore/backup"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func restoreCommand() *cli.Command {
	return &cli.Command{
		Name:  "restore",
		Usage: "bring collections back from a backup, a snapshot or a time, or make a cluster of a backup",
		Description: `With --ns or --all into the cluster of --store, while it is used: from a backup (--from, --name), a
snapshot by its name, or a time of which one was kept (granary history). What is restored is written beside
what there is; then one commit gives it its name. Something of that name is replaced by that commit
with --replace only. Without --ns and --all a backup is made a cluster, in a store that has none.

   granary restore --ns shop.orders --at 2026-12-01T10:30:00Z --as shop.orders_then
   granary restore --ns shop.orders --at monday --replace --dry-run
   granary restore --all --from dir:/mnt/backups --name 2026-12-01T020000Z --replace
   granary restore --from dir:/mnt/backups --name 2026-12-01T020000Z --store dir:./restored
   granary fsck --store dir:./restored --deep`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(),
			&cli.StringFlag{Name: "from", Usage: "the store of the backups"},
			&cli.StringFlag{Name: "name", Usage: "the backup; granary backup --to STORE --list shows them"},
			&cli.StringFlag{Name: "at", Usage: "the name of a snapshot (granary snapshot list), or a time such as 2026-03-01T10:00:00Z (granary history)"},
			&cli.StringFlag{Name: "ns", Usage: "the collection: DATABASE.COLLECTION"},
			&cli.BoolFlag{Name: "all", Usage: "all collections"},
			&cli.StringFlag{Name: "as", Usage: "the name of the collection from now on; without, the old one"},
			&cli.BoolFlag{Name: "replace", Usage: "drop what has the name, in the commit that restores"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be restored or copied"},
			parallelFlag(),
		},
		Action: runRestore,
	}
}

func runRestore(ctx context.Context, cmd *cli.Command) error {
	if err := checkRestore(cmd); err != nil {
		return err
	}
	if cmd.String("ns") == "" && !cmd.Bool("all") {
		return restoreStore(ctx, cmd)
	}
	x := router.Restoring{Replace: cmd.Bool("replace"), Dry: cmd.Bool("dry-run")}
	var err error
	if !cmd.Bool("all") {
		if x.From, err = namespaceOf(cmd, "ns"); err != nil {
			return err
		}
	}
	if cmd.String("as") != "" {
		if x.As, err = namespaceOf(cmd, "as"); err != nil {
			return err
		}
	}
	return withRouter(ctx, cmd, func(ctx context.Context, _ bucket.Bucket, r *router.Router) error {
		if cmd.IsSet("from") {
			return restoreBackup(ctx, cmd, r, x)
		}
		pin, src, err := r.SnapshotOf(ctx, cmd.String("at"), 0)
		if err != nil {
			return err
		}
		x.Source = src
		return restoreInto(ctx, cmd, r, x, fmt.Sprintf("snapshot %q", pin.Name))
	})
}

// checkRestore refuses flags that do not go together.
func checkRestore(cmd *cli.Command) error {
	inPlace := cmd.IsSet("ns") || cmd.Bool("all")
	switch {
	case cmd.IsSet("from") == cmd.IsSet("at"):
		return usage("name what to restore from: --from STORE --name BACKUP, or --at SNAPSHOT or TIME")
	case cmd.IsSet("from") != cmd.IsSet("name"):
		return usage("--from STORE and --name BACKUP go together: granary backup --to STORE --list shows the names")
	case !inPlace && !cmd.IsSet("from"):
		return usage("--ns DATABASE.COLLECTION names what to restore, or --all")
	case cmd.IsSet("ns") && cmd.Bool("all"):
		return usage("--ns and --all exclude one another")
	case cmd.IsSet("as") && !cmd.IsSet("ns"), cmd.Bool("replace") && !inPlace:
		return usage("--as goes with --ns, --replace with --ns or --all")
	}
	return nil
}

// restored is one collection in the report of a restore.
type restored struct {
	Namespace string `json:"ns"`
	Documents int64  `json:"documents"`
	Replaced  bool   `json:"replaced"`
}

func restoreInto(ctx context.Context, cmd *cli.Command, r *router.Router, x router.Restoring, from string) error {
	list, err := r.Restore(ctx, x)
	if err != nil {
		return err
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		shown := []restored{}
		for _, c := range list {
			shown = append(shown, restored{c.NS.String(), c.Documents, c.Replaced})
		}
		return printJSON(out, struct {
			From        string     `json:"from"`
			DryRun      bool       `json:"dryRun"`
			Collections []restored `json:"collections"`
		}{from, x.Dry, shown})
	}
	verb := "restored from"
	if x.Dry {
		verb = "nothing was written; would be restored from"
	}
	fmt.Fprintf(out, "%s %s:\n", verb, from)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COLLECTION\tDOCUMENTS\tREPLACES ANOTHER")
	for _, c := range list {
		fmt.Fprintf(t, "%s\t%d\t%t\n", c.NS, c.Documents, c.Replaced)
	}
	return t.Flush()
}

// backupCache is the memory for parts of a backup's segments that are read more than once.
const backupCache = 16 << 20

// restoreBackup restores collections of a backup. Their segments are read where they are.
func restoreBackup(ctx context.Context, cmd *cli.Command, r *router.Router, x router.Restoring) error {
	from, err := otherStore(ctx, cmd, "from", host.System())
	if err != nil {
		return err
	}
	defer from.Close()
	plan, err := namedBackup(ctx, cmd, from)
	if err != nil {
		return err
	}
	store := reader.NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return from, nil }, segment.NewCache(backupCache))
	x.Source = router.Stored(plan.State, store)
	return restoreInto(ctx, cmd, r, x, fmt.Sprintf("backup %q, root version %d", cmd.String("name"), plan.State.Version()))
}

// namedBackup opens the backup of --name.
func namedBackup(ctx context.Context, cmd *cli.Command, from bucket.Bucket) (*backup.Plan, error) {
	plan, err := backup.Open(ctx, from, cmd.String("name"))
	if errors.Is(err, errkind.NotFound) {
		return nil, fmt.Errorf("--from %s has no backup %q; the ones there are: granary backup --to %s --list", cmd.String("from"), cmd.String("name"), cmd.String("from"))
	}
	return plan, err
}

// restoreStore makes a cluster of a backup, in a store that has none.
func restoreStore(ctx context.Context, cmd *cli.Command) error {
	h := host.System()
	from, err := otherStore(ctx, cmd, "from", h)
	if err != nil {
		return err
	}
	defer from.Close()
	plan, err := namedBackup(ctx, cmd, from)
	if err != nil {
		return err
	}
	to, err := openStore(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := to.Head(ctx, manifest.RootKey); !errors.Is(err, errkind.NotFound) {
		if err != nil {
			return err
		}
		return fmt.Errorf("%s holds a cluster already: restore into another store, such as --store dir:./restored, or into it with --all or --ns DATABASE.COLLECTION", cmd.String("store"))
	}
	r, err := copyPlan(ctx, cmd, from, to, plan)
	if err != nil {
		return err
	}
	if !cmd.Bool("dry-run") {
		if _, err := backup.Restore(ctx, to, h, plan); err != nil {
			return err
		}
	}
	return printCopied(cmd, "restored", cmd.String("name"), plan, r)
}
