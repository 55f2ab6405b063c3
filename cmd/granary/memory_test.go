package main

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"
)

// The memory for requests is what GOMEMLIMIT leaves beside memtables and cache, two thirds of it,
// and never more than it is without one; a limit that leaves too little is refused, with what to
// set.
func TestTheMemoryForRequestsFollowsTheLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for _, c := range []struct {
		env             string
		limit           int64 // as the runtime has it
		memtable, cache int64 // MiB
		want            int64 // MiB
	}{
		{"", math.MaxInt64, 64, 64, 128},
		{"off", math.MaxInt64, 64, 64, 128},
		{"1GiB", 1 << 30, 64, 64, 128},
		{"200MiB", 200 << 20, 64, 64, 48},
		{"64MiB", 64 << 20, 8, 8, 32},
		{"160MiB", 160 << 20, 64, 64, 0},
	} {
		debug.SetMemoryLimit(c.limit)
		t.Setenv("GOMEMLIMIT", c.env)
		pot, err := limitMemory(c.memtable<<20, c.cache<<20)
		if c.want == 0 {
			if err == nil || !strings.Contains(err.Error(), "raise it to 176 MiB, or lower them") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := pot.Bounds()[0].Limit >> 20; got != c.want {
			t.Errorf("%+v: %d MiB", c, got)
		}
		if limit := debug.SetMemoryLimit(-1); c.env == "" && limit != (64+64+192-16)<<20 {
			t.Errorf("the limit of the runtime is %d", limit)
		}
	}
}
