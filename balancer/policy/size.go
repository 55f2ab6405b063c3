package policy

import (
	"cmp"
	"slices"
)

// sizeFactor times the chunk size is what two shards may differ by.
const sizeFactor = 3

// countAbove is by how many chunks a shard may be above the average by the rule of old.
const countAbove = 8

// threshold is the difference in bytes from which a group is uneven.
func (g *group) threshold() int64 { return sizeFactor * g.c.target }

// spread is what the shards of the group differ by.
func (g *group) spread() int64 {
	most, least := ends(g.shards, func(s *shard) int64 { return g.bytes[s.index] })
	if most == nil {
		return 0
	}
	return g.bytes[most.index] - g.bytes[least.index]
}

// evenBySize moves chunks from the shard with the most bytes to the one with the fewest,
// until they differ by less than the threshold or no chunk makes it better.
func (g *group) evenBySize() {
	if len(g.shards) < 2 {
		return
	}
	for moved := 0; moved < LargeMax && g.spread() >= g.threshold(); moved++ {
		most, least := ends(g.shards, func(s *shard) int64 { return g.bytes[s.index] })
		x := g.pickBySize(most, g.bytes[most.index]-g.bytes[least.index])
		if x == nil {
			g.stuck(Size, most, g.indivisible(most))
			return
		}
		g.move(x, least, Size)
	}
}

// pickBySize is the chunk that a shard gives when it has diff more than another: one that is
// not larger than half of it, so that they end up alike, else one that is smaller than all of
// it; of these the least asked for, then the largest.
func (g *group) pickBySize(from *shard, diff int64) *item {
	var fit []*item
	for _, limit := range []int64{diff / 2, diff - 1} {
		for _, x := range g.items {
			if x.on == from && !x.fixed() && !x.small && x.bytes <= limit {
				fit = append(fit, x)
			}
		}
		if len(fit) > 0 {
			break
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return slices.MinFunc(fit, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.load, b.load), -cmp.Compare(a.bytes, b.bytes))
	})
}

// evenByCount is the rule of old.
func (g *group) evenByCount() {
	if len(g.shards) < 2 {
		return
	}
	for range LargeMax {
		most, least := ends(g.shards, func(s *shard) int { return g.chunks[s.index] })
		if (g.chunks[most.index]-countAbove)*len(g.shards) <= len(g.items) {
			return
		}
		var last *item
		for _, x := range g.items {
			if x.on == most && !x.fixed() && (last == nil || x.chunk.Version > last.chunk.Version ||
				x.chunk.Version == last.chunk.Version && x.chunk.ID > last.chunk.ID) {
				last = x
			}
		}
		if last == nil {
			g.stuck(Size, most, "")
			return
		}
		g.move(last, least, Size)
	}
}

// stuck notes that a shard has too much and can give nothing: because its chunks wait after a
// failure, else for the reason given. What moves in this plan is looked at by the next one.
func (g *group) stuck(r Reason, on *shard, why string) {
	for _, x := range g.items {
		switch {
		case x.on != on:
		case x.moved:
			return
		case x.waits != nil:
			why = waiting(x.waits)
		}
	}
	if why != "" {
		g.c.stuck = append(g.c.stuck, stuck{r, why})
	}
}
