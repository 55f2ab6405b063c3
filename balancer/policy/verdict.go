package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/granarydb/granary/manifest/balancing"
)

// violations are MongoDB's words for the reasons.
var violations = map[Reason]string{
	Drain: "draining", Zone: "zoneViolation", Size: "chunksImbalance", Busy: "chunksImbalance", Count: "chunksImbalance",
}

// gate is why an action may not be carried out now; "": it may.
func (c *collection) gate(a Action) string {
	s, now := c.w.in.Settings, c.w.in.NowMillis
	switch {
	case s.Stopped:
		return fmt.Sprintf("the balancer was stopped %s: sh.startBalancer() starts it", s.Who())
	case !c.info.PermitsMigrations():
		return fmt.Sprintf("migrations of the collection are disabled: sh.enableMigrations(%q)", c.info.Namespace())
	case c.info.NoBalance:
		return fmt.Sprintf("balancing of the collection is off: sh.enableBalancing(%q)", c.info.Namespace())
	case a.Reason != Drain && !s.Window.Open(now):
		return fmt.Sprintf("window closed until %s (activeWindow is %s)", s.Window.Until(now), s.Window)
	}
	if f := c.w.failures[a.Chunk.ID]; f != nil {
		return waiting(f)
	}
	return ""
}

func waiting(f *balancing.Failure) string {
	return fmt.Sprintf("the last move failed (%s); next try at %s", f.Cause, f.Again())
}

// verdict says how the collection stands.
func (c *collection) verdict() balancing.Verdict {
	v := balancing.Verdict{Namespace: c.info.Namespace()}
	first := func(r Reason) {
		if v.Violation == "" {
			v.Violation = violations[r]
		}
	}
	var kept string
	doing := map[Reason]int{}
	for _, r := range []Reason{Drain, Zone, Size, Busy, Count} {
		for _, a := range c.actions {
			if a.Reason != r {
				continue
			}
			first(r)
			if why := c.gate(a); why == "" {
				doing[r]++
			} else if kept == "" {
				kept = why
			}
		}
		if i := slices.IndexFunc(c.stuck, func(s stuck) bool { return s.reason == r }); i >= 0 {
			first(r)
			if kept == "" {
				kept = c.stuck[i].sentence
			}
		}
	}
	switch {
	case v.Violation == "":
		v.Sentence = c.content()
	case len(doing) > 0:
		v.Sentence = "being balanced: " + moves(doing)
		if kept != "" {
			v.Sentence += "; the rest waits: " + kept
		}
	default:
		v.Sentence = "not balanced: " + kept
	}
	return v
}

// moves is "3 chunks move (drain), 1 chunk moves (size)".
func moves(doing map[Reason]int) string {
	var parts []string
	for _, r := range []Reason{Drain, Zone, Size, Busy, Count} {
		switch n := doing[r]; n {
		case 0:
		case 1:
			parts = append(parts, fmt.Sprintf("1 chunk moves (%s)", r))
		default:
			parts = append(parts, fmt.Sprintf("%d chunks move (%s)", n, r))
		}
	}
	return strings.Join(parts, ", ")
}

// content says why nothing is to do.
func (c *collection) content() string {
	switch {
	case !c.info.Sharded:
		return fmt.Sprintf("not sharded: it is where it is, on %s", c.items[0].on.id)
	case len(c.w.takers("")) < 2:
		return "balanced: there is no second shard that takes chunks"
	case len(c.items) == 1:
		return "balanced: too few chunks, it is one chunk" + c.oneValue(c.items[0])
	case c.w.in.Settings.Policy == balancing.ByCount:
		return fmt.Sprintf("balanced: below the threshold, no shard has more than %d chunks above the average", countAbove)
	}
	var widest int64
	for _, g := range c.groups() {
		widest = max(widest, g.spread())
	}
	return fmt.Sprintf("balanced: below the threshold, its shards differ by %s of data, and chunks move from %s on (%d times the chunk size)",
		size(widest), size(sizeFactor*c.target), sizeFactor)
}

func (c *collection) oneValue(x *item) string {
	if x.jumbo() {
		return ", of one shard-key value: " + c.info.IndivisibleRemedy()
	}
	return ""
}

// indivisible says why no chunk of the fullest shard can make it better.
func (g *group) indivisible(from *shard) string {
	chunks, values := 0, 0
	for _, x := range g.items {
		if x.on == from && !x.small {
			chunks++
			if x.jumbo() {
				values++
			}
		}
	}
	text := fmt.Sprintf("too few chunks: %s has %s more than another in %d of them, and moving one whole does not make it better", from.id, size(g.spread()), chunks)
	if values > 0 {
		text += fmt.Sprintf("; %d with a single shard-key value: %s", values, g.c.info.IndivisibleRemedy())
	}
	return text
}

// size is bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
