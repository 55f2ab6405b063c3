//go:build !mutants

package rewrite

import "github.com/granarydb/granary/manifest"

func takeHead(x manifest.Compact, _ *manifest.State) manifest.Compact { return x }
