package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func reshardCommand() *cli.Command {
	keep := func() cli.Flag {
		return &cli.DurationFlag{Name: "keep", Value: 24 * time.Hour, Usage: "how long what the collection was can be had back without a rewrite; 0s: not at all"}
	}
	c := &cli.Command{
		Name:  "reshard",
		Usage: "give a sharded collection another shard key, while it is used",
		Description: `The documents are written anew in the order of the new key, read back and compared; then one
commit switches, for which writes and reads wait a moment. Until then nothing has changed, and
Ctrl-C or abort ends it so. This process does the work, and several collections go at once.
The old version is kept for a day, which undo uses.

   granary reshard start --ns shop.orders --key '{"customer": 1}' --dry-run
   granary reshard start --ns shop.orders --key '{"customer": "hashed"}' --chunks 64
   granary reshard status
   granary reshard abort --ns shop.orders
   granary reshard undo --ns shop.orders`,
		Commands: []*cli.Command{
			{
				Name: "start", Usage: "do it, and return when the collection has its new key, as sh.reshardCollection()",
				Flags: []cli.Flag{
					storeFlag(), outputFlag(), namespaceFlag(), dryRunFlag(), keep(),
					&cli.StringFlag{Name: "key", Required: true, Usage: `the new shard key: '{"customer": 1}', '{"_id": "hashed"}'`},
					&cli.BoolFlag{Name: "unique", Usage: "no two documents may have one shard key"},
					&cli.IntFlag{Name: "chunks", Usage: "about how many chunks, at most; as their size makes, if 0"},
					&cli.BoolFlag{Name: "force", Usage: "also under the key that it has: its documents are dealt out anew"},
					&cli.StringFlag{Name: "prices", Sources: env("prices"), Usage: "a file with what requests cost, for --dry-run; without one it is S3 Standard, us-east-1"},
				},
				Action: startReshard,
			},
			{Name: "status", Usage: "the ones under way, and what can be undone", Flags: []cli.Flag{storeFlag(), outputFlag()}, Action: showReshards},
			{
				Name: "undo", Usage: "take the last one back: at once if nothing was written since, otherwise by a rewrite with what was written",
				Flags: []cli.Flag{storeFlag(), outputFlag(), namespaceFlag(), dryRunFlag(), keep()}, Action: undoReshard,
			},
			{
				Name: "abort", Usage: "end the one of a collection, which keeps its key, as sh.abortReshardCollection()",
				Flags: []cli.Flag{storeFlag(), namespaceFlag()}, Action: abortReshard,
			},
		},
	}
	for _, sub := range c.Commands {
		sub.OnUsageError = wrongUsage
	}
	return c
}

// reshardDone is what a start or an undo did, or would do.
type reshardDone struct {
	Namespace string          `json:"ns"`
	Key       json.RawMessage `json:"key"`
	DryRun    bool            `json:"dryRun"`
	// Restored: an undo had nothing to rewrite.
	Restored  bool  `json:"restored"`
	Documents int64 `json:"documents"`
	Bytes     int64 `json:"bytes"` // uncompressed
	// What it will cost: only in a dry run.
	Cost *reshardCost `json:"cost,omitempty"`
	// SecondsToUndo is how long it can be taken back without a rewrite.
	SecondsToUndo int64 `json:"secondsToUndo"`
}

// reshardCost is about what a rewrite takes of the store.
type reshardCost struct {
	StoredBytes int64   `json:"storedBytes"` // more than now, while the old version is kept
	Puts        int64   `json:"puts"`
	Gets        int64   `json:"gets"`
	Dollars     float64 `json:"dollars"`
	Prices      string  `json:"prices"`
}

func (p Prices) ofReshard(e reshard.Estimate) *reshardCost {
	return &reshardCost{
		StoredBytes: e.Stored, Puts: e.Puts, Gets: e.Gets, Prices: p.Name,
		Dollars: p.Cost(layer.Put, layer.Count{Requests: e.Puts, Bytes: e.Written}) + p.Cost(layer.Get, layer.Count{Requests: e.Gets, Bytes: e.Read}),
	}
}

// collectionNamed is the collection of --ns in a root.
func collectionNamed(cmd *cli.Command, s *manifest.State) (*manifest.Collection, error) {
	ns, err := namespaceOf(cmd, "ns")
	if err != nil {
		return nil, err
	}
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil {
		return nil, fmt.Errorf("there is no collection %s; those there are: granary status", cmd.String("ns"))
	}
	return c, nil
}

func startReshard(ctx context.Context, cmd *cli.Command) error {
	docs, err := oneDocument(cmd, "key")
	if err != nil {
		return err
	}
	if docs == nil {
		return usage(`--key: one document is expected, '{"customer": 1}'`)
	}
	key, err := shardkey.ParsePattern(docs[0])
	if err != nil {
		return usage("--key: %v", err)
	}
	if cmd.Int("chunks") < 0 || cmd.Duration("keep") < 0 {
		return usage("--chunks and --keep are not negative")
	}
	prices, err := loadPrices(cmd.String("prices"))
	if err != nil {
		return err
	}
	if cmd.Bool("dry-run") {
		return onRoot(ctx, cmd, func(s *manifest.State, c *manifest.Collection) error {
			if !c.Sharded {
				return fmt.Errorf("%s is not sharded: mongosh --eval 'sh.shardCollection(%q, { ... })' gives it a key while it is used", c.Namespace(), c.Namespace())
			}
			e := reshard.Estimated(s, c, reshard.Settings{})
			return printReshard(cmd, reshardDone{
				Namespace: c.Namespace(), Key: router.ExtendedJSON(key.BSON()), DryRun: true, Documents: e.Documents, Bytes: e.Bytes,
				Cost: prices.ofReshard(e), SecondsToUndo: int64(cmd.Duration("keep") / time.Second),
			})
		})
	}
	return commanded(ctx, cmd, "reshardCollection", fmt.Sprintf(`, "key": %s, "unique": %t, "forceRedistribution": %t, "numInitialChunks": %d`,
		router.ExtendedJSON(key.BSON()), cmd.Bool("unique"), cmd.Bool("force"), cmd.Int("chunks")))
}

// onRoot looks at the collection of --ns in the root, and asks nobody.
func onRoot(ctx context.Context, cmd *cli.Command, do func(*manifest.State, *manifest.Collection) error) error {
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	c, err := collectionNamed(cmd, root.State())
	if err != nil {
		return err
	}
	return do(root.State(), c)
}

// commanded has a router of this process carry a command about --ns out, with fields behind its
// name, and prints what came of it.
func commanded(ctx context.Context, cmd *cli.Command, name, fields string) error {
	text := fmt.Sprintf(`{ "%s": %q%s, "keepOldVersionSecs": %d }`, name, cmd.String("ns"), fields, int64(cmd.Duration("keep")/time.Second))
	return withServing(ctx, cmd, func(ctx context.Context, _ bucket.Bucket, r *localstack.Router) error {
		reply, err := do(ctx, r, text)
		if err != nil {
			return err
		}
		s, err := r.Router.State(ctx, 0)
		if err != nil {
			return err
		}
		c, err := collectionNamed(cmd, s)
		if err != nil {
			return err
		}
		e := reshard.Estimated(s, c, reshard.Settings{})
		d := reshardDone{Namespace: c.Namespace(), Key: router.ExtendedJSON(c.Key.BSON()), Documents: e.Documents, Bytes: e.Bytes}
		d.Restored, _ = reply.Lookup("restored").BooleanOK()
		if u, ok := c.Undo(); ok {
			d.SecondsToUndo = max(0, u.Until-r.Router.Host().Wall().Unix())
		}
		return printReshard(cmd, d)
	})
}

func printReshard(cmd *cli.Command, d reshardDone) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, d)
	}
	verb := "has"
	if d.DryRun {
		verb = "would get"
	}
	fmt.Fprintf(out, "%s %s the shard key %s: %d documents, %d bytes\n", d.Namespace, verb, d.Key, d.Documents, d.Bytes)
	if d.Restored {
		fmt.Fprintln(out, "its old chunks are put back as they are: nothing was written since")
	}
	if c := d.Cost; c != nil {
		fmt.Fprintf(out, "about %d PUTs and %d GETs, $%.4f (%s); %d bytes more are stored while both versions are kept\n", c.Puts, c.Gets, c.Dollars, c.Prices, c.StoredBytes)
	}
	if d.SecondsToUndo > 0 {
		fmt.Fprintf(out, "for %v: granary reshard undo --ns %s\n", time.Duration(d.SecondsToUndo)*time.Second, d.Namespace)
	}
	return nil
}

// shownReshards is what granary reshard status prints.
type shownReshards struct {
	Running  []reshardStatus `json:"running"`
	Undoable []undoable      `json:"undoable"`
}

// undoable is a collection of which the version before its key is kept.
type undoable struct {
	Namespace string    `json:"ns"`
	Key       string    `json:"key"`
	Until     time.Time `json:"until"`
	// Unwritten: it can be put back without a rewrite, as far as the root tells.
	Unwritten bool `json:"unwritten"`
}

func showReshards(ctx context.Context, cmd *cli.Command) error {
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	s := root.State()
	shown := shownReshards{Running: statusOf(s).Resharding, Undoable: []undoable{}}
	for _, c := range s.Collections() {
		u, ok := c.Undo()
		for _, p := range s.Pins() {
			if ok && p.ID == u.Pin {
				shown.Undoable = append(shown.Undoable, undoable{
					Namespace: c.Namespace(), Key: c.Key.String(), Until: time.Unix(u.Until, 0).UTC(), Unwritten: u.Unwritten(s, c),
				})
			}
		}
	}
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, shown)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESHARDING\tKEY\tPHASE\tROWS\tOF\tBYTES\tSECONDS\tTAKEN OVER\tSAID AT")
	for _, r := range shown.Running {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", r.Namespace, r.Key, r.Phase, r.Rows, r.RowsTotal, r.Bytes, r.Seconds, r.TakenOver, r.At)
	}
	fmt.Fprintln(t, "\nCAN BE UNDONE\tKEY NOW\tUNTIL\tWITHOUT A REWRITE")
	for _, u := range shown.Undoable {
		fmt.Fprintf(t, "%s\t%s\t%s\t%t\n", u.Namespace, u.Key, u.Until.Format(time.RFC3339), u.Unwritten)
	}
	return t.Flush()
}

func undoReshard(ctx context.Context, cmd *cli.Command) error {
	if cmd.Duration("keep") < 0 {
		return usage("--keep is not negative")
	}
	if !cmd.Bool("dry-run") {
		return commanded(ctx, cmd, "undoReshardCollection", "")
	}
	b, root, err := openCluster(ctx, cmd, host.System())
	if err != nil {
		return err
	}
	defer b.Close()
	c, err := collectionNamed(cmd, root.State())
	if err != nil {
		return err
	}
	u, _, old, err := reshard.Kept(ctx, root, c)
	if err != nil {
		return err
	}
	s := root.State()
	e := reshard.Estimated(s, c, reshard.Settings{})
	d := reshardDone{
		Namespace: c.Namespace(), Key: router.ExtendedJSON(old.Key.BSON()), DryRun: true, Documents: e.Documents, Bytes: e.Bytes, Restored: u.Unwritten(s, c),
	}
	if !d.Restored {
		d.Cost, d.SecondsToUndo = s3Standard.ofReshard(e), int64(cmd.Duration("keep")/time.Second)
	}
	return printReshard(cmd, d)
}

func abortReshard(ctx context.Context, cmd *cli.Command) error {
	ns, err := namespaceOf(cmd, "ns")
	if err != nil {
		return err
	}
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	r := router.New(router.Config{Root: root, Host: h})
	if err := r.AbortReshard(ctx, ns, chunkWait); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.Root().Writer, "%s keeps its shard key\n", cmd.String("ns"))
	return err
}
