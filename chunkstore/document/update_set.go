package document

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// setTo is $set.
type setTo struct{ v bson.RawValue }

func parseSet(_ string, v bson.RawValue) (modifier, error) { return setTo{v}, nil }

func (m setTo) needsPath(*application) bool { return true }

func (m setTo) apply(_ *application, dst []byte, _ bson.RawValue) (bson.Type, []byte, error) {
	return m.v.Type, append(dst, m.v.Value...), nil
}

// keep is what a modifier returns that leaves the field as it is.
func keep(dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	return old.Type, append(dst, old.Value...), nil
}

// setOnInsert is $setOnInsert.
type setOnInsert struct{ v bson.RawValue }

func parseSetOnInsert(_ string, v bson.RawValue) (modifier, error) { return setOnInsert{v}, nil }

func (m setOnInsert) needsPath(a *application) bool { return a.inserting }

func (m setOnInsert) apply(a *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	if !a.inserting {
		return keep(dst, old)
	}
	return m.v.Type, append(dst, m.v.Value...), nil
}

// unset is $unset.
type unset struct{}

func parseUnset(string, bson.RawValue) (modifier, error) { return unset{}, nil }

func (unset) needsPath(*application) bool { return false }

func (unset) apply(_ *application, dst []byte, _ bson.RawValue) (bson.Type, []byte, error) {
	return 0, dst, nil
}

// extreme is $min (sign -1) and $max (sign 1).
type extreme struct {
	sign int
	v    bson.RawValue
}

func extremeParser(sign int) func(string, bson.RawValue) (modifier, error) {
	return func(_ string, v bson.RawValue) (modifier, error) { return extreme{sign, v}, nil }
}

func (m extreme) needsPath(*application) bool { return true }

func (m extreme) apply(_ *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	if old.Type != 0 && Compare(m.v, old)*m.sign <= 0 {
		return keep(dst, old)
	}
	return m.v.Type, append(dst, m.v.Value...), nil
}

// currentDate is $currentDate: the statement's time.
type currentDate struct{ kind bson.Type }

func parseCurrentDate(_ string, v bson.RawValue) (modifier, error) {
	switch v.Type {
	case bson.TypeBoolean:
		return currentDate{bson.TypeDateTime}, nil
	case bson.TypeEmbeddedDocument:
		kind := field(v.Value, "$type")
		switch {
		case count(v.Value) != 1 || kind.Type == 0:
			return nil, badValue("The only valid field of the option is '$type': {$currentDate: {field : {$type: 'date/timestamp'}}}")
		case kind.Type == bson.TypeString && string(textOf(kind)) == "date":
			return currentDate{bson.TypeDateTime}, nil
		case kind.Type == bson.TypeString && string(textOf(kind)) == "timestamp":
			return currentDate{bson.TypeTimestamp}, nil
		}
		return nil, badValue("The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field : {$type: 'date'}}}")
	}
	return nil, badValue("%s is not valid type for $currentDate. Please use a boolean ('true') or a $type expression ({$type: 'timestamp/date'}).", typeName(v.Type))
}

func (m currentDate) needsPath(*application) bool { return true }

func (m currentDate) apply(a *application, dst []byte, _ bson.RawValue) (bson.Type, []byte, error) {
	bits := uint64(a.now)
	if m.kind == bson.TypeTimestamp { // seconds, and a counter that starts at 1
		bits = uint64(a.now/1000)<<32 | 1
	}
	return m.kind, binary.LittleEndian.AppendUint64(dst, bits), nil
}
