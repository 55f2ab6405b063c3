package faultbucket

import (
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest/host"
)

// Rule asks for a fault on the calls that it matches.
type Rule struct {
	Verbs  []layer.Verb // none: all
	Prefix string       // of the key
	// From and To narrow it to the From-th to the To-th matching call, counted from 1. From
	// 0 is 1; To 0 is no end.
	From, To int
	// OneIn fires it once in so many matching calls, by chance; 0 and 1: always.
	OneIn uint64
	// Fault is what happens. A Pick of 0 is drawn by chance.
	Fault Fault
}

func (r Rule) matches(c Call) bool {
	return (len(r.Verbs) == 0 || slices.Contains(r.Verbs, c.Verb)) && strings.HasPrefix(c.Key, r.Prefix)
}

// Rules makes a plan: the first rule that matches and fires decides. All chance comes from
// random; the same calls in the same order then get the same faults.
func Rules(random host.Rand, rules ...Rule) Plan {
	seen := make([]int, len(rules))
	return func(c Call) Fault {
		for i, r := range rules {
			if !r.matches(c) {
				continue
			}
			seen[i]++
			if seen[i] < r.From || r.To > 0 && seen[i] > r.To {
				continue
			}
			if r.OneIn > 1 && random.Uint64()%r.OneIn != 0 {
				continue
			}
			if r.Fault.Pick == 0 {
				r.Fault.Pick = random.Uint64()
			}
			return r.Fault
		}
		return Fault{}
	}
}

// FailAt is the plan that spoils the n-th call of all, and no other: with n from 1 up, until
// a run makes fewer calls than n, a scenario meets the fault at each of its requests.
func FailAt(n int, f Fault) Plan {
	return func(c Call) Fault {
		if c.N == n {
			return f
		}
		return Fault{}
	}
}
