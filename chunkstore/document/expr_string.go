package document

import (
	"encoding/hex"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func concat(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	var out []byte
	for _, v := range args {
		switch {
		case isNullish(v):
			return null, nil
		case !isText(v):
			return wrongType(16702, "%s only supports strings, not %s", name, typeName(v.Type))
		}
		if err := e.charge(len(v.Value)); err != nil {
			return missing, err
		}
		out = append(out, textOf(v)...)
	}
	return e.text(out)
}

// changeCase is $toLower and $toUpper, of ASCII letters only.
func changeCase(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	if isNullish(args[0]) {
		return e.text(nil)
	}
	text, ok := textFrom(args[0])
	if !ok {
		return wrongType(16007, "can't convert from BSON type %s to String", typeName(args[0].Type))
	}
	from, to := byte('a'), byte('z')
	if name == "$toLower" {
		from, to = 'A', 'Z'
	}
	out := append([]byte(nil), text...)
	for i, c := range out {
		if c >= from && c <= to {
			out[i] = c ^ ('a' ^ 'A')
		}
	}
	return e.text(out)
}

func stringLength(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	if !isText(args[0]) {
		return wrongType(34473, "%s requires a string argument, found: %s", name, typeName(args[0].Type))
	}
	text := textOf(args[0])
	if name == "$strLenCP" {
		return e.int(int64(utf8.RuneCount(text))), nil
	}
	return e.int(int64(len(text))), nil
}

func toString(e *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	if isNullish(args[0]) {
		return null, nil
	}
	text, ok := textFrom(args[0])
	if !ok {
		return wrongType(241, "Unsupported conversion from %s to string in $convert with no onError value", typeName(args[0].Type))
	}
	return e.text(text)
}

// textFrom is a scalar as text; false for types that have none.
func textFrom(v bson.RawValue) ([]byte, bool) {
	switch v.Type {
	case bson.TypeString, bson.TypeSymbol:
		return textOf(v), true
	case bson.TypeBoolean, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return appendShown(nil, v, 0), true
	case bson.TypeDouble:
		return appendShortDouble(nil, v), true
	case bson.TypeObjectID:
		return hex.AppendEncode(nil, v.Value), true
	case bson.TypeDateTime:
		return time.UnixMilli(millisOf(v)).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z"), true
	}
	return nil, false
}
