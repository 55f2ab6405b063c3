package wire

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/admission"
)

// Buffers have a power of two of bytes, 4 KiB at least; larger ones than pooledMax have the
// bytes that were asked for, and are not used again.
const (
	smallestClass = 12
	largestClass  = 22
	pooledMax     = 1 << largestClass
)

// buffer is a piece of memory.
type buffer struct{ b []byte }

// memory lends buffers, and counts what is lent.
type memory struct {
	account *admission.Account
	lent    atomic.Int64
	free    [largestClass + 1]sync.Pool // by the logarithm of the size
}

// rounded is the size of a buffer for n bytes, and its class; 0: it is of no class.
func rounded(n int) (size, class int) {
	if n > pooledMax {
		return n, 0
	}
	class = max(smallestClass, bits.Len(uint(max(n, 1)-1)))
	return 1 << class, class
}

// try is an empty buffer with room for n bytes at least, or false when there is no room for
// it. The smallest are always there: who says hello or asks how things are is answered.
func (m *memory) try(n int) (*buffer, bool) {
	size, _ := rounded(n)
	if size > 1<<smallestClass && !m.account.Reserve(int64(size)) {
		return nil, false
	}
	if size == 1<<smallestClass {
		m.account.Add(int64(size))
	}
	return m.make(n), true
}

// get is try for what has to be.
func (m *memory) get(n int) *buffer {
	size, _ := rounded(n)
	m.account.Add(int64(size))
	return m.make(n)
}

func (m *memory) make(n int) *buffer {
	size, class := rounded(n)
	m.lent.Add(int64(size))
	if class > 0 {
		if b, ok := m.free[class].Get().(*buffer); ok {
			return b
		}
	}
	return &buffer{b: make([]byte, 0, size)}
}

// put takes a buffer back; nil is none.
func (m *memory) put(b *buffer) {
	if b == nil {
		return
	}
	n := int64(cap(b.b))
	m.lent.Add(-n)
	m.account.Add(-n)
	if n <= pooledMax {
		b.b = b.b[:0]
		m.free[bits.Len(uint(n-1))].Put(b)
	}
}

// growth is how much larger the next buffer is when a message does not end with this one.
const growth = 4

// grow moves what b holds to a larger buffer, for n bytes at most, and takes b back; b as it
// was and false when there is no room. Both are there while it moves.
func (m *memory) grow(b *buffer, n int) (*buffer, bool) {
	larger, ok := m.try(min(n, growth*cap(b.b)))
	if !ok {
		return b, false
	}
	larger.b = append(larger.b, b.b...)
	m.put(b)
	return larger, true
}
