package manifesttest_test

import (
	"flag"
	"testing"

	"github.com/granarydb/granary/manifest/manifesttest"
)

var update = flag.Bool("update", false, "rewrite the scenarios in testdata")

// TestScenarios runs every change, accepted and refused, and the counterexamples that a
// missing precondition would allow.
func TestScenarios(t *testing.T) {
	manifesttest.Run(t, "testdata/*.txt", *update)
}
