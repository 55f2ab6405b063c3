//go:build mutants

package writer

import (
	"flag"
	"testing"
	"time"
)

var mutantSeeds = flag.Int("mutantseeds", 60, "seeds for each broken rule")

// Each rule that is switched off is noticed by the random cluster life, or is one of those
// that only a simulation with a scheduler of its own can bring out.
func TestBrokenRulesAreNoticed(t *testing.T) {
	for _, m := range Mutants() {
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
