package wire

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// Buffers have a power of two of bytes, 4 KiB at least.
const (
	smallestClass = 12
	largestClass  = 30
)

// buffer is a reused piece of memory.
type buffer struct{ b []byte }

// memory lends buffers, and counts what is lent.
type memory struct {
	lent atomic.Int64
	free [largestClass + 1]sync.Pool // by the logarithm of the size
}

// get is an empty buffer with room for n bytes at least.
func (m *memory) get(n int) *buffer {
	class := max(smallestClass, bits.Len(uint(max(n, 1)-1)))
	m.lent.Add(1 << class)
	if b, ok := m.free[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, 0, 1<<class)}
}

// put takes a buffer back; nil is none.
func (m *memory) put(b *buffer) {
	if b == nil {
		return
	}
	m.lent.Add(-int64(cap(b.b)))
	b.b = b.b[:0]
	m.free[bits.Len(uint(cap(b.b)-1))].Put(b)
}

// double moves what b holds to a buffer of twice the size, and takes b back; b as it was
// and false when more than most bytes would be lent then.
func (m *memory) double(b *buffer, most int64) (*buffer, bool) {
	if m.lent.Load()+int64(2*cap(b.b)) > most { // both are there while it moves
		return b, false
	}
	larger := m.get(2 * cap(b.b))
	larger.b = append(larger.b, b.b...)
	m.put(b)
	return larger, true
}
