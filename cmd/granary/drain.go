package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func drainCommand() *cli.Command {
	return &cli.Command{
		Name:      "drain",
		Usage:     "empty a shard, and remove it",
		ArgsUsage: "SHARD",
		Description: `The balancers of the cluster give its chunks to other shards, copying nothing, and then the
shard is removed, as by removeShard in mongosh. Interrupted, it goes on by itself up to the
removal; the same command again waits for the rest.

   granary drain shard03 --store dir:/srv/granary --dry-run
   granary drain shard03 --store dir:/srv/granary
   granary drain shard03 --store dir:/srv/granary --cancel`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), dryRunFlag(),
			&cli.BoolFlag{Name: "cancel", Usage: "let it take chunks again"},
			&cli.DurationFlag{Name: "for", Value: 10 * time.Minute, Validator: positive[time.Duration]("--for"), Usage: "how long to wait for it to be empty"},
		},
		ArgValidator: func(_ context.Context, cmd *cli.Command) error {
			if cmd.Args().Len() != 1 {
				return usage("drain takes the name of one shard: granary drain shard03; granary status lists them")
			}
			return nil
		},
		Action: runDrain,
	}
}

// drained is how far it is.
type drained struct {
	Shard  string `json:"shard"`
	DryRun bool   `json:"dryRun"`
	State  string `json:"state"` // started, ongoing, completed, cancelled
	Chunks int    `json:"chunks"`
	// Why is what keeps each collection that is left.
	Why []collectionBalance `json:"why,omitempty"`
}

func runDrain(ctx context.Context, cmd *cli.Command) error {
	b, root, r, err := rootRouter(ctx, cmd)
	if err != nil {
		return err
	}
	defer b.Close()
	d := drained{Shard: cmd.Args().First(), DryRun: cmd.Bool("dry-run")}
	id := manifest.ShardID(d.Shard)
	switch {
	case cmd.Bool("cancel") && d.DryRun:
		return usage("--cancel has nothing to show before it is done: leave --dry-run out")
	case cmd.Bool("cancel"):
		d.State = "cancelled"
		err = r.CancelDrain(ctx, id, chunkWait)
	case d.DryRun:
		err = d.imagine(root.State(), id)
	default:
		err = d.wait(ctx, cmd, r, id)
	}
	if err != nil {
		return err
	}
	return d.show(cmd)
}

// imagine finds what a drain would do.
func (d *drained) imagine(st *manifest.State, id manifest.ShardID) error {
	h := st.Shard(id)
	if h == nil {
		return fmt.Errorf("no shard %s: granary status lists them", id)
	}
	next, err := manifest.Apply(st, manifest.Edit{Op: [16]byte{1}, Changes: balancing.Drain{}.Begin(h)}, [16]byte{1})
	if err != nil {
		return err
	}
	d.State = "started"
	d.look(next, id)
	return nil
}

// look finds what is left, and why.
func (d *drained) look(st *manifest.State, id manifest.ShardID) {
	d.Chunks, d.Why = 0, nil
	has := map[string]bool{}
	for c := range st.AllChunks() {
		if c.Shard == id {
			d.Chunks++
			has[st.Collection(c.Collection).Namespace()] = true
		}
	}
	last, _ := balancing.LastRound(st)
	plan := policy.Make(policy.Input{State: st, Settings: balancing.Of(st), NowMillis: host.System().Wall().UnixMilli(), Failures: last.Failures})
	for _, c := range balances(plan) {
		if has[c.Namespace] {
			d.Why = append(d.Why, c)
		}
	}
}

// wait asks for the removal until it is completed.
func (d *drained) wait(ctx context.Context, cmd *cli.Command, r *router.Router, id manifest.ShardID) error {
	h := host.System()
	until, said := h.Mono()+cmd.Duration("for"), -1
	for {
		x, err := r.RemoveShard(ctx, id, author(cmd), chunkWait)
		if err != nil {
			return err
		}
		d.State = x.Stage
		if x.Stage == "completed" {
			d.Chunks, d.Why = 0, nil
			return nil
		}
		if x.Chunks != said {
			said = x.Chunks
			fmt.Fprintf(cmd.Root().ErrWriter, "%s: %d chunks are left\n", id, said)
		}
		if h.Mono() > until || h.Sleep(ctx, 500*time.Millisecond) != nil {
			d.look(r.Root().State(), id)
			return nil
		}
	}
}

func (d *drained) show(cmd *cli.Command) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		if err := printJSON(out, d); err != nil {
			return err
		}
	} else if err := d.print(out); err != nil {
		return err
	}
	if !d.DryRun && d.State != "completed" && d.State != "cancelled" {
		return coded{fmt.Errorf("%s still has %d chunks", d.Shard, d.Chunks), codePartial}
	}
	return nil
}

func (d *drained) print(out io.Writer) error {
	switch {
	case d.DryRun:
		fmt.Fprintf(out, "would empty %s, which has %d chunks\n", d.Shard, d.Chunks)
	case d.State == "completed":
		fmt.Fprintf(out, "%s is empty, and removed\n", d.Shard)
	case d.State == "cancelled":
		fmt.Fprintf(out, "%s takes chunks again\n", d.Shard)
	default:
		fmt.Fprintf(out, "%s has %d chunks left\n", d.Shard, d.Chunks)
	}
	if len(d.Why) == 0 {
		return nil
	}
	return printBalances(out, d.Why)
}
