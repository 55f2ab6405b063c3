package document

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FuzzValidDocumentsAreSafe feeds bytes to everything, as a document and as every kind of
// specification: what Validate accepts, nothing else may panic on, and what is made of it
// must be valid again.
func FuzzValidDocumentsAreSafe(f *testing.F) {
	other := everyType(f)
	f.Add([]byte(other))
	f.Add(nested(MaxDepth, 3))
	for _, text := range []string{
		`{}`, `{a: {$gt: 5, $in: [1, null]}, $or: [{b: {$elemMatch: {c: 1}}}], 'x.0.y': {$not: {$regex: 'a', $options: 'i'}}}`,
		`{$set: {'array.1.0': 1, 'object.a.c': 2}, $inc: {int: 1}, $push: {array: {$each: [1], $sort: 1, $slice: -2}}, $rename: {long: 'renamed'}}`,
		`{$pull: {array: {$gt: 1}}, $addToSet: {'new.x': {$each: [1, 1]}}, $unset: {'array.0': 1}, $mul: {double: 2}, $bit: {int: {or: 4}}, $set: {'array.$[]': 1}}`,
		`{a: 1, 'array.c': 1, x: {$add: ['$int', '$double']}}`, `{object: 0, _id: 0}`, `{a: 1, 'b.c': -1}`,
		`{array: [{$match: {int: {$gte: 1}}}, {$unwind: '$array'}, {$group: {_id: '$array', n: {$sum: '$long'}, p: {$push: '$$ROOT'}}}, {$sort: {n: -1}}, {$limit: 2}, {$project: {x: {$cond: ['$n', '$p', {$literal: 1}]}}}]}`,
		`{array: [{$set: {x: {$map: {input: '$array', as: 'e', in: {$ifNull: ['$$e.c', '$int']}}}, 'object.a': {$mergeObjects: ['$object', {z: 1}]}}}, {$unset: 'double'}, {$replaceWith: {$concatArrays: ['$array', []]}}]}`,
	} {
		f.Add([]byte(raw(f, text)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if Validate(data, Limits{}) == nil {
			exercise(t, data, other)
			exercise(t, other, data)
		}
	})
}

// FuzzSpecificationOnDocument grows a specification and a document out of the bytes, so
// that the fuzzer does not have to guess lengths, and runs the one on the other.
func FuzzSpecificationOnDocument(f *testing.F) {
	for i := range 40 {
		seed := make([]byte, 60)
		for j := range seed {
			seed[j] = byte((i*31 + j*j*7) * 97)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, doc := growDocument(&data, 4, true), growDocument(&data, 4, false)
		if err := Validate(spec, Limits{}); err != nil {
			t.Fatal(err)
		}
		exercise(t, spec, doc)
		exercise(t, docOf(el(3, grownOperators[len(data)%len(grownOperators)], spec...)), doc)
		exercise(t, docOf(el(4, "array", docOf(el(3, "0", spec...))...)), doc)
	})
}

var (
	grownFields    = []string{"a", "b", "_id", "a.b", "a.0", "b.1.a", "array", "", "0", "path", "in", "input", "cond", "x.$[]", "$$ROOT"}
	grownOperators = []string{"$eq", "$ne", "$gt", "$lte", "$in", "$nin", "$and", "$or", "$nor", "$not", "$exists", "$type", "$size", "$all",
		"$elemMatch", "$mod", "$regex", "$options", "$expr", "$bitsAllSet", "$set", "$unset", "$inc", "$mul", "$min", "$max", "$push", "$each",
		"$slice", "$sort", "$position", "$addToSet", "$pop", "$pull", "$pullAll", "$rename", "$bit", "$currentDate", "$setOnInsert",
		"$match", "$group", "$project", "$addFields", "$unwind", "$sum", "$avg", "$first", "$add", "$subtract", "$divide", "$concat", "$cond",
		"$ifNull", "$map", "$filter", "$reduce", "$let", "$switch", "$arrayElemAt", "$mergeObjects", "$concatArrays", "$literal", "$limit",
		"$skip", "$count", "$replaceWith", "$sortByCount", "$toString", "$floor", "$round"}
	grownTexts = []string{"", "a", "$a", "$a.b", "$$ROOT.a", "$$this", "$$value", "^a", "x", "number", "$", "string"}
)

// growDocument reads bytes as decisions: how many fields, their names, types and values.
func growDocument(data *[]byte, depth int, operators bool) bson.Raw {
	out, at := begin(nil)
	for n := grown(data, 4); n > 0; n-- {
		name := grownFields[grown(data, len(grownFields))]
		if operators && grown(data, 3) > 0 {
			name = grownOperators[grown(data, len(grownOperators))]
		}
		if field(finish(append([]byte(nil), out...), at), name).Type == 0 {
			out = growElement(out, data, name, depth, operators)
		}
	}
	return finish(out, at)
}

func growElement(out []byte, data *[]byte, name string, depth int, operators bool) []byte {
	kind := grown(data, 12)
	if depth == 0 {
		kind %= 9
	}
	switch kind {
	case 0:
		return appendElement(out, name, null)
	case 1, 2:
		return append(out, el(16, name, le32(grown(data, 7)-2)...)...)
	case 3:
		return append(out, el(1, name, 0, 0, 0, 0, 0, 0, byte(grown(data, 256)), 64)...)
	case 4, 5:
		return appendElement(out, name, stringValue(grownTexts[grown(data, len(grownTexts))]))
	case 6:
		return append(out, el(18, name, 255, 255, 255, 255, 255, 255, 255, byte(grown(data, 256)))...)
	case 7:
		return append(out, el(19, name, append(make([]byte, 14), 0x40, byte(grown(data, 256)))...)...)
	case 8:
		return append(out, el(8, name, byte(grown(data, 2)))...)
	case 9:
		out, at := begin(appendHeader(out, bson.TypeArray, name))
		for i := range grown(data, 4) {
			out = growElement(out, data, string(rune('0'+i)), depth-1, operators)
		}
		return finish(out, at)
	}
	return appendElement(out, name, documentValue(growDocument(data, depth-1, operators)))
}

// grown is the next decision, one of n.
func grown(data *[]byte, n int) int {
	if len(*data) == 0 {
		return 0
	}
	v := int((*data)[0]) % n
	*data = (*data)[1:]
	return v
}

// FuzzCompareAgreesWithSortKeys compares the values of two documents.
func FuzzCompareAgreesWithSortKeys(f *testing.F) {
	f.Add([]byte(everyType(f)), []byte(raw(f, `{a: [1, {b: 2}]}`)))
	s, err := ParseSort(raw(f, `{a: 1}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if Validate(a, Limits{}) != nil || Validate(b, Limits{}) != nil {
			return
		}
		x := docOf(el(byte(bson.TypeEmbeddedDocument), "a", a...))
		y := docOf(el(byte(bson.TypeEmbeddedDocument), "a", b...))
		keys := sign(string(s.AppendKey(nil, x)), string(s.AppendKey(nil, y)))
		if values := CompareDocs(a, b); values != keys {
			t.Fatalf("%x and %x: values %d, keys %d", a, b, values, keys)
		}
	})
}

func sign(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
