package document

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// fewNames is how many fields a document has whose names are compared as they come. Past
// that they are compared all at once, when the document ends.
const fewNames = 32

// nameFilter remembers the hashes of the names of a level, roughly: a bit that is not set
// says that the name is new. Only when it is set are the names looked at again, so that
// documents with few fields cost a bit each, and no memory.
type nameFilter [4]uint64

// add sets the hash's bit and reports whether it was set.
func (f *nameFilter) add(hash uint64) bool {
	word, bit := &f[hash>>62], uint64(1)<<(hash>>56&63)
	was := *word&bit != 0
	*word |= bit
	return was
}

// seenBefore reports whether the level has the name doc[start+1:end] before start.
func (v *validation) seenBefore(at *level, start, end int) bool {
	name := v.doc[start+1 : end]
	for w := (walk{doc: v.doc, pos: at.start + 4}); w.pos < start; {
		if e, _ := w.next(); bytes.Equal(e.name, name) {
			return true
		}
	}
	return false
}

// repeatedName finds the offset of an element of doc, a checked document of n fields, whose
// name is there before; -1 when all differ. A hash table of offsets finds it in one pass;
// when names collide so often that it cannot be chance, sorting them does.
func repeatedName(doc []byte, n int) int {
	table := make([]uint32, 1<<bits.Len(uint(2*n))) // at most half full; 0 is free
	mask := uint64(len(table) - 1)
	const manyProbes = 64
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			return -1
		}
		_, hash, _ := checkName(doc, e.start+1)
		slot := hash & mask
		for probes := 0; table[slot] != 0; probes++ {
			if probes == manyProbes {
				return repeatedNameBySorting(doc, n)
			}
			other := int(table[slot])
			if bytes.Equal(e.name, doc[other+1:other+1+bytes.IndexByte(doc[other+1:], 0)]) {
				return e.start
			}
			slot = (slot + 1) & mask
		}
		table[slot] = uint32(e.start)
	}
}

func repeatedNameBySorting(doc []byte, n int) int {
	all := make([]element, 0, n)
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b element) int { return bytes.Compare(a.name, b.name) })
	for i := 1; i < len(all); i++ {
		if bytes.Equal(all[i-1].name, all[i].name) {
			return all[i].start
		}
	}
	return -1
}

// checkName finds the 00 that ends the name at from, -1 if b has none, and on the way a hash
// of the name and whether all of it is ASCII.
func checkName(b []byte, from int) (end int, hash uint64, ascii bool) {
	if from+8 > len(b) {
		return checkLongName(b, from)
	}
	w := binary.LittleEndian.Uint64(b[from:])
	zero := (w - lowBits) & ^w & highBits
	if zero == 0 {
		return checkLongName(b, from)
	}
	w &= (zero&-zero - 1) >> 7 // the bytes below the first 00
	return from + bits.TrailingZeros64(zero)>>3, mix(0, w), w&highBits == 0
}

func checkLongName(b []byte, from int) (end int, hash uint64, ascii bool) {
	at, all := from, uint64(0)
	for ; at+8 <= len(b); at += 8 {
		w := binary.LittleEndian.Uint64(b[at:])
		if zero := (w - lowBits) & ^w & highBits; zero != 0 {
			n := bits.TrailingZeros64(zero) / 8
			w &= 1<<(8*n) - 1
			return at + n, mix(hash, w), (all|w)&highBits == 0
		}
		all |= w
		hash = mix(hash, w)
	}
	w := uint64(0)
	for shift := 0; at < len(b); shift += 8 {
		if b[at] == 0 {
			return at, mix(hash, w), (all|w)&highBits == 0
		}
		w |= uint64(b[at]) << shift
		at++
	}
	return -1, 0, false
}

// mix makes a hash of a name's words of eight bytes. Whoever chooses names so that they
// collide gains little: see nameFilter and repeatedName.
func mix(hash, word uint64) uint64 {
	hi, lo := bits.Mul64(hash^word^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return hi ^ lo
}
