package document

import (
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// operation is what $inc and $mul differ in.
type operation struct {
	name string // $inc
	verb string // increment
	do   func(old, by number.Number) (number.Number, bool)
	zero bool // a missing field becomes 0, not the operand
}

var (
	increment = operation{name: "$inc", verb: "increment", do: number.Add}
	multiply  = operation{name: "$mul", verb: "multiply", do: number.Multiply, zero: true}
)

// arithmetic is $inc and $mul.
type arithmetic struct {
	operation
	path string
	by   number.Number
}

func arithmeticParser(o operation) func(string, bson.RawValue) (modifier, error) {
	return func(path string, v bson.RawValue) (modifier, error) {
		by, ok := number.Of(v)
		if !ok {
			return nil, mongoerr.New(mongoerr.TypeMismatch, "Cannot %s with non-numeric argument: {%s}",
				o.verb, showElement(path, v))
		}
		return arithmetic{o, path, by}, nil
	}
}

func (m arithmetic) needsPath(*application) bool { return true }

func (m arithmetic) apply(a *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	n, ok := number.Of(old)
	switch {
	case old.Type == 0 && m.zero:
		n = number.Int32(0)
	case old.Type == 0:
		return m.by.Type(), m.by.Append(dst), nil
	case !ok:
		return 0, dst, mongoerr.New(mongoerr.TypeMismatch,
			"Cannot apply %s to a value of non-numeric type. %s has the field '%s' of non-numeric type %s",
			m.name, showID(a.doc), m.path, typeName(old.Type))
	}
	result, ok := m.do(n, m.by)
	if !ok {
		return 0, dst, badValue("Failed to apply %s operations to current value ((NumberLong)%s) for document %s",
			m.name, show(old), showID(a.doc))
	}
	return result.Type(), result.Append(dst), nil
}

// bitwise is $bit: {and: mask}, {or: mask}, {xor: mask}, several one after another.
type bitwise struct {
	path string
	ops  []bitOperation
}

type bitOperation struct {
	name string
	mask int64
	long bool
}

func parseBit(path string, v bson.RawValue) (modifier, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, badValue("The $bit modifier is not compatible with a %s. You must pass in an embedded document: "+
			"{$bit: {field: {and/or/xor: #}}", typeName(v.Type))
	}
	m := &bitwise{path: path}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		name := string(e.name)
		if name != "and" && name != "or" && name != "xor" {
			return nil, badValue("The $bit modifier only supports 'and', 'or', and 'xor', not '%s' which is an unknown operator: {%s}",
				quotable(e.name), showElement(name, e.value))
		}
		if e.value.Type != bson.TypeInt32 && e.value.Type != bson.TypeInt64 {
			return nil, badValue("The $bit modifier field must be an Integer(32/64 bit); a '%s' is not supported here: {%s}",
				typeName(e.value.Type), showElement(name, e.value))
		}
		n, _ := number.Of(e.value)
		mask, _ := n.Int64()
		m.ops = append(m.ops, bitOperation{name, mask, e.value.Type == bson.TypeInt64})
	}
	if len(m.ops) == 0 {
		return nil, badValue("You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}")
	}
	return m, nil
}

func (m *bitwise) needsPath(*application) bool { return true }

func (m *bitwise) apply(a *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	long := old.Type == bson.TypeInt64
	bits := int64(0)
	if old.Type != 0 {
		if !long && old.Type != bson.TypeInt32 {
			return 0, dst, badValue("Cannot apply $bit to a value of non-integral type.%s has the field %s of non-integer type %s",
				showID(a.doc), m.path, typeName(old.Type))
		}
		n, _ := number.Of(old)
		bits, _ = n.Int64()
	}
	for _, op := range m.ops {
		long = long || op.long
		switch op.name {
		case "and":
			bits &= op.mask
		case "or":
			bits |= op.mask
		case "xor":
			bits ^= op.mask
		}
	}
	if long {
		return bson.TypeInt64, binary.LittleEndian.AppendUint64(dst, uint64(bits)), nil
	}
	return bson.TypeInt32, binary.LittleEndian.AppendUint32(dst, uint32(bits)), nil
}
