package manifesttest

import (
	"sync/atomic"

	"github.com/granarydb/granary/manifest/host"
)

// Host is a host with seeded randomness and the clock of the machine, which inside a
// testing/synctest bubble is the bubble's.
func Host(seed uint64) host.Host {
	return host.Host{Clock: host.System().Clock, Rand: &splitmix{state: seed}}
}

// splitmix is Steele, Lea and Flood's SplitMix64.
type splitmix struct{ state uint64 }

func (r *splitmix) Uint64() uint64 {
	z := atomic.AddUint64(&r.state, 0x9E3779B97F4A7C15)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
