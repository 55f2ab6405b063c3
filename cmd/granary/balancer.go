package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/balancer"
	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func balancerCommand() *cli.Command {
	c := &cli.Command{
		Name:  "balancer",
		Usage: "run a process that moves chunks; start, stop, look at balancing",
		Description: `Chunks are moved by themselves: granary local and granary writer balance unless told
--balancer=false. Of all balancers on a store one is active, the others stand by. This runs one
more, in a process of its own; the commands below it are for all of them.

   granary balancer --store dir:/srv/granary
   granary balancer status --store dir:/srv/granary
   granary balancer run --dry-run --store dir:/srv/granary`,
		Flags:  slices.Concat(serveFlags(forever), []cli.Flag{newShards()}),
		Action: runBalancer,
		Commands: []*cli.Command{
			{
				Name: "start", Usage: "let balancers move chunks, as sh.startBalancer()",
				Flags: []cli.Flag{storeFlag(), outputFlag(), dryRunFlag()}, Action: switchBalancer(false),
			},
			{
				Name: "stop", Usage: "end all moves by balancers, as sh.stopBalancer(); returns when the round under way is over",
				Flags: []cli.Flag{storeFlag(), outputFlag(), dryRunFlag()}, Action: switchBalancer(true),
			},
			{
				Name: "status", Usage: "show which balancer is active, and why collections are not balanced",
				Flags: []cli.Flag{storeFlag(), outputFlag()}, Action: runBalancerStatus,
			},
			{
				Name: "run", Usage: "balance now, until there is nothing left to do",
				Flags: []cli.Flag{storeFlag(), outputFlag(), dryRunFlag()}, Action: runBalanceOnce,
			},
		},
	}
	for _, sub := range c.Commands {
		sub.OnUsageError = wrongUsage
	}
	return c
}

func runBalancer(ctx context.Context, cmd *cli.Command) error {
	secret, err := sharedSecret()
	if err != nil {
		return err
	}
	if err := sharedStore(cmd); err != nil {
		return err
	}
	p, err := newProcess(ctx, cmd, cmd.Int("new-shards"))
	defer p.close()
	if err != nil {
		return p.up(ctx, err)
	}
	network := rpc.NewHTTPDialer(secret, p.host, nil)
	defer network.Close()
	p.options.NoBalancer = false
	b, err := localstack.OpenBalancer(ctx, p.bucket, p.host, network, p.options)
	if err != nil {
		return p.up(ctx, err)
	}
	p.metered.watch(b.Base, nil)
	p.health.since = b.SinceStore
	p.announce("    a balancer of its own")
	return p.serve(ctx, nil, "ending its round", b.Close)
}

// rootRouter is a router for commands that change the root and ask no owner.
func rootRouter(ctx context.Context, cmd *cli.Command) (*store, *manifest.Root, *router.Router, error) {
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return nil, nil, nil, err
	}
	return b, root, router.New(router.Config{Root: root, Dialer: rpc.NewLocal(nil), Host: h, Prepare: b.Prepare}), nil
}

// author is how changes from the command line are signed.
func author(cmd *cli.Command) string {
	name, err := os.Hostname()
	if err != nil {
		name = "a machine without a name"
	}
	return "granary " + cmd.Name + " on " + name
}

func switchBalancer(stopped bool) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		b, root, r, err := rootRouter(ctx, cmd)
		if err != nil {
			return err
		}
		defer b.Close()
		was := balancing.Of(root.State()).Stopped
		if !cmd.Bool("dry-run") {
			if err := r.SwitchBalancer(ctx, stopped, author(cmd), chunkWait); err != nil {
				return err
			}
		}
		out := struct {
			Stopped bool `json:"stopped"`
			Was     bool `json:"wasStopped"`
			DryRun  bool `json:"dryRun"`
		}{stopped, was, cmd.Bool("dry-run")}
		if cmd.String("output") == "json" {
			return printJSON(cmd.Root().Writer, out)
		}
		state := map[bool]string{true: "stopped", false: "started"}
		text := "the balancer is " + state[stopped]
		switch {
		case was == stopped:
			text += " already"
		case out.DryRun:
			text = "the balancer would be " + state[stopped]
		}
		_, err = fmt.Fprintln(cmd.Root().Writer, text)
		return err
	}
}

// balancerReport is what status shows.
type balancerReport struct {
	Mode        string              `json:"mode"` // full, off
	Stopped     string              `json:"stopped,omitempty"`
	Window      string              `json:"window,omitempty"`
	Opens       string              `json:"opens,omitempty"`
	Active      string              `json:"active,omitempty"`
	InRound     bool                `json:"inRound"`
	Rounds      int64               `json:"rounds"`
	LastRound   string              `json:"lastRound,omitempty"`
	Collections []collectionBalance `json:"collections"`
}

type collectionBalance struct {
	Namespace string `json:"ns"`
	Balanced  bool   `json:"balanced"`
	Why       string `json:"why"`
}

func runBalancerStatus(ctx context.Context, cmd *cli.Command) error {
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	st, now := root.State(), h.Wall().UnixMilli()
	set := balancing.Of(st)
	last, _ := balancing.LastRound(st)
	r := balancerReport{Mode: "full", InRound: last.InRound, Rounds: last.Rounds, Active: last.Holder, Collections: []collectionBalance{}}
	if last.Address != "" {
		r.Active = last.Address
	}
	if last.Rounds > 0 {
		r.LastRound = time.UnixMilli(int64(last.Started)).UTC().Format(time.RFC3339)
	}
	if set.Stopped {
		r.Mode, r.Stopped = "off", set.Who()
	}
	if w := set.Window; w != nil {
		r.Window = w.String()
		if !w.Open(now) {
			r.Opens = w.Until(now)
		}
	}
	plan := policy.Make(policy.Input{State: st, Settings: set, NowMillis: now, Failures: last.Failures})
	r.Collections = balances(plan)
	if cmd.String("output") == "json" {
		return printJSON(cmd.Root().Writer, r)
	}
	return r.print(cmd.Root().Writer)
}

func balances(p policy.Plan) []collectionBalance {
	list := []collectionBalance{}
	for _, v := range p.Verdicts {
		list = append(list, collectionBalance{v.Namespace, v.Balanced(), v.Sentence})
	}
	return list
}

func (r balancerReport) print(out io.Writer) error {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(out, "%-12s %s\n", name, value)
		}
	}
	line("mode", r.Mode)
	line("stopped", r.Stopped)
	line("window", r.Window)
	line("opens", r.Opens)
	line("active", r.Active)
	line("rounds", fmt.Sprint(r.Rounds))
	line("last round", r.LastRound)
	return printBalances(out, r.Collections)
}

func printBalances(out io.Writer, list []collectionBalance) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\nCOLLECTION\tHOW IT STANDS")
	for _, c := range list {
		fmt.Fprintf(w, "%s\t%s\n", c.Namespace, c.Why)
	}
	return w.Flush()
}

// balanced is what run did, or would do.
type balanced struct {
	DryRun      bool                `json:"dryRun"`
	Moved       int                 `json:"moved"`
	Actions     []actionLine        `json:"actions,omitempty"`
	Collections []collectionBalance `json:"collections"`
}

type actionLine struct {
	Namespace string           `json:"ns"`
	Chunk     manifest.ChunkID `json:"chunk"`
	From      manifest.ShardID `json:"from"`
	To        manifest.ShardID `json:"to"`
	Reason    policy.Reason    `json:"reason"`
	Bytes     int64            `json:"bytes"`
}

func runBalanceOnce(ctx context.Context, cmd *cli.Command) error {
	secret, err := sharedSecret()
	if err != nil {
		return err
	}
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	network := rpc.NewHTTPDialer(secret, h, nil)
	defer network.Close()
	one := balancer.New(balancer.Config{Root: root, Dial: network, Host: h, Holder: author(cmd), Log: newLogger(cmd)})
	plan, err := one.Plan(ctx)
	if err != nil {
		return err
	}
	d := balanced{DryRun: cmd.Bool("dry-run")}
	for _, a := range plan.Actions {
		d.Actions = append(d.Actions, actionLine{a.Namespace, a.Chunk.ID, a.From, a.To, a.Reason, a.Bytes})
	}
	if !d.DryRun {
		if err := askable(root.State(), plan); err != nil {
			return err
		}
		if d.Moved, err = one.Once(ctx); err != nil {
			return fmt.Errorf("after %d chunks: %w", d.Moved, err)
		}
		if plan, err = one.Plan(ctx); err != nil {
			return err
		}
	}
	d.Collections = balances(plan)
	if cmd.String("output") == "json" {
		return printJSON(cmd.Root().Writer, d)
	}
	return d.print(cmd.Root().Writer)
}

// askable refuses to ask owners that only their own process can ask.
func askable(st *manifest.State, plan policy.Plan) error {
	for _, a := range plan.Actions {
		if h := st.Shard(a.From); h.Address == "" {
			return noAddress(h)
		}
	}
	return nil
}

// linesMax is how many actions a table shows.
const linesMax = 20

func (d balanced) print(out io.Writer) error {
	if d.DryRun {
		for _, a := range d.Actions[:min(linesMax, len(d.Actions))] {
			fmt.Fprintf(out, "would move: chunk %d of %s, %d bytes, from %s to %s (%s)\n", a.Chunk, a.Namespace, a.Bytes, a.From, a.To, a.Reason)
		}
		if n := len(d.Actions) - linesMax; n > 0 {
			fmt.Fprintf(out, "and %d more\n", n)
		}
	} else {
		fmt.Fprintf(out, "moved: %d chunks\n", d.Moved)
	}
	return printBalances(out, d.Collections)
}
