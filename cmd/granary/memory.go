package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/manifest/errkind"
)

const (
	// memoryBeside is what the process may have besides memtables and cache, and memoryLeast
	// how much it must have.
	memoryBeside = 192 << 20
	memoryLeast  = 48 << 20
	// memoryOutside is what is resident and not the runtime's to count: the program itself.
	memoryOutside = 16 << 20
)

// requestBytes is the part of what is beside memtables and cache that is counted: requests under
// way, retry ids, segments being built. The rest is for stacks, buffers of connections, and what
// waits to be collected.
func requestBytes(beside int64) int64 { return beside * 2 / 3 }

// limitMemory makes the collector work before the heap has doubled, and the process give back
// what it has too much: at GOMEMLIMIT, or without one at what memtables and cache leave for. It
// returns the memory for everything that is counted besides them. Errors: Invalid when too little
// is left for it.
func limitMemory(memtable, cache int64) (*admission.Pot, error) {
	beside := int64(memoryBeside)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memtable + cache + beside - memoryOutside)
	} else {
		limit := debug.SetMemoryLimit(-1)
		beside = min(beside, limit-memtable-cache)
		if beside < memoryLeast {
			return nil, fmt.Errorf("%w: GOMEMLIMIT is %d MiB: --memtable-mb %d and --cache-mb %d leave less than the %d MiB that requests need: raise it to %d MiB, or lower them",
				errkind.Invalid, limit>>20, memtable>>20, cache>>20, int64(memoryLeast)>>20, (memtable+cache+memoryLeast)>>20)
		}
	}
	return admission.NewPot(requestBytes(beside)), nil
}
