package policy

import (
	"cmp"
	"slices"
)

// deal spreads small chunks by number, when two shards differ by two or more. Shards with
// too many keep an even sample of theirs, in key order; the others take what is left in
// turn, those that lack most first, and not next to one of theirs when that can be helped.
func (g *group) deal() {
	if len(g.shards) < 2 {
		return
	}
	number := func(s *shard) int { return g.small[s.index] }
	most, least := ends(g.shards, number)
	if number(most)-number(least) < 2 {
		return
	}
	lacks := g.lacks()
	give := g.surplus(lacks)
	var before *shard
	for _, x := range g.items {
		if !x.dealt {
			continue
		}
		if give[x] {
			if to := neediest(g.shards, lacks, before); to != nil {
				lacks[to]--
				lacks[x.on]++
				g.move(x, to, Count)
			}
		}
		before = x.on
	}
	if most, least = ends(g.shards, number); number(most)-number(least) >= 2 {
		g.stuck(Count, most, "")
	}
}

// lacks is how many small chunks each shard should get; negative: give. The larger shares of
// an uneven division stay where most are.
func (g *group) lacks() map[*shard]int {
	total := 0
	for _, s := range g.shards {
		total += g.small[s.index]
	}
	order := slices.Clone(g.shards)
	slices.SortStableFunc(order, func(a, b *shard) int { return cmp.Compare(g.small[b.index], g.small[a.index]) })
	lacks := map[*shard]int{}
	for i, s := range order {
		share := total / len(order)
		if i < total%len(order) {
			share++
		}
		lacks[s] = share - g.small[s.index]
	}
	return lacks
}

// surplus is which chunks go: of each shard that has too many, an even sample in key order.
func (g *group) surplus(lacks map[*shard]int) map[*item]bool {
	loose := map[*shard]int{} // chunks that can go
	for _, x := range g.items {
		if x.dealt && !x.fixed() {
			loose[x.on]++
		}
	}
	seen := map[*shard]int{}
	give := map[*item]bool{}
	for _, x := range g.items {
		n, surplus := loose[x.on], -lacks[x.on]
		if !x.dealt || x.fixed() || surplus <= 0 {
			continue
		}
		surplus = min(surplus, n)
		j := seen[x.on]
		seen[x.on]++
		give[x] = (j+1)*surplus/n > j*surplus/n
	}
	return give
}

// neediest is the shard that lacks most, rather not the one that is named; nil when none does.
func neediest(shards []*shard, lacks map[*shard]int, not *shard) (best *shard) {
	for _, s := range shards {
		if lacks[s] <= 0 {
			continue
		}
		switch {
		case best == nil, best == not && s != not, (s == not) == (best == not) && lacks[s] > lacks[best]:
			best = s
		}
	}
	return best
}
