//go:build mutants

package mutant

import "sync/atomic"

var off atomic.Pointer[string]

// Set switches one rule off, for the whole program, and the one before on again.
func Set(name string) { off.Store(&name) }

// Broken reports whether the rule with this name is switched off.
func Broken(name string) bool {
	now := off.Load()
	return now != nil && *now == name
}
