package main

import (
	"context"
	"fmt"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func historyCommand() *cli.Command {
	return &cli.Command{
		Name:  "history",
		Usage: "remember what was: reads at a time, and drops that can be undone",
		Description: `With --keep routers make a moment every so often while something changes, and one just before each
drop. A moment costs a flush and a commit; its data stay in the store until it ends. Reads at a time
are as of the last moment before it: granary find --at, granary export --at, and in drivers
readConcern: { level: "snapshot", atClusterTime: Timestamp(SECONDS, 1) }. What was dropped comes back
with granary undrop. Without flags it shows what there is, and what it keeps from being deleted.

   granary history
   granary history --keep 24h --every 10m --store dir:/srv/granary
   granary history --off`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), dryRunFlag(),
			&cli.DurationFlag{Name: "keep", Usage: "for how long moments are kept"},
			&cli.DurationFlag{Name: "every", Value: manifest.MomentEvery, Usage: "the time between two, with --keep"},
			&cli.BoolFlag{Name: "off", Usage: "make no more; those that there are end when they would have"},
		},
		Action: runHistory,
	}
}

// history is what a cluster remembers.
type history struct {
	KeepSeconds  int64      `json:"keepSeconds"` // 0: nothing more
	EverySeconds int64      `json:"everySeconds"`
	Moments      []shownPin `json:"moments"`
	// Bytes are those of segments that only moments keep.
	Bytes  int64 `json:"bytesKept"`
	DryRun bool  `json:"dryRun,omitempty"`
}

func runHistory(ctx context.Context, cmd *cli.Command) error {
	keep, off := cmd.Duration("keep"), cmd.Bool("off")
	switch {
	case off && cmd.IsSet("keep"):
		return usage("--off and --keep %s: say one of them", keep)
	case cmd.IsSet("every") && !cmd.IsSet("keep"):
		return usage("--every goes with --keep: granary history --keep 24h --every %s", cmd.Duration("every"))
	case cmd.IsSet("keep") && keep < manifest.HistoryKeepMin:
		return usage("--keep %s: %s is the least; --off ends the history", keep, manifest.HistoryKeepMin)
	case cmd.Duration("every") < manifest.MomentEveryMin:
		return usage("--every %s: %s is the least", cmd.Duration("every"), manifest.MomentEveryMin)
	}
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	s := root.State()
	if (off || cmd.IsSet("keep")) && !cmd.Bool("dry-run") {
		s, err = root.Commit(ctx, manifest.Edit{Op: h.ID16(), Changes: []manifest.Change{manifest.PutRecord{Record: manifest.HistorySetting(keep, cmd.Duration("every"))}}, Millis: h.Wall().UnixMilli()})
		if err != nil {
			return err
		}
	}
	shown, err := historyOf(ctx, root, s)
	if err != nil {
		return err
	}
	if shown.DryRun = cmd.Bool("dry-run"); shown.DryRun && (off || cmd.IsSet("keep")) {
		shown.KeepSeconds, shown.EverySeconds = int64(keep/time.Second), int64(cmd.Duration("every")/time.Second)
	}
	if cmd.String("output") == "json" {
		return printJSON(cmd.Root().Writer, shown)
	}
	return shown.print(cmd)
}

// historyOf gathers what a root says, and what moments alone keep: it reads the copy of each.
func historyOf(ctx context.Context, root *manifest.Root, s *manifest.State) (history, error) {
	keep, every := s.HistoryKept()
	shown := history{KeepSeconds: int64(keep / time.Second), EverySeconds: int64(every / time.Second), Moments: []shownPin{}}
	live := segmentsOf(s)
	seen := make(map[manifest.SegmentID]bool)
	for _, p := range s.Moments() {
		shown.Moments = append(shown.Moments, showPin(p))
		then, err := root.Copy(ctx, manifest.PinKey(p.ID))
		if err != nil {
			if now, _, again := root.Load(ctx); again == nil && !hasPin(now, p) {
				continue // its time was over just now
			}
			return shown, fmt.Errorf("moment %q: %w", p.Name, err)
		}
		for id, size := range segmentsOf(then) {
			if _, ok := live[id]; !ok && !seen[id] {
				seen[id] = true
				shown.Bytes += size
			}
		}
	}
	return shown, nil
}

// segmentsOf are the segments that a root refers to, and their sizes.
func segmentsOf(s *manifest.State) map[manifest.SegmentID]int64 {
	all := make(map[manifest.SegmentID]int64)
	for c := range s.AllChunks() {
		for i := range c.Refs {
			all[c.Refs[i].Segment] = int64(c.Refs[i].Size)
		}
	}
	return all
}

func hasPin(s *manifest.State, p manifest.Pin) bool {
	for _, x := range s.Pins() {
		if x.ID == p.ID {
			return true
		}
	}
	return false
}

func (x history) print(cmd *cli.Command) error {
	out := cmd.Root().Writer
	would := ""
	if x.DryRun {
		would = "nothing was changed; it would be: "
	}
	if x.KeepSeconds == 0 {
		fmt.Fprintf(out, "%sno history is kept; granary history --keep 24h has it begin\n", would)
	} else {
		fmt.Fprintf(out, "%sa moment every %s while something changes, and before each drop, kept for %s\n",
			would, time.Duration(x.EverySeconds)*time.Second, time.Duration(x.KeepSeconds)*time.Second)
	}
	_, err := fmt.Fprintf(out, "%d moments keep %d bytes that nothing else needs\n", len(x.Moments), x.Bytes)
	for _, m := range x.Moments {
		fmt.Fprintf(out, "  %s\n", m.Name)
	}
	return err
}
