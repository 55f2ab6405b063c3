package document

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxText is about how long a value is in an error message; longer ones are cut.
const maxText = 200

// show writes a value as MongoDB's messages do: { a: 1, b: [ "x" ] }.
func show(v bson.RawValue) string {
	return string(appendShown(nil, v, 0))
}

// showElement writes name: value.
func showElement(name string, v bson.RawValue) string {
	return name + ": " + show(v)
}

// showID writes the document's _id as messages name documents: {_id: 1}.
func showID(doc bson.Raw) string {
	if v := field(doc, "_id"); v.Type != 0 {
		return "{" + showElement("_id", v) + "}"
	}
	return "{no id}"
}

func appendShown(dst []byte, v bson.RawValue, depth int) []byte {
	switch v.Type {
	case 0:
		return append(dst, "EOO"...)
	case bson.TypeEmbeddedDocument:
		return appendShownElements(dst, v.Value, depth, '{', '}')
	case bson.TypeArray:
		return appendShownElements(dst, v.Value, depth, '[', ']')
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return appendCut(append(dst, '"'), textOf(v), '"')
	case bson.TypeDouble:
		return appendDouble(dst, math.Float64frombits(binary.LittleEndian.Uint64(v.Value)))
	case bson.TypeInt32:
		return strconv.AppendInt(dst, int64(int32(binary.LittleEndian.Uint32(v.Value))), 10)
	case bson.TypeInt64:
		return strconv.AppendInt(dst, int64(binary.LittleEndian.Uint64(v.Value)), 10)
	case bson.TypeDecimal128:
		return append(dst, v.Decimal128().String()...)
	case bson.TypeBoolean:
		return strconv.AppendBool(dst, v.Value[0] != 0)
	case bson.TypeNull:
		return append(dst, "null"...)
	case bson.TypeObjectID:
		return append(hex.AppendEncode(append(dst, "ObjectId('"...), v.Value), "')"...)
	case bson.TypeDateTime:
		dst = append(dst, "new Date("...)
		return append(strconv.AppendInt(dst, int64(binary.LittleEndian.Uint64(v.Value)), 10), ')')
	case bson.TypeTimestamp:
		n := binary.LittleEndian.Uint64(v.Value)
		dst = strconv.AppendUint(append(dst, "Timestamp("...), n>>32, 10)
		return append(strconv.AppendUint(append(dst, ", "...), n&math.MaxUint32, 10), ')')
	case bson.TypeRegex:
		pattern, options := regexOf(v)
		return appendCut(append(dst, '/'), pattern, '/', options...)
	case bson.TypeMinKey:
		return append(dst, "MinKey"...)
	case bson.TypeMaxKey:
		return append(dst, "MaxKey"...)
	}
	return append(dst, typeName(v.Type)...)
}

func appendShownElements(dst []byte, doc []byte, depth int, opening, closing byte) []byte {
	dst = append(dst, opening)
	w := walkOf(doc)
	for i := 0; ; i++ {
		e, ok := w.next()
		if !ok {
			return append(dst, ' ', closing)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, ' ')
		if len(dst) > maxText || depth > 4 {
			return append(append(dst, "..."...), closing)
		}
		if opening == '{' {
			dst = append(append(dst, quotable(e.name)...), ": "...)
		}
		dst = appendShown(dst, e.value, depth+1)
	}
}

// appendCut appends text, cut, then what closes it.
func appendCut(dst, text []byte, closing byte, more ...byte) []byte {
	dst = append(append(dst, quotable(text)...), closing)
	return append(dst, more...)
}

// quotable is text for a message, cut to maxText bytes at a whole character.
func quotable(text []byte) string {
	if len(text) <= maxText {
		return strings.ToValidUTF8(string(text), "?")
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.ToValidUTF8(string(text[:cut]), "?") + "..."
}

// appendDouble writes 1 as 1.0, as the shell of MongoDB's messages does.
func appendDouble(dst []byte, f float64) []byte {
	at := len(dst)
	dst = strconv.AppendFloat(dst, f, 'g', -1, 64)
	if !strings.ContainsAny(string(dst[at:]), ".eIN") {
		dst = append(dst, ".0"...)
	}
	return dst
}

// typeNames are the names of the types in messages, in $type filters and from $type.
var typeNames = map[bson.Type]string{
	0: "missing", bson.TypeDouble: "double", bson.TypeString: "string",
	bson.TypeEmbeddedDocument: "object", bson.TypeArray: "array", bson.TypeBinary: "binData",
	bson.TypeUndefined: "undefined", bson.TypeObjectID: "objectId", bson.TypeBoolean: "bool",
	bson.TypeDateTime: "date", bson.TypeNull: "null", bson.TypeRegex: "regex",
	bson.TypeDBPointer: "dbPointer", bson.TypeJavaScript: "javascript", bson.TypeSymbol: "symbol",
	bson.TypeCodeWithScope: "javascriptWithScope", bson.TypeInt32: "int",
	bson.TypeTimestamp: "timestamp", bson.TypeInt64: "long", bson.TypeDecimal128: "decimal",
	bson.TypeMinKey: "minKey", bson.TypeMaxKey: "maxKey",
}

func typeName(t bson.Type) string { return typeNames[t] }

// appendShortDouble writes 1 as 1, as $toString does.
func appendShortDouble(dst []byte, v bson.RawValue) []byte {
	f := math.Float64frombits(binary.LittleEndian.Uint64(v.Value))
	switch {
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 64)
}
