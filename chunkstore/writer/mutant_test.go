//go:build mutants

package writer

import (
	"flag"
	"testing"
	"time"
)

var mutantSeeds = flag.Int("mutantseeds", 200, "seeds for each broken rule")

// aimed are the rules that this random life is too tame to miss: the simulation, which can
// stop a process between any two steps, aims at them.
var aimed = map[Mutant]bool{
	readsInHandoff: true, conflictIsFenced: true, leaseFromReply: true, sealsCollected: true, keyChangeInTwo: true, dropUnflushed: true, expiredSeen: true,
	gcByAge: true, pinIgnored: true, compactedAgainstHead: true, tombstoneDropped: true, clipLostByMerge: true, tieIgnored: true,
}

// Each rule that is switched off is noticed by the random cluster life.
func TestBrokenRulesAreNoticed(t *testing.T) {
	for _, m := range Mutants() {
		if aimed[m] {
			continue
		}
		t.Run(m.String(), func(t *testing.T) {
			SetMutant(m)
			defer SetMutant(none)
			for seed := range *mutantSeeds {
				if wrong := stress(t, uint64(seed), 20*time.Second); len(wrong) > 0 {
					t.Logf("seed %d: %.300s", seed, wrong[0])
					return
				}
			}
			t.Errorf("not noticed in %d seeds", *mutantSeeds)
		})
	}
}
