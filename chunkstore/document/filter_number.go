package document

import (
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// parseMod parses $mod: [divisor, remainder], of which fractions are cut off.
func parseMod(path string, v bson.RawValue) (Node, error) {
	if v.Type != bson.TypeArray {
		return Node{}, badValue("malformed mod, needs to be an array")
	}
	switch n := count(v.Value); {
	case n < 2:
		return Node{}, badValue("malformed mod, not enough elements")
	case n > 2:
		return Node{}, badValue("malformed mod, too many elements")
	}
	w := walkOf(v.Value)
	d, _ := w.next()
	r, _ := w.next()
	divisor, err := modArgument(d.value, "divisor")
	if err != nil {
		return Node{}, err
	}
	rest, err := modArgument(r.value, "remainder")
	if err != nil {
		return Node{}, err
	}
	if divisor == 0 {
		return Node{}, badValue("divisor cannot be 0")
	}
	return Node{Op: Mod, Path: path, Value: v, tester: modulo{divisor, rest}}, nil
}

func modArgument(v bson.RawValue, name string) (int64, error) {
	n, ok := number.Of(v)
	if !ok {
		return 0, badValue("malformed mod, %s not a number", name)
	}
	i, ok := n.Int64()
	if !ok {
		return 0, badValue("malformed mod, %s value is invalid :: caused by :: %s cannot be represented as a 64-bit integer", name, show(v))
	}
	return i, nil
}

// modulo tests the remainder of a number's integer part.
type modulo struct{ divisor, remainder int64 }

func (m modulo) test(v bson.RawValue) bool {
	n, ok := number.Of(v)
	if !ok {
		return false
	}
	i, ok := n.Int64()
	if m.divisor == -1 { // the one division that overflows
		return ok && m.remainder == 0
	}
	return ok && i%m.divisor == m.remainder
}

// bitsKind is one of the four questions about bits.
type bitsKind struct {
	name     string
	all, set bool
}

var (
	bitsAllSet   = bitsKind{name: "$bitsAllSet", all: true, set: true}
	bitsAllClear = bitsKind{name: "$bitsAllClear", all: true}
	bitsAnySet   = bitsKind{name: "$bitsAnySet", set: true}
	bitsAnyClear = bitsKind{name: "$bitsAnyClear"}
)

// bitsTest tests the bits of an integer or of binary data.
type bitsTest struct {
	bitsKind
	positions []int
}

func bitsParser(kind bitsKind) func(string, bson.RawValue) (Node, error) {
	return func(path string, v bson.RawValue) (Node, error) {
		positions, err := bitPositions(path, v)
		return Node{Op: Bits, Path: path, Value: v, tester: &bitsTest{kind, positions}}, err
	}
}

// bitPositions reads a mask: an integer, binary data, or an array of positions.
func bitPositions(path string, v bson.RawValue) ([]int, error) {
	switch {
	case v.Type == bson.TypeBinary:
		return onesOf(v.Value[5:]), nil
	case v.Type != bson.TypeArray:
		n, ok := number.Of(v)
		mask, whole := n.Whole()
		switch {
		case !ok:
			return nil, badValue("%s takes an Array, a number, or a BinData but received: %s", path, showElement(path, v))
		case !whole:
			return nil, mongoerr.New(mongoerr.FailedToParse, "Expected an integer: %s", showElement(path, v))
		case mask < 0:
			return nil, mongoerr.New(mongoerr.FailedToParse, "Expected a non-negative number in: %s", showElement(path, v))
		}
		return onesOf(binary.LittleEndian.AppendUint64(nil, uint64(mask))), nil
	}
	var positions []int
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			return positions, nil
		}
		n, _ := number.Of(e.value)
		i, whole := n.Whole()
		if n.Type() == 0 || !whole || i < 0 || i > 1<<31-1 {
			return nil, badValue("bit positions must be an integer >= 0 but got: %s", show(e.value))
		}
		positions = append(positions, int(i))
	}
}

func onesOf(b []byte) []int {
	var positions []int
	for i := range len(b) * 8 {
		if b[i/8]>>(i%8)&1 != 0 {
			positions = append(positions, i)
		}
	}
	return positions
}

func (t *bitsTest) test(v bson.RawValue) bool {
	var room [8]byte
	data, extension := room[:], byte(0) // what bits past the data are
	if v.Type == bson.TypeBinary {
		data = v.Value[5:]
	} else {
		n, ok := number.Of(v)
		if !ok {
			return false
		}
		i, whole := n.Whole()
		if !whole {
			return false
		}
		binary.LittleEndian.PutUint64(data, uint64(i))
		if i < 0 {
			extension = 1
		}
	}
	for _, p := range t.positions {
		bit := extension
		if p/8 < len(data) {
			bit = data[p/8] >> (p % 8) & 1
		}
		if fits := (bit != 0) == t.set; fits != t.all {
			return !t.all
		}
	}
	return t.all
}
