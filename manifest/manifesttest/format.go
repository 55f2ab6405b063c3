package manifesttest

import (
	"fmt"
	"strings"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Format writes a state as text, one line a thing, in a fixed order.
func Format(s *manifest.State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d\n", s.Version())
	for _, h := range s.Shards() {
		b.WriteString(formatShard(h))
	}
	for _, h := range s.Retired() {
		fmt.Fprintf(&b, "retired %s epoch %d floor %s\n", h.ID, h.Epoch, h.Floor)
	}
	for _, c := range s.Collections() {
		b.WriteString(formatCollection(c))
		for k := range s.Chunks(c.ID) {
			b.WriteString(formatChunk(s, k))
		}
	}
	formatLists(&b, s)
	return b.String()
}

func formatShard(h *manifest.Shard) string {
	status := [...]string{"free", "held", "draining"}[h.Status]
	line := fmt.Sprintf("shard %s %s epoch %d floor %s", h.ID, status, h.Epoch, h.Floor)
	if h.Holder != "" {
		line += fmt.Sprintf(" by %s lease %d", h.Holder, h.LeaseMillis)
	}
	if len(h.OpenEpochs) > 0 {
		line += fmt.Sprintf(" open %v", h.OpenEpochs)
	}
	if len(h.Zones) > 0 {
		line += " zones " + strings.Join(h.Zones, ",")
	}
	if h.Location != 0 {
		line += fmt.Sprintf(" in %d", h.Location)
	}
	return line + "\n"
}

func formatCollection(c *manifest.Collection) string {
	line := fmt.Sprintf("collection %d %s key %s", c.ID, c.Namespace(), c.Key)
	if c.DataVersion > 0 {
		line += fmt.Sprintf(" dataVersion %d", c.DataVersion)
	}
	if c.NoBalance {
		line += " noBalance"
	}
	for _, z := range c.Zones {
		line += fmt.Sprintf(" zone %s %s", z.Zone, formatRange(z.Range))
	}
	return line + "\n"
}

func formatChunk(s *manifest.State, c *manifest.Chunk) string {
	line := fmt.Sprintf("  c%d v%d %s on %s floor %s", c.ID, c.Version, formatRange(c.Range), c.Shard, s.EffectiveFloor(c))
	if c.OwnFloor != (manifest.Position{}) {
		line += " (own)"
	}
	line += fmt.Sprintf(" maxSeq %d rows %d", c.MaxSeq, c.Rows)
	if c.RowsEstimated {
		line += "?"
	}
	if c.Bytes > 0 {
		line += fmt.Sprintf(" bytes %d", c.Bytes)
	}
	if c.Flags != 0 {
		line += fmt.Sprintf(" flags %d", c.Flags)
		if c.Indivisible.Value != nil {
			line += fmt.Sprintf(" by %v of %d bytes", c.Indivisible.Value, c.Indivisible.Bytes)
		}
	}
	if c.ManualUntil != 0 {
		line += fmt.Sprintf(" manual %d", c.ManualUntil)
	}
	line += "\n"
	for _, r := range c.Refs {
		line += "    " + formatRef(r) + "\n"
	}
	return line
}

func formatRef(r manifest.SegmentRef) string {
	line := fmt.Sprintf("%s keys %s..%s seq %d..%d", formatSegment(r.Segment), r.MinKey, r.MaxKey, r.MinSeq, r.MaxSeq)
	if r.FixedSeq != 0 {
		line += " fixed"
	}
	line += fmt.Sprintf(" rows %d clip %s", r.Rows, formatRange(r.Clip))
	if r.RetryUntil != 0 {
		line += fmt.Sprintf(" retry %d", r.RetryUntil)
	}
	if r.Location != 0 {
		line += fmt.Sprintf(" in %d", r.Location)
	}
	return line
}

func formatSegment(s manifest.SegmentID) string {
	creator := s.Creator.String()
	if s.Creator.Kind == manifest.CreatorJob {
		creator = fmt.Sprintf("j.%02x", s.Creator.Job[15])
	}
	return fmt.Sprintf("%02x by %s", s.Random[15], creator)
}

func formatRange(r shardkey.Range) string {
	low, high := "-inf", "+inf"
	if len(r.Min) > 0 {
		low = string(r.Min)
	}
	if len(r.Max) > 0 {
		high = string(r.Max)
	}
	return "[" + low + "," + high + ")"
}

func formatLists(b *strings.Builder, s *manifest.State) {
	for kind := manifest.RecordSetting; kind <= manifest.RecordDatabase; kind++ {
		for _, r := range s.Records(kind) {
			fmt.Fprintf(b, "record %s %s %s\n", r.Kind, r.ID, r.Body)
		}
	}
	for _, j := range s.Jobs() {
		fmt.Fprintf(b, "job %02x %s\n", j.ID[15], j.Kind)
	}
	for _, d := range s.Dropped() {
		fmt.Fprintf(b, "dropped %s at %d\n", formatSegment(d.Segment), d.Version)
	}
	for _, t := range s.Tokens() {
		outcome := "aborted"
		if t.Committed {
			outcome = "committed"
		}
		fmt.Fprintf(b, "token %s/%s %s at %d until %d\n", t.App, t.Batch, outcome, t.Version, t.ExpiresAt)
	}
	for _, p := range s.Pins() {
		fmt.Fprintf(b, "pin %02x %s of version %d\n", p.ID[15], p.Name, p.Version)
	}
	if f := s.Format(); f.MinReader != 1<<8 || f.MinWriter != 1<<8 {
		fmt.Fprintf(b, "format %s\n", f)
	}
	for _, h := range s.History() {
		fmt.Fprintf(b, "history %d %s %s %s\n", h.Version, h.What, h.NS, h.Detail)
	}
}

// Diff is the lines of two texts that are not in both: "-" went, "+" came.
func Diff(was, now string) string {
	a, b := strings.SplitAfter(was, "\n"), strings.SplitAfter(now, "\n")
	// common[i][k] is the length of the longest common part of a[i:] and b[k:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for k := len(b) - 1; k >= 0; k-- {
			if a[i] == b[k] {
				common[i][k] = common[i+1][k+1] + 1
			} else {
				common[i][k] = max(common[i+1][k], common[i][k+1])
			}
		}
	}
	var out strings.Builder
	for i, k := 0, 0; i < len(a) || k < len(b); {
		switch {
		case i < len(a) && k < len(b) && a[i] == b[k]:
			i, k = i+1, k+1
		case k == len(b) || i < len(a) && common[i+1][k] >= common[i][k+1]:
			out.WriteString("- " + a[i])
			i++
		default:
			out.WriteString("+ " + b[k])
			k++
		}
	}
	return out.String()
}
