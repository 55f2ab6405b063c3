package writer

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/granarydb/granary/manifest/host"
)

// actor is the host as one goroutine of many sees it: with a stream of random numbers of its
// own. Two goroutines that draw from one stream at the same moment would get each other's
// numbers in one run and not in the next.
func (w *Writer) actor(format string, args ...any) host.Host {
	s := &stream{seed: fmt.Appendf(append([]byte(nil), w.seed[:]...), format, args...)}
	return host.Host{Clock: w.host.Clock, Rand: s}
}

// stream is a sequence of numbers that nobody else has: hashes of the process's 128 random
// bits, the actor's name and a count.
type stream struct {
	seed  []byte
	count atomic.Uint64
}

// Uint64 is the next number.
func (s *stream) Uint64() uint64 {
	return xxhash.Sum64(binary.LittleEndian.AppendUint64(s.seed[:len(s.seed):len(s.seed)], s.count.Add(1)))
}
