package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/chunkstore/audit"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func zonesCommand() *cli.Command {
	c := &cli.Command{
		Name:  "zones",
		Usage: "show zones, what decides where a document is, and whether data is where it may be",
		Description: `A zone's data is in the buckets of its shards. A shard that is added with a location has
all that it holds there: rows, log, and the keys in chunk lists.

   granary zones add-shard eu01 --location 's3://granary-eu/prod?region=eu-central-1' --zone EU
   granary zones list --store s3://granary/prod
   granary zones explain shop.users '{"region": "EU", "user": 7}'
   granary zones audit --store s3://granary/prod`,
		Commands: []*cli.Command{
			{
				Name: "list", Usage: "zone ranges, their shards and locations, and how much is outside",
				Flags: []cli.Flag{storeFlag(), outputFlag()}, ArgValidator: noArguments, Action: runZonesList,
			},
			{
				Name: "explain", Usage: "which zone, shard and bound decide about a document", ArgsUsage: "NS DOC",
				Flags: []cli.Flag{storeFlag(), outputFlag()}, ArgValidator: zonesExplainArgs, Action: runZonesExplain,
			},
			{
				Name: "audit", Usage: "read every object of every location; exit code 1 when one holds what may not be there",
				Flags: []cli.Flag{storeFlag(), outputFlag()}, ArgValidator: noArguments, Action: runZonesAudit,
			},
			{
				Name: "add-shard", Usage: "add a shard, with a bucket of its own, to a zone", ArgsUsage: "SHARD",
				Flags: []cli.Flag{
					storeFlag(), outputFlag(),
					&cli.StringFlag{Name: "location", Usage: "URL of the bucket that it has for ever; empty: the cluster's own"},
					&cli.StringFlag{Name: "zone", Usage: "zone that it belongs to"},
				},
				ArgValidator: zonesShardArgs, Action: runZonesShard,
			},
		},
	}
	for _, sub := range c.Commands {
		sub.OnUsageError = wrongUsage
	}
	return c
}

func zonesExplainArgs(_ context.Context, cmd *cli.Command) error {
	if cmd.Args().Len() != 2 {
		return usage(`zones explain takes a collection and a document: granary zones explain shop.users '{"region": "EU"}'`)
	}
	return nil
}

func zonesShardArgs(_ context.Context, cmd *cli.Command) error {
	if cmd.Args().Len() != 1 {
		return usage("zones add-shard takes the name of one shard: granary zones add-shard eu01 --location s3://BUCKET/PREFIX")
	}
	return nil
}

// zoneLine is one range of zones list.
type zoneLine struct {
	Namespace string          `json:"ns"`
	Zone      string          `json:"zone"`
	Min       json.RawMessage `json:"min"`
	Max       json.RawMessage `json:"max"`
	Shards    []zoneShard     `json:"shards"`
	// Chunks are those of the range, as far as it is sharded; Outside those on other shards.
	Chunks  int   `json:"chunks"`
	Outside int   `json:"outside"`
	Bytes   int64 `json:"bytes"`
}

type zoneShard struct {
	Shard    string `json:"shard"`
	Location string `json:"location,omitempty"`
}

func runZonesList(ctx context.Context, cmd *cli.Command) error {
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	lines, err := zoneLines(root.State())
	if err != nil {
		return err
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, lines)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAMESPACE\tZONE\tFROM\tUP TO\tCHUNKS\tOUTSIDE\tSHARDS")
	for _, l := range lines {
		var on []string
		for _, s := range l.Shards {
			on = append(on, strings.TrimSuffix(s.Shard+" in "+s.Location, " in "))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", l.Namespace, l.Zone, l.Min, l.Max, l.Chunks, l.Outside, strings.Join(on, ", "))
	}
	return t.Flush()
}

func zoneLines(s *manifest.State) ([]zoneLine, error) {
	ranges, err := router.ZoneRanges(s)
	if err != nil {
		return nil, err
	}
	lines := make([]zoneLine, 0, len(ranges))
	for _, z := range ranges {
		l := zoneLine{Namespace: z.Namespace, Zone: z.Zone, Min: router.ExtendedJSON(z.Min), Max: router.ExtendedJSON(z.Max), Shards: []zoneShard{}}
		for _, h := range s.ShardsOf(z.Zone) {
			at, _ := s.Location(h.Location)
			l.Shards = append(l.Shards, zoneShard{string(h.ID), at.URL})
		}
		db, coll, _ := strings.Cut(z.Namespace, ".")
		if c := s.CollectionByName(db, coll); c != nil {
			l.count(s, c, z)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func (l *zoneLine) count(s *manifest.State, c *manifest.Collection, of router.ZoneRange) {
	for _, z := range c.Zones {
		if z.Zone != of.Zone || string(z.MinBSON) != string(of.Min) {
			continue
		}
		for chunk := range s.ChunksIn(c.ID, z.Range) {
			l.Chunks++
			l.Bytes += chunk.Bytes
			if !s.Shard(chunk.Shard).InZone(of.Zone) {
				l.Outside++
			}
		}
	}
}

func runZonesExplain(ctx context.Context, cmd *cli.Command) error {
	db, coll, ok := strings.Cut(cmd.Args().Get(0), ".")
	if !ok || db == "" || coll == "" {
		return usage("%q: name a collection as DATABASE.COLLECTION", cmd.Args().Get(0))
	}
	docs, err := router.ParseDocuments([]byte(cmd.Args().Get(1)))
	if err != nil || len(docs) != 1 {
		return usage(`%s: one document is expected, '{"region": "EU"}'`, cmd.Args().Get(1))
	}
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	p, err := router.PlaceOf(root.State(), router.Namespace{Database: db, Collection: coll}, docs[0])
	if err != nil {
		return err
	}
	where := p.Location
	if where == "" {
		where = "the cluster's own bucket"
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, map[string]any{
			"ns": p.Namespace, "key": router.ExtendedJSON(p.Key), "zone": p.Zone, "min": router.ExtendedJSON(p.Min), "max": router.ExtendedJSON(p.Max), "shard": p.Shard,
			"location": p.Location, "members": p.Members, "right": p.Right(), "why": p.Why,
			"chunk": map[string]any{"min": router.ExtendedJSON(p.Chunk.MinBSON), "max": router.ExtendedJSON(p.Chunk.MaxBSON)},
		})
	}
	zone := p.Zone
	if zone == "" {
		zone = "none"
	}
	_, err = fmt.Fprintf(out, "key    %s\nzone   %s\nshard  %s, in %s\nchunk  [%s, %s)\nwhy    %s\n",
		router.ExtendedJSON(p.Key), zone, p.Shard, where, router.ExtendedJSON(p.Chunk.MinBSON), router.ExtendedJSON(p.Chunk.MaxBSON), p.Why)
	return err
}

func runZonesAudit(ctx context.Context, cmd *cli.Command) error {
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	a := &audit.Auditor{Root: root, Open: b.Open}
	if isTerminal(os.Stderr) {
		a.Progress = func(objects int) { fmt.Fprintf(os.Stderr, "\r%d objects", objects) }
		defer fmt.Fprintln(os.Stderr)
	}
	r, err := a.Run(ctx)
	if err != nil {
		return err
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		err = printJSON(out, r)
	} else {
		err = printAudit(cmd, r)
	}
	switch {
	case err != nil:
		return err
	case len(r.Breaches) > 0:
		return fmt.Errorf("%d objects hold data of a zone where the zone has no shard; while chunks are on their way, or until what they left is collected, that is to be expected: look again", len(r.Breaches))
	case len(r.Unread) > 0:
		return fmt.Errorf("%d objects could not be read, so nobody knows what is in them; granary fsck says more", len(r.Unread))
	}
	return nil
}

func printAudit(cmd *cli.Command, r *audit.Report) error {
	out := cmd.Root().Writer
	for _, b := range r.Breaches {
		fmt.Fprintf(out, "BREACH  zone %s of %s\n  object   %s\n  in       %s\n  %d keys, the first %s: %s\n", b.Zone, b.Namespace, b.Object, b.Location, b.Count, b.Key, b.What)
	}
	for _, u := range r.Unread {
		fmt.Fprintf(out, "UNREAD  %s\n", u)
	}
	_, err := fmt.Fprintf(out, "root version %d: %d ranges of zones, %d objects with %d keys, %d objects of others\n", r.Version, r.Zones, r.Objects, r.Keys, r.Foreign)
	if err == nil && len(r.Breaches) == 0 && len(r.Unread) == 0 {
		_, err = fmt.Fprintln(out, "all of it is where it may be")
	}
	return err
}

// shardAdded is what zones add-shard did.
type shardAdded struct {
	Shard    string `json:"shard"`
	Location string `json:"location,omitempty"`
	Zone     string `json:"zone,omitempty"`
}

// addShardWait bounds the changes of the root; the probe of a bucket takes longer than they do.
const addShardWait = 2 * time.Minute

func runZonesShard(ctx context.Context, cmd *cli.Command) error {
	b, _, r, err := rootRouter(ctx, cmd)
	if err != nil {
		return err
	}
	defer b.Close()
	a := shardAdded{Shard: cmd.Args().First(), Location: cmd.String("location"), Zone: cmd.String("zone")}
	if _, err := r.AddShard(ctx, manifest.ShardID(a.Shard), a.Location, addShardWait); err != nil {
		return err
	}
	if a.Zone != "" {
		if err := r.AddShardToZone(ctx, manifest.ShardID(a.Shard), a.Zone, addShardWait); err != nil {
			return err
		}
	}
	if cmd.String("output") == "json" {
		return printJSON(cmd.Root().Writer, a)
	}
	_, err = fmt.Fprintf(cmd.Root().Writer, "%s is added; any writer on the store claims it\n", a.Shard)
	return err
}
