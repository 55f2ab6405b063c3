package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/compactor/expire"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/compactor/rewrite"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func compactCommand() *cli.Command {
	return &cli.Command{
		Name:  "compact",
		Usage: "run a process that merges segments; or do it once, or show what there is to do",
		Description: `Segments are merged by themselves: granary local and granary writer do it for the shards that
they hold, unless told --upkeep=false. This does it for all shards, beside them or in their
place, also when nobody holds any. Several at once share the work. What has expired by a TTL
index leaves, too. It deletes nothing: granary gc does.

   granary compact --store dir:/srv/granary
   granary compact --dry-run --store dir:/srv/granary
   granary compact --once --compact-mb-per-second 8 --store dir:/srv/granary

How much of the store it may use is said by the flags, or for all processes by the cluster's
setting:

   mongosh --eval 'db.getSiblingDB("config").settings.updateOne({ _id: "compaction" },
      { $set: { bytesPerSecond: 8388608, requestsPerSecond: 20 } }, { upsert: true })'

Ctrl-C ends it in good order: what was merged is committed, and its job is over.`,
		Flags: slices.Concat(serveFlags(forever), paceFlags(), []cli.Flag{
			outputFlag(), dryRunFlag(),
			&cli.IntFlag{Name: "nice", Sources: env("nice"), Value: 10, Validator: niceOK, Usage: "how far its processor time gives way to others on the machine, as the command nice has it (on Linux); 0: not at all"},
			&cli.BoolFlag{Name: "once", Usage: "merge until there is nothing left to merge, and end"},
			newShards(),
		}),
		Action: runCompact,
	}
}

// paceFlags bound what merging segments may ask of the store.
func paceFlags() []cli.Flag {
	const other = "as the cluster's setting compaction says, without one "
	return []cli.Flag{
		&cli.IntFlag{Name: "compact-mb-per-second", Sources: env("compact-mb-per-second"), DefaultText: other + "32", Validator: positive[int]("--compact-mb-per-second"), Usage: "how much merging segments reads and writes in a second"},
		&cli.IntFlag{Name: "compact-requests-per-second", Sources: env("compact-requests-per-second"), DefaultText: other + "100", Validator: positive[int]("--compact-requests-per-second"), Usage: "how many requests it makes for that"},
	}
}

// paceOf is what the flags say: bytes and requests a second; 0: nothing.
func paceOf(cmd *cli.Command) (bytes, requests int64) {
	return int64(cmd.Int("compact-mb-per-second")) << 20, int64(cmd.Int("compact-requests-per-second"))
}

func niceOK(n int) error {
	if n < 0 || n > 19 {
		return fmt.Errorf("--nice is from 0 to 19, not %d", n)
	}
	return nil
}

// alone: the process is there for one command. A test has several.
var alone bool

func runCompact(ctx context.Context, cmd *cli.Command) error {
	if n := cmd.Int("nice"); alone && n > 0 {
		giveWay(n)
	}
	if cmd.Bool("once") || cmd.Bool("dry-run") {
		return compactOnce(ctx, cmd)
	}
	if err := sharedStore(cmd); err != nil {
		return err
	}
	p, err := newProcess(ctx, cmd, cmd.Int("new-shards"))
	defer p.close()
	if err != nil {
		return p.up(ctx, err)
	}
	c, err := localstack.OpenCompactor(ctx, p.bucket, p.host, p.options)
	if err != nil {
		return p.up(ctx, err)
	}
	p.metered.watch(c.Base, nil)
	p.health.since = c.SinceStore
	p.announce("    a compactor of its own")
	return p.serve(ctx, nil, "committing what is merged, ending the job", c.Close)
}

// compaction is what compact --once did, or --dry-run would do.
type compaction struct {
	DryRun bool `json:"dryRun"`
	// Jobs are what there is to do, the most urgent first; those of others that are under way
	// are Running.
	Jobs    []compactionLine `json:"jobs,omitempty"`
	Running []jobLine        `json:"running,omitempty"`
	// Read and Space are how the store is now: how many segments a point read may have to ask,
	// in the mean of the chunks and of the worst one, and how many rows are stored for each live
	// one.
	Read     float64 `json:"readAmplification"`
	ReadMost int     `json:"readAmplificationMost"`
	Space    float64 `json:"spaceAmplification"`
	// What was done.
	Merged       int64 `json:"merged"`
	BytesRead    int64 `json:"bytesRead"`
	BytesWritten int64 `json:"bytesWritten"`
	Expired      int64 `json:"expiredRows"`       // left out of what was written
	Left         int   `json:"expiredReferences"` // that left by a change of the root alone
	Stopped      bool  `json:"stopped,omitempty"`
}

// compactionLine is one merge of a chunk's segments, and what is expected of it.
type compactionLine struct {
	Namespace   string           `json:"ns"`
	Chunk       manifest.ChunkID `json:"chunk"`
	Shard       manifest.ShardID `json:"shard"`
	Why         string           `json:"why"` // clipped, crowded, tiered, obsolete
	Reason      string           `json:"reason"`
	Inputs      []string         `json:"inputs"`
	Rows        uint64           `json:"rows"`
	Bytes       uint64           `json:"bytes"`
	Writes      uint64           `json:"bytesWritten"`
	Write       float64          `json:"writeAmplification"`
	ReadBefore  int              `json:"readAmplificationBefore"`
	ReadAfter   int              `json:"readAmplification"`
	SpaceBefore float64          `json:"spaceAmplificationBefore"`
	SpaceAfter  float64          `json:"spaceAmplification"`
}

// jobLine is a registered job.
type jobLine struct {
	Job     string             `json:"job"`
	Kind    string             `json:"kind"`
	Holder  string             `json:"holder"`
	Started string             `json:"started"` // by its clock
	Chunks  []manifest.ChunkID `json:"chunks,omitempty"`
}

func jobLines(s *manifest.State) []jobLine {
	list := []jobLine{}
	for _, j := range s.Jobs() {
		list = append(list, jobLine{
			Job: hex.EncodeToString(j.ID[:]), Kind: j.Kind, Holder: j.Holder,
			Started: time.UnixMilli(j.StartedMillis).UTC().Format(time.RFC3339), Chunks: j.Chunks(),
		})
	}
	return list
}

func compactOnce(ctx context.Context, cmd *cli.Command) error {
	h := host.System()
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	r := rewriterOf(cmd, b, root, h)
	d := compaction{DryRun: cmd.Bool("dry-run")}
	if !d.DryRun {
		err = d.run(ctx, r, h)
	}
	if err != nil && !d.Stopped {
		return fmt.Errorf("after %d merges: %w", d.Merged, err)
	}
	d.look(r)
	if err := d.show(cmd); err != nil {
		return err
	}
	if d.Stopped {
		return coded{errors.New("stopped before everything was merged: granary compact --once goes on"), codePartial}
	}
	return nil
}

func rewriterOf(cmd *cli.Command, b *store, root *manifest.Root, h host.Host) *rewrite.Rewriter {
	name := h.ID16()
	set := rewrite.Settings{}
	set.BytesPerSecond, set.RequestsPerSecond = paceOf(cmd)
	return rewrite.New(rewrite.Config{
		Root: root, Open: b.Open, Host: h, Holder: hex.EncodeToString(name[:]), Log: newLogger(cmd), Settings: set,
	})
}

// tickBytes is after how much progress is shown.
const tickBytes = 64 << 20

// run merges until there is nothing left to merge, or ctx ends.
func (d *compaction) run(ctx context.Context, r *rewrite.Rewriter, h host.Host) (err error) {
	progress := isTerminal(os.Stderr)
	for left := true; left && err == nil; {
		var t rewrite.Ticked
		t, err = r.Tick(ctx, rewrite.Budget{Bytes: tickBytes})
		left = t.Left || t.TooLarge > 0 && t.Merges > 0
		if err == nil && t.TooLarge > 0 && t.Merges == 0 { // what is larger than that goes alone
			t, err = r.Tick(ctx, rewrite.Budget{})
			left = false
		}
		n := r.Counts()
		d.Merged, d.BytesRead, d.BytesWritten, d.Expired = n.Merges, n.BytesRead, n.BytesWritten, n.Expired
		if progress {
			fmt.Fprintf(os.Stderr, "\r%d merged, %d to go, %d MB read, %d MB written ", n.Merges, n.Backlog, n.BytesRead>>20, n.BytesWritten>>20)
		}
	}
	if progress {
		fmt.Fprintln(os.Stderr)
	}
	if err == nil {
		d.Left, err = expire.Sweep(ctx, r.Root, h)
	}
	d.Stopped = err != nil && ctx.Err() != nil
	return err
}

// look takes in how the store is, as far as this process knows.
func (d *compaction) look(r *rewrite.Rewriter) {
	s := r.Root.State()
	for _, c := range r.Plan(s) {
		d.Jobs = append(d.Jobs, compactionOf(s, &c))
	}
	d.Running = jobLines(s)
	x := r.Shape()
	d.Read, d.ReadMost, d.Space = x.Read(), x.ReadMost, x.Space()
}

func compactionOf(s *manifest.State, c *plan.Compaction) compactionLine {
	o := c.Outcome()
	l := compactionLine{
		Namespace: s.Collection(c.Chunk.Collection).Namespace(), Chunk: c.Chunk.ID, Shard: c.Chunk.Shard, Why: c.Why.String(), Reason: c.Reason,
		Rows: c.Rows, Bytes: c.Bytes, Writes: o.Bytes, Write: o.Write,
		ReadBefore: o.ReadBefore, ReadAfter: o.ReadAfter, SpaceBefore: o.SpaceBefore, SpaceAfter: o.SpaceAfter,
	}
	for _, r := range c.Inputs() {
		l.Inputs = append(l.Inputs, r.Segment.Key())
	}
	return l
}

func (d *compaction) show(cmd *cli.Command) error {
	out := cmd.Root().Writer
	if cmd.String("output") == "json" {
		return printJSON(out, d)
	}
	if !d.DryRun {
		fmt.Fprintf(out, "merged: the segments of %d chunks, %d bytes read, %d written; %d expired rows were left out, %d segments had nothing else\n",
			d.Merged, d.BytesRead, d.BytesWritten, d.Expired, d.Left)
	}
	if err := d.printJobs(out); err != nil {
		return err
	}
	for _, j := range d.Running {
		fmt.Fprintf(out, "under way: %s by %.8s since %s, %d chunks\n", j.Kind, j.Holder, j.Started, len(j.Chunks))
	}
	_, err := fmt.Fprintf(out, "a point read may have to ask %.1f segments, at most %d; %.2f rows are stored for each live one\n", d.Read, d.ReadMost, d.Space)
	return err
}

func (d *compaction) printJobs(out io.Writer) error {
	if len(d.Jobs) == 0 {
		_, err := fmt.Fprintln(out, "nothing is to be merged")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "COLLECTION\tCHUNK\tSHARD\tSEGMENTS\tBYTES\tWRITES\tPER BYTE GAINED\tREADS ASK\tROWS PER LIVE\tWHY")
	for _, l := range d.Jobs[:min(linesMax, len(d.Jobs))] {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%.1f\t%d -> %d\t%.2f -> %.2f\t%s: %s\n", l.Namespace, l.Chunk, l.Shard, len(l.Inputs), l.Bytes, l.Writes, l.Write,
			l.ReadBefore, l.ReadAfter, l.SpaceBefore, l.SpaceAfter, l.Why, l.Reason)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if n := len(d.Jobs) - linesMax; n > 0 {
		fmt.Fprintf(out, "and %d more\n", n)
	}
	return nil
}
