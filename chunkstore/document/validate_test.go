package document

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// el is one element; doc puts elements into a document.
func el(kind byte, name string, value ...byte) []byte {
	return append(append([]byte{kind}, name+"\x00"...), value...)
}

func docOf(elements ...[]byte) []byte {
	out, at := begin(nil)
	for _, e := range elements {
		out = append(out, e...)
	}
	return finish(out, at)
}

func le32(n int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(n)) }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// everyType has a value of each type of BSON, and nesting.
func everyType(t testing.TB) bson.Raw {
	return raw(t, `{_id: {$oid: '507f1f77bcf86cd799439011'}, double: 1.5, string: 'ü', object: {a: {b: 1}},
		array: [1, [2, {c: 3}]], binary: {$binary: {base64: 'AQID', subType: '00'}},
		old: {$binary: {base64: 'AQID', subType: '02'}}, undefined: {$undefined: true}, bool: true,
		date: {$date: {$numberLong: '5'}}, nothing: null, regex: {$regularExpression: {pattern: 'x', options: 'i'}},
		pointer: {$dbPointer: {$ref: 'b', $id: {$oid: '56e1fc72e0c917e9c4714161'}}}, code: {$code: 'f'},
		symbol: {$symbol: 's'}, scoped: {$code: 'f', $scope: {x: {y: 1}}}, int: 1, stamp: {$timestamp: {t: 1, i: 2}},
		long: {$numberLong: '5'}, decimal: {$numberDecimal: '1.5'}, min: {$minKey: 1}, max: {$maxKey: 1}}`)
}

func TestValidateAcceptsEveryType(t *testing.T) {
	t.Parallel()
	for _, doc := range [][]byte{everyType(t), docOf(), doc300(t),
		docOf(el(4, "a", docOf(el(16, "5", le32(1)...), el(16, "5", le32(1)...))...)), // any names in arrays
		docOf(el(16, "", le32(1)...)),
	} {
		if err := Validate(doc, Limits{}); err != nil {
			t.Error(err)
		}
	}
}

func TestValidateNamesRuleFieldAndOffset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		doc  []byte
		want string
	}{
		"nothing":            {nil, "a document has at least 5 bytes (field '', offset 0)"},
		"short":              {[]byte{5, 0, 0}, "at least 5 bytes"},
		"length too long":    {append(le32(6), 0), "length does not fit its bytes"},
		"length too short":   {append(le32(5), 0, 0), "length does not fit its bytes"},
		"negative length":    {append(le32(-5), 0), "length does not fit its bytes"},
		"no end":             {append(le32(5), 1), "the document does not end in 00"},
		"no name":            {append(le32(7), 16, 'a', 0), "name does not end inside"},
		"unknown type":       {docOf(el(0x20, "a")), "the type is unknown (field 'a', offset 4)"},
		"type 0 inside":      {append(le32(6), 0, 0), "name does not end inside"},
		"name not UTF-8":     {docOf(el(10, "a\xff")), "name is not UTF-8 (field 'a?', offset 4)"},
		"long name bad":      {docOf(el(10, "abcdefghij\xff")), "name is not UTF-8"},
		"twice":              {docOf(el(10, "a"), el(10, "b"), el(10, "a")), "name is there twice (field 'a', offset 10)"},
		"twice inside":       {docOf(el(3, "x", docOf(el(4, "y", docOf(el(3, "0", docOf(el(10, "a"), el(10, "a"))...))...))...)), "twice (field 'x.y.0.a', offset 28)"},
		"boolean 2":          {docOf(el(8, "a", 2)), "a boolean is neither 0 nor 1"},
		"int cut":            {docOf(el(16, "a", 1, 2)), "the value does not fit"},
		"string length 0":    {docOf(el(2, "a", join(le32(0), []byte("x"))...)), "string's length"},
		"string too long":    {docOf(el(2, "a", join(le32(9), []byte("x\x00"))...)), "string's length"},
		"string negative":    {docOf(el(2, "a", join(le32(-1), []byte("x\x00"))...)), "string's length"},
		"string no 00":       {docOf(el(2, "a", join(le32(2), []byte("xx"))...)), "does not end in 00"},
		"string not UTF-8":   {docOf(el(2, "a", join(le32(2), []byte("\xc0\x00"))...)), "string is not UTF-8"},
		"code not UTF-8":     {docOf(el(13, "a", join(le32(2), []byte("\xc0\x00"))...)), "string is not UTF-8"},
		"length cut":         {docOf(el(2, "a", 1, 2)), "the value does not fit"},
		"object too long":    {docOf(el(3, "a", join(le32(90), []byte{0})...)), "value's length does not fit"},
		"object too short":   {docOf(el(3, "a", join(le32(4), []byte{0})...)), "value's length does not fit"},
		"object no end":      {docOf(el(3, "a", join(le32(5), []byte{1})...)), "does not end in 00 where its length says (field 'a', offset 4)"},
		"binary too long":    {docOf(el(5, "a", join(le32(3), []byte{0, 1, 2})...)), "binary value's length"},
		"binary negative":    {docOf(el(5, "a", join(le32(-1), []byte{0, 1, 2})...)), "binary value's length"},
		"old binary":         {docOf(el(5, "a", join(le32(5), []byte{2}, le32(2), []byte{1})...)), "subtype 2"},
		"old binary short":   {docOf(el(5, "a", join(le32(3), []byte{2, 0, 0, 0})...)), "subtype 2"},
		"regex no end":       {docOf(el(11, "a", []byte("abc")...)), "regular expression does not end"},
		"regex not UTF-8":    {docOf(el(11, "a", []byte("\xff\x00\x00")...)), "regular expression is not UTF-8"},
		"pointer cut":        {docOf(el(12, "a", join(le32(2), []byte("x\x00123"))...)), "the value does not fit"},
		"scoped too short":   {docOf(el(15, "a", join(le32(13), le32(1), []byte{0}, le32(4))...)), "code with scope"},
		"scoped code":        {docOf(el(15, "a", join(le32(14), le32(9), []byte{0}, docOf())...)), "string's length"},
		"scoped scope":       {docOf(el(15, "a", join(le32(15), le32(1), []byte{0}, docOf(), []byte{0})...)), "code with scope"},
		"scope has twice":    {docOf(el(15, "a", join(le32(20), le32(1), []byte{0}, docOf(el(10, "b"), el(10, "b")))...)), "twice (field 'a.b'"},
		"decimal cut":        {docOf(el(19, "a", make([]byte, 15)...)), "the value does not fit"},
		"long path is short": {docOf(el(3, strings.Repeat("n", 300), docOf(el(0x20, "a"))...)), "nnn..."},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, Validate(c.doc, Limits{}), mongoerr.InvalidBSON, c.want)
		})
	}
}

// nested is a document with so many levels, itself counted.
func nested(levels int, kind byte) []byte {
	var doc []byte
	for i := levels; i > 1; i-- { // each level is 8 bytes around the next: length, type, name, end
		doc = append(append(doc, le32(5+8*(i-1))...), kind, '0', 0)
	}
	doc = append(doc, 5, 0, 0, 0)
	return append(doc, make([]byte, levels)...)
}

func TestValidateCountsLevels(t *testing.T) {
	t.Parallel()
	scoped := docOf()
	for range MaxDepth {
		scoped = docOf(el(15, "a", join(le32(len(scoped)+9), le32(1), []byte{0}, scoped)...))
	}
	refused(t, Validate(scoped, Limits{}), mongoerr.InvalidBSON, "nested too deep")
	for _, kind := range []byte{3, 4} {
		if err := Validate(nested(MaxDepth, kind), Limits{}); err != nil {
			t.Error(err)
		}
		for _, levels := range []int{MaxDepth + 1, 10_000} {
			refused(t, Validate(nested(levels, kind), Limits{}), mongoerr.InvalidBSON, "nested too deep")
		}
		if err := Validate(nested(3, kind), Limits{MaxDepth: 3}); err != nil {
			t.Error(err)
		}
		refused(t, Validate(nested(4, kind), Limits{MaxDepth: 3}), mongoerr.InvalidBSON, "nested too deep")
	}
}

func TestValidateLimitsBytes(t *testing.T) {
	t.Parallel()
	doc := docOf(el(16, "a", 1, 2, 3, 4))
	if err := Validate(doc, Limits{MaxBytes: len(doc)}); err != nil {
		t.Error(err)
	}
	refused(t, Validate(doc, Limits{MaxBytes: len(doc) - 1}), mongoerr.BSONObjectTooLarge, "Size must be between 0 and 11")
}

// TestValidateFindsOneRepeatedNameAmongMany goes through all ways of looking: names
// compared as they come, in the table, and sorted when they collide.
func TestValidateFindsOneRepeatedNameAmongMany(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 31, 32, 33, 34, 1000} {
		var elements [][]byte
		for i := range n {
			elements = append(elements, el(10, fmt.Sprintf("a rather long name %d", i)))
		}
		doc := docOf(elements...)
		if err := Validate(doc, Limits{}); err != nil {
			t.Errorf("%d: %v", n, err)
		}
		if repeatedName(doc, n) >= 0 || repeatedNameBySorting(doc, n) >= 0 {
			t.Errorf("%d names: found one twice", n)
		}
		elements = append(elements, elements[n/2], el(10, "last"))
		doc = docOf(elements...)
		refused(t, Validate(doc, Limits{}), mongoerr.InvalidBSON, fmt.Sprintf("twice (field 'a rather long name %d'", n/2))
		if a, b := repeatedName(doc, n+2), repeatedNameBySorting(doc, n+2); a < 0 || a != b {
			t.Errorf("%d names: found at %d and %d", n, a, b)
		}
	}
}

func TestValidateDoesNotAllocate(t *testing.T) {
	for _, doc := range [][]byte{doc300(t), everyType(t)} {
		if n := testing.AllocsPerRun(100, func() { _ = Validate(doc, Limits{}) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// TestEveryFlippedByteIsRefusedOrHarmless flips each bit of a document with all types: what
// is accepted must be readable to the end by everything else.
func TestEveryFlippedByteIsRefusedOrHarmless(t *testing.T) {
	t.Parallel()
	good := everyType(t)
	for i := range len(good) * 8 {
		doc := bytes.Clone(good)
		doc[i/8] ^= 1 << (i % 8)
		if Validate(doc, Limits{}) == nil {
			exercise(t, doc, good)
		}
	}
}

// exercise uses a valid document as a document, and as every specification.
func exercise(t testing.TB, doc, other bson.Raw) {
	t.Helper()
	fail := func(name string, err error) {
		if err != nil {
			t.Fatalf("%s of %x: %v", name, []byte(doc), err)
		}
	}
	check := func(name string, made []byte, err error) {
		if err == nil {
			err = Validate(made, Limits{MaxBytes: MaxInternalBytes})
			fail(name, err)
		}
		if err != nil && strings.Contains(err.Error(), "no valid document") && !strings.Contains(err.Error(), "too deep") {
			fail(name, err)
		}
	}
	if c := CompareDocs(doc, other); c != -CompareDocs(other, doc) {
		t.Fatalf("comparison of %x is not symmetric", []byte(doc))
	}
	show(documentValue(doc))
	for _, path := range []string{"a", "object.a.b", "array.1.1.c", "array.c", "scoped", ""} {
		Lookup(doc, path)
		AppendDistinct(nil, doc, path)
	}
	if f, err := ParseFilter(doc); err == nil {
		f.Match(doc)
		f.Match(other)
		FilterEqualities(f)
	}
	if s, err := ParseSort(doc); err == nil {
		s.AppendKey(nil, other)
		s.AppendKey(nil, doc)
	}
	if p, err := ParseProjection(doc); err == nil {
		made, err := p.Append(nil, other)
		check("projection", made, err)
	}
	for _, v := range []bson.RawValue{documentValue(doc), field(doc, "array")} {
		if u, err := ParseUpdate(v, UpdateOptions{ArrayFilters: []bson.Raw{}}); err == nil {
			made, _, err := u.Apply(nil, other)
			check("update", made, err)
			made, err = u.Upsert(nil, nil, func() bson.RawValue { return null })
			check("upsert", made, err)
		}
		if p, err := ParsePipeline(v); err == nil {
			for made, err := range p.Run(t.Context(), oneDocument(other), RunLimits{}) {
				check("pipeline", made, err)
			}
		}
	}
}

func oneDocument(doc bson.Raw) documents {
	return func(yield func(bson.Raw, error) bool) { yield(doc, nil) }
}
