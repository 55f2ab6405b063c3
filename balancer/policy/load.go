package policy

import (
	"slices"

	"github.com/granarydb/granary/manifest"
)

// A shard is too busy from busyShare of the average on, when it has busyMin requests a second
// more than that.
const (
	busyShare = 1.5
	busyMin   = 100
	// calmMax bounds the moves of one plan: rates are of the past, and a moved chunk must be
	// looked at where it is before the next decision.
	calmMax = 4
)

// calm moves chunks off the busiest shard of a location, to the one that is asked least.
func (w *work) calm() {
	places := map[manifest.LocationID]bool{}
	for _, s := range w.shards {
		if at := s.at(); !places[at] {
			places[at] = true
			w.calmAt(at)
		}
	}
}

func (w *work) calmAt(at manifest.LocationID) {
	shards := slices.DeleteFunc(w.takers(""), func(s *shard) bool { return s.at() != at })
	if len(shards) < 2 {
		return
	}
	var total float64
	for _, s := range shards {
		total += s.load
	}
	average := total / float64(len(shards))
	var groups []*group
	for _, c := range w.collections {
		groups = append(groups, c.groups()...)
	}
	for range calmMax {
		most, least := ends(shards, func(s *shard) float64 { return s.load })
		if most.load < average*busyShare || most.load-average < busyMin || !w.calmOne(groups, most, least) {
			return
		}
	}
}

// calmOne moves the chunk whose load comes closest to half of what the two shards differ by,
// if the other rules stay content with it. A small chunk may have to be exchanged for one
// that is asked less, because its number counts.
func (w *work) calmOne(groups []*group, most, least *shard) bool {
	diff := most.load - least.load
	var g *group
	var best, back *item
	gain := 0.0
	for _, each := range groups {
		calmest := each.calmest(least)
		for _, x := range each.items {
			if x.on != most || x.fixed() || x.load <= 0 || each.zone != "" && !least.zones.InZone(each.zone) {
				continue
			}
			for _, y := range []*item{nil, calmest} {
				moves := x.load
				if y != nil && !x.dealt {
					continue
				}
				if y != nil {
					moves -= y.load
				}
				// Half of the difference is best; all of it, or nothing, gains nothing.
				if worth := moves * (diff - moves); worth > gain && each.content(x, y, least) {
					g, best, back, gain = each, x, y, worth
				}
			}
		}
	}
	if best == nil {
		return false
	}
	g.move(best, least, Busy)
	if back != nil {
		g.move(back, most, Busy)
	}
	return true
}

// calmest is the small chunk of a shard that is asked least, which could come back for
// another; nil: there is none.
func (g *group) calmest(on *shard) (best *item) {
	for _, y := range g.items {
		if y.on == on && y.dealt && !y.fixed() && (best == nil || y.load < best.load) {
			best = y
		}
	}
	return best
}

// content reports whether size and count have nothing to do after x went, and back came.
func (g *group) content(x, back *item, to *shard) bool {
	from := x.on
	change := func(y *item, s *shard, sign int) {
		g.bytes[s.index] += int64(sign) * y.bytes
		if y.dealt {
			g.small[s.index] += sign
		}
	}
	swap := func(sign int) {
		change(x, from, -sign)
		change(x, to, sign)
		if back != nil {
			change(back, to, -sign)
			change(back, from, sign)
		}
	}
	swap(1)
	defer swap(-1)
	most, least := ends(g.shards, func(s *shard) int { return g.small[s.index] })
	return g.spread() < g.threshold() && g.small[most.index]-g.small[least.index] < 2
}
