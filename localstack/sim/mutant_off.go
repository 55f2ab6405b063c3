//go:build !mutants

package sim

import (
	"context"

	"github.com/granarydb/granary/compactor/gc"
)

// collectSeals is the collector's part in the rules that a build with the tag mutants can
// switch off. Here none can be.
func collectSeals(context.Context, *gc.Sweeper) {}
