package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/chunkstore/repair"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func repairCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "get data back when objects of the store are lost or damaged",
		Description: `Says what is wrong and what it would do; --yes does it. A root that is lost is made again from
the newest copy of it (one a minute) and the logs: that brings back every document that was
acknowledged. What is lost is listed, with its documents, and --accept-loss gives it up, so that
the rest is served. Exit code 3 while something is wrong, or when something was given up.

Before it writes a root or passes a hole in a log, no process may hold a shard: stop them, or let
--fence end what they hold.

   granary repair --store s3://prod/granary --deep
   granary repair --store s3://prod/granary --yes
   granary repair --store s3://prod/granary --yes --accept-loss`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), dryRunFlag(),
			&cli.BoolFlag{Name: "yes", Usage: "do it"},
			&cli.BoolFlag{Name: "accept-loss", Usage: "give up what is lost"},
			&cli.BoolFlag{Name: "fence", Usage: "also while processes hold shards: they can acknowledge nothing any more"},
			&cli.BoolFlag{Name: "deep", Usage: "read every row of every segment, not only their tails"},
		},
		Action: runRepair,
	}
}

func runRepair(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("yes") && cmd.Bool("dry-run") {
		return usage("--yes and --dry-run: one of them")
	}
	h := host.System()
	b, err := openExisting(ctx, cmd, h)
	if err != nil {
		return err
	}
	s := &store{b, places.New(b, openLocation(h), h, nil)}
	defer s.Close()
	r := &repair.Repairer{Bucket: b, At: s.At, Host: h}
	if isTerminal(os.Stderr) {
		r.Progress = func(what string) { fmt.Fprintln(os.Stderr, what) }
	}
	o := repair.Options{AcceptLoss: cmd.Bool("accept-loss"), Deep: cmd.Bool("deep")}
	found, err := r.Run(ctx, o)
	if err == nil && cmd.Bool("yes") && !found.Clean() {
		if err := alive(ctx, found.Held, cmd.Bool("fence")); err != nil {
			return err
		}
		o.Write = true
		found, err = r.Run(ctx, o)
	}
	if err != nil && !errors.Is(err, repair.ErrLoss) {
		if errors.Is(err, errkind.NotFound) && found.Root == "" {
			return neverMade(cmd)
		}
		return err
	}
	if printErr := printRepair(cmd, found); printErr != nil {
		return printErr
	}
	switch {
	case err != nil:
		return coded{err, codePartial}
	case found.Clean():
		return nil
	case found.DryRun:
		return coded{errors.New("nothing was written: --yes does it"), codePartial}
	case len(found.Lost)+len(found.Unknown) > 0:
		return coded{errors.New("repaired, without what was given up"), codePartial}
	}
	return nil
}

// aliveWait is how long a holder's address is tried.
const aliveWait = 2 * time.Second

// alive refuses to end what a process holds that listens where the root says, unless fenced.
func alive(ctx context.Context, held []repair.Held, fenced bool) error {
	for _, s := range held {
		if fenced || s.Address == "" {
			continue
		}
		d := net.Dialer{Timeout: aliveWait}
		if c, err := d.DialContext(ctx, "tcp", s.Address); err == nil {
			_ = c.Close()
			return fmt.Errorf("shard %s is held by a process that listens at %s: stop it, or --fence ends what it holds", s.Shard, s.Address)
		}
	}
	return nil
}

func printRepair(cmd *cli.Command, r *repair.Report) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, r)
	}
	if r.Clean() {
		_, err := fmt.Fprintln(out, "nothing is lost")
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	if r.Root != "" {
		say("ROOT  %s", r.Root)
	}
	if r.Copy != "" {
		at := "at a time that is not known"
		if r.CopyMillis != 0 {
			at = "at " + time.UnixMilli(r.CopyMillis).UTC().Format(time.RFC3339)
		}
		say("  it is made again from %s, root version %d, written %s", r.Copy, r.CopyVersion, at)
		say("  documents  as acknowledged, from %d log records; %d chunks had moved since", r.Records, r.Folded)
		say("  else       collections, settings, users and zones are as they were then; so are documents whose shard key was changed to another shard's")
		say("  segments   %d are younger, mostly of flushes and merges, and are not needed for that", r.Unproven)
	}
	for _, u := range r.Unreadable {
		say("  cannot be read: %s", u)
	}
	for _, p := range r.Pages {
		say("PAGE  %s is lost or damaged; a copy of the root has it", p)
	}
	for _, k := range r.Needless {
		say("LOG   %s is lost or damaged; no chunk needs it, and it is passed", k)
	}
	for _, p := range r.Lost {
		say("LOST  %s: %s", p.Object, p.Detail)
		printRanges(out, p.AtStake, p.More)
	}
	for _, u := range r.Unknown {
		say("LOST  collection %d, created after the copy: its name is not known, and %d log records of it", u.Collection, u.Records)
	}
	if r.Version == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "the root is at version %d; start writers or granary local, then: granary fsck --deep\n", r.Version)
	return err
}
