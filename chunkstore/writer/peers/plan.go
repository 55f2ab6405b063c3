package peers

import (
	"cmp"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/granarydb/granary/manifest"
)

// candidate is a live process that shards can go to.
type candidate struct {
	holder string
	any    bool
	named  []manifest.ShardID
	held   int // shards that the root names it for
}

func (c *candidate) names(id manifest.ShardID) bool { return slices.Contains(c.named, id) }
func (c *candidate) takes(id manifest.ShardID) bool { return c.any || c.names(id) }

// seen is a shard as this process sees it.
type seen struct {
	id    manifest.ShardID
	epoch manifest.Epoch
	free  bool
	// gone: its holder does not answer; lost: the root names this process, which no longer
	// serves it.
	gone, lost bool
	// waited is for how many steps of patience it has been without a holder.
	waited int
	// mine: this process serves it.
	mine bool
}

func (s *seen) orphan() bool { return s.free || s.gone || s.lost }

// view is what a plan is made on.
type view struct {
	self   candidate
	others []candidate // live, and not leaving
	shards []seen      // by id
	// settled: nobody came or went for a while.
	settled bool
}

// gift is a shard that should go to another process.
type gift struct {
	shard manifest.ShardID
	to    string
}

// plan says which shards this process should claim now, and which one it should give away.
//
// Every process makes the same plan from the same view, and does its own part of it: an
// orphan goes to a process that was started for it, else to the one with the fewest shards.
// When it does not take it, the next in line does after a step of patience. Free shards are
// taken one at a time until the view has settled, so that processes that start together
// find one another before one of them has everything.
func plan(v view) (take []seen, give *gift) {
	all := append([]candidate{v.self}, v.others...)
	free := 0
	for i := range v.shards {
		s := v.shards[i]
		if !s.orphan() {
			continue
		}
		line := queue(all, s.id)
		place := slices.Index(line, v.self.holder)
		if len(line) > 0 {
			raise(all, line[0])
		}
		switch {
		case place < 0 || !s.lost && s.waited < place:
		case s.free && free > 0 && !v.settled:
		default:
			take = append(take, s)
			if s.free {
				free++
			}
		}
	}
	if len(take) > 0 {
		return take, nil
	}
	return nil, present(v)
}

// queue is who should take a shard, the first one first.
func queue(all []candidate, id manifest.ShardID) []string {
	line := make([]candidate, 0, len(all))
	for _, c := range all {
		if c.takes(id) {
			line = append(line, c)
		}
	}
	slices.SortFunc(line, func(a, b candidate) int {
		return cmp.Or(-compareBool(a.names(id), b.names(id)), cmp.Compare(a.held, b.held), cmp.Compare(liking(b.holder, id), liking(a.holder, id)))
	})
	holders := make([]string, len(line))
	for i, c := range line {
		holders[i] = c.holder
	}
	return holders
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func raise(all []candidate, holder string) {
	for i := range all {
		if all[i].holder == holder {
			all[i].held++
		}
	}
}

// liking orders processes for a shard, and shards for a process, in a way that all agree on
// and that differs from shard to shard.
func liking(holder string, id manifest.ShardID) uint64 {
	return xxhash.Sum64String(holder + " " + string(id))
}

// present is the shard to give away: to a process that was started for it; else, once the
// view has settled, from the process with the most shards to the one with the fewest, when
// they differ by two or more.
func present(v view) *gift {
	var own []manifest.ShardID // that this process was not started for
	for _, s := range v.shards {
		if s.orphan() {
			return nil
		}
		if !s.mine || v.self.names(s.id) {
			continue
		}
		own = append(own, s.id)
		for _, c := range v.others {
			if c.names(s.id) {
				return &gift{s.id, c.holder}
			}
		}
	}
	if !v.settled || len(own) == 0 {
		return nil
	}
	var least *candidate
	for i := range v.others {
		c := &v.others[i]
		if c.held > v.self.held || c.held == v.self.held && c.holder < v.self.holder {
			return nil // it is that one's turn
		}
		if c.any && (least == nil || c.held < least.held || c.held == least.held && c.holder < least.holder) {
			least = c
		}
	}
	if least == nil || v.self.held < least.held+2 {
		return nil
	}
	likes := func(a, b manifest.ShardID) int { return cmp.Compare(liking(least.holder, a), liking(least.holder, b)) }
	return &gift{slices.MaxFunc(own, likes), least.holder}
}
