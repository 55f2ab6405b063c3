package plan

import (
	"strings"
	"unicode/utf8"

	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// begins is the spans of a regular expression that says how a string begins, /^abc/: the
// strings that do, and the expression itself, which is equal to it.
func (f field) begins(v bson.RawValue) spans {
	pattern, options, ok := v.RegexOK()
	if !ok || f.Hashed || options != "" && options != "s" {
		return nil
	}
	prefix := literalPrefix(pattern)
	if prefix == "" {
		return nil
	}
	least := f.encode(stringValue(prefix))
	r := shardkey.Range{Min: least, Max: shardkey.PrefixEnd(least[:len(least)-stringEndBytes])}
	return unite(spans{{Range: r, value: true}, pointSpan(f.encode(v))})
}

// stringEndBytes is how many bytes end the encoding of a string: without them it is that of
// what begins so.
const stringEndBytes = 2

// literalPrefix is what every string that the expression finds something in begins with; ""
// when that is not plain to see.
func literalPrefix(pattern string) string {
	rest, anchored := strings.CutPrefix(pattern, "^")
	if !anchored || strings.Contains(rest, "|") {
		return ""
	}
	n := strings.IndexAny(rest, `\.+*?()[]{}^$`)
	if n < 0 {
		n = len(rest)
	} else if strings.IndexByte("*?{", rest[n]) >= 0 {
		_, last := utf8.DecodeLastRuneInString(rest[:n]) // it need not be there
		n -= last
	}
	prefix := rest[:n]
	if strings.ContainsRune(prefix, utf8.RuneError) {
		return "" // it stands for any byte that is no text
	}
	return prefix
}

func stringValue(s string) bson.RawValue {
	n := len(s) + 1
	value := append([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, s...)
	return bson.RawValue{Type: bson.TypeString, Value: append(value, 0)}
}
