package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func snapshotCommand() *cli.Command {
	return &cli.Command{
		Name:  "snapshot",
		Usage: "keep everything as it is at a moment",
		Description: `A snapshot costs one flush of every shard and one commit, and copies nothing. It is read with
readConcern: { level: "snapshot", atClusterTime: Timestamp(...) }, also what was dropped since.

   granary snapshot create monday --keep 168h --store dir:/srv/granary
   granary snapshot list --store dir:/srv/granary
   granary snapshot drop monday --store dir:/srv/granary

granary history makes them by itself.`,
		Commands: []*cli.Command{
			{
				Name: "create", Usage: "make one", ArgsUsage: "NAME", ArgValidator: oneName,
				Flags: []cli.Flag{
					storeFlag(), outputFlag(),
					&cli.DurationFlag{Name: "keep", Usage: "give it up after this time; without, it stays until it is dropped"},
				},
				Action: createSnapshot,
			},
			{Name: "list", Usage: "the ones there are", Flags: []cli.Flag{storeFlag(), outputFlag()}, Action: listSnapshots},
			{Name: "drop", Usage: "give one up", ArgsUsage: "NAME", ArgValidator: oneName, Flags: []cli.Flag{storeFlag()}, Action: dropSnapshot},
		},
	}
}

// shownPin is a snapshot as it is printed.
type shownPin struct {
	Name    string           `json:"name"`
	Version manifest.Version `json:"version"`
	// At is what to give as atClusterTime in mongosh.
	At      string     `json:"atClusterTime"`
	Expires *time.Time `json:"expires,omitempty"`
}

func showPin(p manifest.Pin) shownPin {
	s := shownPin{Name: p.Name, Version: p.Version, At: fmt.Sprintf("Timestamp(%d, %d)", p.Version>>32, uint32(p.Version))}
	if p.ExpiresAt != 0 {
		at := time.Unix(p.ExpiresAt, 0).UTC()
		s.Expires = &at
	}
	return s
}

func printPins(cmd *cli.Command, pins ...manifest.Pin) error {
	list := make([]shownPin, len(pins))
	for i, p := range pins {
		list[i] = showPin(p)
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, list)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tAT CLUSTER TIME\tEXPIRES")
	for _, p := range list {
		expires := "never"
		if p.Expires != nil {
			expires = p.Expires.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", p.Name, p.At, expires)
	}
	return t.Flush()
}

// oneName requires the name of a snapshot.
func oneName(_ context.Context, cmd *cli.Command) error {
	if cmd.Args().Len() != 1 || cmd.Args().First() == "" {
		return usage("granary snapshot %s takes the name of a snapshot: granary snapshot %s monday", cmd.Name, cmd.Name)
	}
	return nil
}

func createSnapshot(ctx context.Context, cmd *cli.Command) error {
	name := cmd.Args().First()
	return withRouter(ctx, cmd, func(ctx context.Context, _ bucket.Bucket, r *router.Router) error {
		pin, err := r.CreateSnapshot(ctx, name, cmd.Duration("keep"), 0)
		if err != nil {
			return err
		}
		return printPins(cmd, pin)
	})
}

func listSnapshots(ctx context.Context, cmd *cli.Command) error {
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	return printPins(cmd, root.State().Pins()...)
}

func dropSnapshot(ctx context.Context, cmd *cli.Command) error {
	name := cmd.Args().First()
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	found := false
	for _, p := range root.State().Pins() {
		if p.Name == name {
			found = true
			if err := root.Unpin(ctx, p.ID, h.Wall().UnixMilli()); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("there is no snapshot %q; the ones there are: granary snapshot list", name)
	}
	return nil
}
