package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func undropCommand() *cli.Command {
	return &cli.Command{
		Name:  "undrop",
		Usage: "bring a collection back from a snapshot",
		Description: `As a new collection with the shard key, indexes, options and chunks that it had; its documents are
written once more. Without --snapshot it is taken from the newest that has it; granary snapshot
schedule makes snapshots by itself. With --as a collection that was not dropped can be had as it
was, beside what it is.

   granary undrop --list
   granary undrop --ns shop.orders --dry-run
   granary undrop --ns shop.orders --snapshot monday --as shop.orders_monday`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), dryRunFlag(),
			&cli.StringFlag{Name: "ns", Usage: "the collection: DATABASE.COLLECTION"},
			&cli.StringFlag{Name: "as", Usage: "its name from now on; without, the old one"},
			&cli.StringFlag{Name: "snapshot", Usage: "the snapshot to take it from"},
			&cli.BoolFlag{Name: "list", Usage: "list what snapshots have and the cluster has no more"},
		},
		Action: runUndrop,
	}
}

// undropped is what came back, would come back, or can.
type undropped struct {
	Namespace string `json:"ns"`
	Snapshot  string `json:"snapshot"`
	Documents int64  `json:"documents"`
	DryRun    bool   `json:"dryRun,omitempty"`
}

func runUndrop(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("list") {
		return withRouter(ctx, cmd, func(ctx context.Context, _ bucket.Bucket, r *router.Router) error {
			return listDropped(ctx, cmd, r)
		})
	}
	u := router.Undrop{Snapshot: cmd.String("snapshot"), Dry: cmd.Bool("dry-run")}
	var err error
	if u.From, err = namespaceOf(cmd, "ns"); err != nil {
		return err
	}
	if cmd.String("as") != "" {
		if u.As, err = namespaceOf(cmd, "as"); err != nil {
			return err
		}
	}
	return withRouter(ctx, cmd, func(ctx context.Context, _ bucket.Bucket, r *router.Router) error {
		d, err := r.Undrop(ctx, u)
		if err != nil {
			return err
		}
		out := cmd.Root().Writer
		if cmd.String("output") == "json" {
			return printJSON(out, undropped{d.NS.String(), d.Snapshot.Name, d.Documents, u.Dry})
		}
		if u.Dry {
			_, err = fmt.Fprintf(out, "%s would come back from snapshot %q, with about %d documents; nothing was written\n", d.NS, d.Snapshot.Name, d.Documents)
		} else {
			_, err = fmt.Fprintf(out, "%s came back from snapshot %q, with %d documents\n", d.NS, d.Snapshot.Name, d.Documents)
		}
		return err
	})
}

func listDropped(ctx context.Context, cmd *cli.Command, r *router.Router) error {
	dropped, err := r.DroppedCollections(ctx, 0)
	if err != nil {
		return err
	}
	list := []undropped{}
	for _, d := range dropped {
		list = append(list, undropped{Namespace: d.NS.String(), Snapshot: d.Snapshot.Name, Documents: d.Rows})
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, list)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COLLECTION\tSNAPSHOT\tDOCUMENTS")
	for _, d := range list {
		fmt.Fprintf(t, "%s\t%s\t%d\n", d.Namespace, d.Snapshot, d.Documents)
	}
	return t.Flush()
}
