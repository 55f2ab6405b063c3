package manifest

import (
	"encoding/binary"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
)

// writer appends the primitives of the format: uvarints, zigzag varints, fixed bytes, and
// byte strings led by their length.
type writer struct{ b []byte }

func (w *writer) u8(v byte)      { w.b = append(w.b, v) }
func (w *writer) u64(v uint64)   { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) uint(v uint64)  { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) int(v int64)    { w.b = binary.AppendVarint(w.b, v) }
func (w *writer) fixed(v []byte) { w.b = append(w.b, v...) }
func (w *writer) bytes(v []byte) { w.uint(uint64(len(v))); w.b = append(w.b, v...) }
func (w *writer) text(v string)  { w.uint(uint64(len(v))); w.b = append(w.b, v...) }
func (w *writer) flags(bits ...bool) {
	var v byte
	for i, on := range bits {
		if on {
			v |= 1 << i
		}
	}
	w.u8(v)
}

// reader takes the primitives from bytes that may be anything. The first failure sticks,
// and everything after it reads as zero, so that a decoder checks once at its end. Byte
// strings alias the input.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{errkind.Corrupt}, args...)...)
		r.b = nil
	}
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail("%d bytes announced, %d left", n, len(r.b))
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() byte {
	if v := r.take(1); len(v) == 1 {
		return v[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); len(v) == 4 {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); len(v) == 8 {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("bad uvarint")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("bad varint")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// upTo is a uvarint that must not be above most.
func (r *reader) upTo(most uint64) uint64 {
	v := r.uint()
	if v > most {
		r.fail("%d is above %d", v, most)
		return 0
	}
	return v
}

// count is the length of a list whose entries take at least size bytes each: no list is
// longer than the input has room for, so nothing is allocated on the word of a length.
func (r *reader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.fail("%d entries announced, %d bytes left", n, len(r.b))
		return 0
	}
	return int(n)
}

// flags is a byte of which only the lowest n bits may be set.
func (r *reader) flags(n int) byte {
	v := r.u8()
	if v>>n != 0 {
		r.fail("unknown flags %#x", v)
	}
	return v
}

// bytes is a byte string; an empty one is nil.
func (r *reader) bytes() []byte {
	n := r.uint()
	if n == 0 {
		return nil
	}
	return r.take(n)
}

func (r *reader) text() string { return string(r.bytes()) }

func (r *reader) id16() (id [16]byte) {
	copy(id[:], r.take(16))
	return id
}

// list reads n entries.
func list[T any](r *reader, n int, entry func(*reader) T) []T {
	if n == 0 || r.err != nil {
		return nil
	}
	out := make([]T, 0, n)
	for range n {
		if r.err != nil {
			return nil
		}
		out = append(out, entry(r))
	}
	return out
}

// end fails when bytes are left.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return r.err
}
