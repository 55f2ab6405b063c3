package document

import (
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

const now = 1_700_000_000_123

func update(t testing.TB, text string, o UpdateOptions) *Update {
	t.Helper()
	u, err := ParseUpdate(value(t, text), o)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return u
}

// TestUpdateApplies lists update, document before, document after; "=" is no change.
func TestUpdateApplies(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		// replacement
		{`{b: 2}`, `{_id: 1, a: 1}`, `{_id: 1, b: 2}`},
		{`{b: 2, _id: 1}`, `{_id: 1, a: 1}`, `{_id: 1, b: 2}`},
		{`{b: 2, _id: 1.0}`, `{_id: 1, a: 1}`, `{_id: 1.0, b: 2}`},
		{`{}`, `{_id: 1, a: 1}`, `{_id: 1}`},
		{`{a: 1}`, `{_id: 1, a: 1}`, `=`},
		{`{a: {$x: 1}}`, `{_id: 1}`, `{_id: 1, a: {$x: 1}}`},
		// $set, $unset
		{`{$set: {}}`, `{_id: 1}`, `=`},
		{`{$set: {a: 2}}`, `{_id: 1, a: 1, b: 1}`, `{_id: 1, a: 2, b: 1}`},
		{`{$set: {a: 1}}`, `{_id: 1, a: 1}`, `=`},
		{`{$set: {a: 1.0}}`, `{_id: 1, a: 1}`, `{_id: 1, a: 1.0}`},
		{`{$set: {z: 1, b: 2, '10': 3, '9': 4}, $inc: {a: 1}}`, `{_id: 1}`, `{_id: 1, '9': 4, '10': 3, a: 1, b: 2, z: 1}`},
		{`{$set: {'a.b.c': 1}}`, `{_id: 1}`, `{_id: 1, a: {b: {c: 1}}}`},
		{`{$set: {'a.b.c': 1, 'a.b.d': 2, 'a.e': 3}}`, `{_id: 1, a: {b: {d: 0, x: 9}}, z: 1}`, `{_id: 1, a: {b: {d: 2, x: 9, c: 1}, e: 3}, z: 1}`},
		{`{$set: {'a.1': 5}}`, `{_id: 1, a: [1, 2, 3]}`, `{_id: 1, a: [1, 5, 3]}`},
		{`{$set: {'a.3': 5}}`, `{_id: 1, a: [1]}`, `{_id: 1, a: [1, null, null, 5]}`},
		{`{$set: {'a.2.b': 5, 'a.0.b': 1, 'a.10': 7}}`, `{_id: 1, a: [{b: 0, c: 1}, 2]}`, `{_id: 1, a: [{b: 1, c: 1}, 2, {b: 5}, null, null, null, null, null, null, null, 7]}`},
		{`{$set: {'a.0': 5}}`, `{_id: 1}`, `{_id: 1, a: {'0': 5}}`},
		{`{$set: {'a.$id': 5}}`, `{_id: 1, a: {$ref: 'x'}}`, `{_id: 1, a: {$ref: 'x', $id: 5}}`},
		{`{$set: {_id: 1, a: 1}}`, `{_id: 1}`, `{_id: 1, a: 1}`},
		{`{$unset: {a: '', x: '', 'b.c': 1, 'd.0': 1, 'e.f': 1, 'g.h.i': 1}}`, `{_id: 1, a: 1, b: {c: 1, d: 2}, d: [1, 2], e: 5}`, `{_id: 1, b: {d: 2}, d: [null, 2], e: 5}`},
		{`{$unset: {'d.5': 1}}`, `{_id: 1, d: [1]}`, `=`},
		{`{$unset: {'d.x': 1}}`, `{_id: 1, d: [1]}`, `=`},
		{`{$setOnInsert: {a: 1, 'b.c': 1}}`, `{_id: 1, b: 5}`, `=`},
		// numbers
		{`{$inc: {a: 1, b: 1, c: {$numberLong: '1'}, d: 0.5, e: {$numberDecimal: '0.10'}, f: 3}}`, `{_id: 1, a: 1, b: 2147483647, c: 1, d: 1, e: 1}`,
			`{_id: 1, a: 2, b: {$numberLong: '2147483648'}, c: {$numberLong: '2'}, d: 1.5, e: {$numberDecimal: '1.10'}, f: 3}`},
		{`{$inc: {a: 0}}`, `{_id: 1, a: 5}`, `=`},
		{`{$inc: {a: 0.0}}`, `{_id: 1, a: 5}`, `{_id: 1, a: 5.0}`},
		{`{$inc: {a: -1}}`, `{_id: 1, a: {$numberLong: '-9223372036854775807'}}`, `{_id: 1, a: {$numberLong: '-9223372036854775808'}}`},
		{`{$inc: {'a.b': 2}}`, `{_id: 1}`, `{_id: 1, a: {b: 2}}`},
		{`{$mul: {a: 3, b: 2147483647, c: 2, d: {$numberLong: '3'}, e: 2.0, f: {$numberDecimal: '3'}}}`, `{_id: 1, a: 2, b: 2, c: 0.1, f: 0.1}`,
			`{_id: 1, a: 6, b: {$numberLong: '4294967294'}, c: 0.2, f: {$numberDecimal: '0.300000000000000'}, d: {$numberLong: '0'}, e: 0.0}`},
		{`{$min: {a: 1, b: 9, c: 5, d: 'x'}, $max: {e: 9, f: 1, g: 'x'}}`, `{_id: 1, a: 2, b: 3, d: 5, e: 1, f: 2, g: 5}`, `{_id: 1, a: 1, b: 3, d: 5, e: 9, f: 2, g: 'x', c: 5}`},
		{`{$min: {a: 1.0}}`, `{_id: 1, a: 1}`, `=`},
		{`{$bit: {a: {and: 6}, b: {or: 1, xor: {$numberLong: '2'}}, c: {xor: 5}}}`, `{_id: 1, a: 5, b: 4}`, `{_id: 1, a: 4, b: {$numberLong: '7'}, c: 5}`},
		{`{$currentDate: {a: true, b: {$type: 'date'}, c: {$type: 'timestamp'}}}`, `{_id: 1}`,
			`{_id: 1, a: {$date: {$numberLong: '1700000000123'}}, b: {$date: {$numberLong: '1700000000123'}}, c: {$timestamp: {t: 1700000000, i: 1}}}`},
		// $rename
		{`{$rename: {a: 'z', b: 'c', x: 'y', 'd.e': 'f.g'}}`, `{_id: 1, a: 1, b: 2, c: 3, d: {e: 4}}`, `{_id: 1, c: 2, d: {}, f: {g: 4}, z: 1}`},
		{`{$rename: {x: 'a'}}`, `{_id: 1, a: 1}`, `=`},
		{`{$rename: {x: 'a.b'}}`, `{_id: 1, a: 1}`, `=`},
		// $push
		{`{$push: {a: 1}}`, `{_id: 1}`, `{_id: 1, a: [1]}`},
		{`{$push: {a: [1]}}`, `{_id: 1, a: [0]}`, `{_id: 1, a: [0, [1]]}`},
		{`{$push: {a: {$each: [1, 2]}}}`, `{_id: 1, a: [0]}`, `{_id: 1, a: [0, 1, 2]}`},
		{`{$push: {a: {$each: []}}}`, `{_id: 1, a: [0]}`, `=`},
		{`{$push: {a: {$each: []}}}`, `{_id: 1}`, `{_id: 1, a: []}`},
		{`{$push: {a: {$each: [8, 9], $position: 0}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [8, 9, 1, 2]}`},
		{`{$push: {a: {$each: [9], $position: -1}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [1, 9, 2]}`},
		{`{$push: {a: {$each: [9], $position: -9}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [9, 1, 2]}`},
		{`{$push: {a: {$each: [9], $position: 9}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [1, 2, 9]}`},
		{`{$push: {a: {$each: [3], $slice: -2}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [2, 3]}`},
		{`{$push: {a: {$each: [3], $slice: 2}}}`, `{_id: 1, a: [1, 2]}`, `=`},
		{`{$push: {a: {$each: [3], $slice: 0}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: []}`},
		{`{$push: {a: {$each: [2], $sort: -1}}}`, `{_id: 1, a: [1, 3]}`, `{_id: 1, a: [3, 2, 1]}`},
		{`{$push: {a: {$each: [{b: 2}], $sort: {b: 1, c: -1}, $slice: 3}}}`, `{_id: 1, a: [{b: 3}, {b: 2, c: 1}, 5, {b: 1}]}`, `{_id: 1, a: [5, {b: 1}, {b: 2, c: 1}]}`},
		{`{$push: {'a.b': 1}}`, `{_id: 1}`, `{_id: 1, a: {b: [1]}}`},
		{`{$push: {'a.0': 1}}`, `{_id: 1, a: [[0]]}`, `{_id: 1, a: [[0, 1]]}`},
		// sets and removal
		{`{$addToSet: {a: 1}}`, `{_id: 1, a: [1.0]}`, `=`},
		{`{$addToSet: {a: 1}}`, `{_id: 1}`, `{_id: 1, a: [1]}`},
		{`{$addToSet: {a: {$each: [3, 1, 3, 2]}}}`, `{_id: 1, a: [1]}`, `{_id: 1, a: [1, 3, 2]}`},
		{`{$addToSet: {a: {x: 1}}}`, `{_id: 1, a: [{x: 2}]}`, `{_id: 1, a: [{x: 2}, {x: 1}]}`},
		{`{$pop: {a: 1, b: -1, c: 1, d: 1}}`, `{_id: 1, a: [1, 2], b: [1, 2], c: []}`, `{_id: 1, a: [1], b: [2], c: []}`},
		{`{$pull: {a: 1}}`, `{_id: 1, a: [1, 2, 1.0]}`, `{_id: 1, a: [2]}`},
		{`{$pull: {a: 5, b: 1, 'c.5': 1}}`, `{_id: 1, a: [1], c: [1]}`, `=`},
		{`{$pull: {a: {$gte: 2}}}`, `{_id: 1, a: [1, 2, 3, [4]]}`, `{_id: 1, a: [1]}`},
		{`{$pull: {a: {$not: {$gte: 2}}}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [2]}`},
		{`{$pull: {a: {$in: [1, 'x'], $ne: 1}}}`, `{_id: 1, a: [1, 'x']}`, `{_id: 1, a: [1]}`},
		{`{$pull: {a: {b: 1}}}`, `{_id: 1, a: [{b: 1, c: 2}, {b: 2}, 1]}`, `{_id: 1, a: [{b: 2}, 1]}`},
		{`{$pull: {a: {$regularExpression: {pattern: '^x', options: ''}}}}`, `{_id: 1, a: ['xa', 'ax', 1]}`, `{_id: 1, a: ['ax', 1]}`},
		{`{$pull: {a: [1]}}`, `{_id: 1, a: [1, [1]]}`, `{_id: 1, a: [1]}`},
		{`{$pullAll: {a: [1, {b: 1}]}}`, `{_id: 1, a: [1, 2, {b: 1}, {b: 1, c: 1}]}`, `{_id: 1, a: [2, {b: 1, c: 1}]}`},
		// elements
		{`{$inc: {'a.$[]': 1}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [2, 3]}`},
		{`{$set: {'a.$[].b.$[].c': 1}}`, `{_id: 1, a: [{b: [{c: 0}, {}]}, {b: []}]}`, `{_id: 1, a: [{b: [{c: 1}, {c: 1}]}, {b: []}]}`},
		{`{$inc: {'a.$[]': 1, 'a.0': 10}}`, `{_id: 1, a: [1, 2]}`, `{_id: 1, a: [12, 3]}`},
		// pipelines
		{`[{$set: {b: {$add: ['$a', 1]}}}, {$set: {c: '$b'}}, {$unset: 'a'}]`, `{_id: 1, a: 1}`, `{_id: 1, b: 2, c: 2}`},
		{`[{$replaceWith: {_id: '$_id', x: '$$NOW'}}]`, `{_id: 1, a: 1}`, `{_id: 1, x: {$date: {$numberLong: '1700000000123'}}}`},
		{`[{$project: {a: 1}}]`, `{_id: 1, a: 1, b: 2}`, `{_id: 1, a: 1}`},
		{`[]`, `{_id: 1}`, `=`},
	} {
		u := update(t, c[0], UpdateOptions{NowMillis: now})
		doc := raw(t, c[1])
		out, changed, err := u.Apply([]byte("before"), doc)
		if err != nil {
			t.Errorf("%s on %s: %v", c[0], c[1], err)
			continue
		}
		want := c[2]
		if want == "=" {
			want = c[1]
		}
		if u.IsReplacement() == (c[0][0] == '[' || strings.HasPrefix(c[0], "{$")) {
			t.Errorf("%s: a replacement or not?", c[0])
		}
		got, ok := strings.CutPrefix(string(out), "before")
		if !ok || got != string(raw(t, want)) || changed != (c[2] != "=") {
			t.Errorf("%s on %s:\ngot  %s, changed %v\nwant %s", c[0], c[1], json(t, bson.Raw(got)), changed, c[2])
		}
	}
}

func TestArrayFiltersChooseElements(t *testing.T) {
	t.Parallel()
	filters := func(texts ...string) UpdateOptions {
		var o UpdateOptions
		for _, text := range texts {
			o.ArrayFilters = append(o.ArrayFilters, raw(t, text))
		}
		return o
	}
	for _, c := range []struct {
		update, doc, want string
		o                 UpdateOptions
	}{
		{`{$set: {'a.$[x]': 9}}`, `{a: [1, 5, 7]}`, `{a: [1, 9, 9]}`, filters(`{x: {$gt: 3}}`)},
		{`{$set: {'a.$[x].b': 9}}`, `{a: [{b: 1, c: 1}, {b: 2, c: 2}]}`, `{a: [{b: 1, c: 1}, {b: 9, c: 2}]}`, filters(`{'x.c': 2}`)},
		{`{$inc: {'a.$[x].b.$[y]': 1}}`, `{a: [{b: [1, 2], c: 1}, {b: [1, 2]}]}`, `{a: [{b: [1, 3], c: 1}, {b: [1, 2]}]}`, filters(`{'x.c': 1}`, `{$or: [{y: 2}, {y: 3}]}`)},
		{`{$inc: {'a.$[x]': 1, 'a.$[y]': 10}}`, `{a: [1, 2]}`, `{a: [2, 12]}`, filters(`{x: 1}`, `{y: {$gt: 1}}`)},
		{`{$unset: {'a.$[x]': 1}}`, `{a: [1, 2]}`, `{a: [null, 2]}`, filters(`{x: 1}`)},
	} {
		got, _, err := update(t, c.update, c.o).Apply(nil, raw(t, c.doc))
		if err != nil {
			t.Errorf("%s: %v", c.update, err)
			continue
		}
		sameDoc(t, got, c.want)
	}
	for text, c := range map[string]struct {
		o    UpdateOptions
		code mongoerr.Code
		want string
	}{
		`{$set: {'a.$[x]': 1}}`:           {filters(), mongoerr.BadValue, "No array filter found for identifier 'x' in path 'a.$[x]'"},
		`{$set: {a: 1}}`:                  {filters(`{x: 1}`), mongoerr.FailedToParse, "The array filter for identifier 'x' was not used in the update { $set: { a: 1 } }"},
		`{$set: {'b.$[x]': 1}}`:           {filters(`{x: 1}`, `{x: 2}`), mongoerr.FailedToParse, "Found multiple array filters with the same top-level field name x"},
		`{$set: {'c.$[x]': 1}}`:           {filters(`{x: 1, y: 1}`), mongoerr.FailedToParse, "Expected a single top-level field name, found 'x' and 'y'"},
		`{$set: {'d.$[x]': 1}}`:           {filters(`{}`), mongoerr.FailedToParse, "without a top-level field name"},
		`{$set: {'e.$[x]': 1}}`:           {filters(`{$expr: 1}`), mongoerr.BadValue, "$expr is not allowed"},
		`{$set: {'f.$[x]': 1}}`:           {filters(`{x: {$y: 1}}`), mongoerr.BadValue, "unknown operator"},
		`{$set: {'$[x]': 1}}`:             {filters(`{x: 1}`), mongoerr.BadValue, "in the first position in path '$[x]'"},
		`{g: 1}`:                          {filters(`{x: 1}`), mongoerr.FailedToParse, "replacement-style"},
		`{$set: {'h.$[x]': 1}, $inc: {}}`: {UpdateOptions{ArrayFilters: make([]bson.Raw, maxArrayFilters+1)}, mongoerr.BadValue, "at most 100"},
	} {
		_, err := ParseUpdate(value(t, text), c.o)
		refused(t, err, c.code, c.want)
	}
}

func TestPositionalOperatorStandsForTheMatch(t *testing.T) {
	t.Parallel()
	for _, c := range [][4]string{
		{`{a: 2}`, `{$set: {'a.$': 9}}`, `{a: [1, 2, 2]}`, `{a: [1, 9, 2]}`},
		{`{'a.b': 2, z: 1}`, `{$set: {'a.$.c': 9}}`, `{z: 1, a: [{b: 1}, {b: 2}]}`, `{z: 1, a: [{b: 1}, {b: 2, c: 9}]}`},
		{`{a: {$elemMatch: {b: 1, c: 2}}}`, `{$inc: {'a.$.b': 1}}`, `{a: [{b: 1}, {b: 1, c: 2}]}`, `{a: [{b: 1}, {b: 2, c: 2}]}`},
		{`{a: {$elemMatch: {$gt: 1, $lt: 4}}}`, `{$set: {'a.$': 0}}`, `{a: [5, 3]}`, `{a: [5, 0]}`},
		{`{$or: [{a: 7}, {a: 5}]}`, `{$unset: {'a.$': 1}}`, `{a: [1, 5]}`, `{a: [1, null]}`},
		{`{'x.a': 5}`, `{$push: {'x.a.$': 1}}`, `{x: {a: [[1], 5]}}`, ``},
		{`{b: 1}`, `{$set: {'a.$': 0}}`, `{a: [1, 5], b: 1}`, ``},
		{`{a: {$ne: 7}, 'a.0': {$size: 2}}`, `{$set: {'a.$': 0}}`, `{a: [1, 5]}`, ``},
	} {
		u := update(t, c[1], UpdateOptions{Filter: filter(t, c[0])})
		got, _, err := u.Apply(nil, raw(t, c[2]))
		if c[3] == "" {
			refused(t, err, mongoerr.BadValue, "")
			continue
		}
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		sameDoc(t, got, c[3])
	}
	_, _, err := update(t, `{$set: {'a.$': 1}}`, UpdateOptions{}).Apply(nil, raw(t, `{a: [1]}`))
	refused(t, err, mongoerr.BadValue, "The positional operator did not find the match needed from the query.")
}

func TestUpdateRefusals(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a.", MaxDepth) + "a"
	for text, want := range map[string]struct {
		code mongoerr.Code
		text string
	}{
		`5`:                                           {mongoerr.FailedToParse, "Update argument must be either an object or an array, not int"},
		`{$foo: {a: 1}}`:                              {mongoerr.FailedToParse, "Unknown modifier: $foo. Expected a valid update modifier or pipeline-style update specified as an array"},
		`{$set: {a: 1}, b: 1}`:                        {mongoerr.FailedToParse, "Unknown modifier: b"},
		`{b: 1, $set: {a: 1}}`:                        {mongoerr.DollarPrefixedFieldName, "The dollar ($) prefixed field '$set' in '$set' is not allowed in the context of an update's replacement document. Consider using an aggregation pipeline with $replaceWith."},
		`{$set: 5}`:                                   {mongoerr.FailedToParse, "Modifiers operate on fields but we found type int instead. For example: {$mod: {<field>: ...}} not {$set: 5}"},
		`{$set: {'': 1}}`:                             {mongoerr.EmptyFieldName, "An empty update path is not valid."},
		`{$set: {'a..b': 1}}`:                         {mongoerr.EmptyFieldName, "The update path 'a..b' contains an empty field name, which is not allowed."},
		`{$set: {'a.$x': 1}}`:                         {mongoerr.DollarPrefixedFieldName, "The dollar ($) prefixed field '$x' in 'a.$x' is not valid for storage."},
		`{$set: {'$': 1}}`:                            {mongoerr.BadValue, "Cannot have positional (i.e. '$') element in the first position in path '$'"},
		`{$set: {'a.$.b.$': 1}}`:                      {mongoerr.BadValue, "Too many positional (i.e. '$') elements found in path 'a.$.b.$'"},
		`{$set: {a: 1}, $inc: {a: 1}}`:                {mongoerr.ConflictingUpdateOperators, "Updating the path 'a' would create a conflict at 'a'"},
		`{$set: {a: 1}, $inc: {'a.b': 1}}`:            {mongoerr.ConflictingUpdateOperators, "Updating the path 'a.b' would create a conflict at 'a'"},
		`{$set: {'a.b': 1}, $inc: {a: 1}}`:            {mongoerr.ConflictingUpdateOperators, "Updating the path 'a' would create a conflict at 'a'"},
		`{$set: {'a.$[]': 1}, $inc: {a: 1}}`:          {mongoerr.ConflictingUpdateOperators, "at 'a'"},
		`{$rename: {a: 'b'}, $set: {b: 1}}`:           {mongoerr.ConflictingUpdateOperators, "at 'b'"},
		`{$set: {'` + long + `': 1}}`:                 {mongoerr.Overflow, "at most 100 parts"},
		`{$inc: {a: 'x'}}`:                            {mongoerr.TypeMismatch, `Cannot increment with non-numeric argument: {a: "x"}`},
		`{$mul: {a: null}}`:                           {mongoerr.TypeMismatch, `Cannot multiply with non-numeric argument: {a: null}`},
		`{$rename: {a: 5}}`:                           {mongoerr.BadValue, "The 'to' field for $rename must be a string: a: 5"},
		`{$rename: {a: 'a'}}`:                         {mongoerr.BadValue, "The source and target field for $rename must differ"},
		`{$rename: {'a.$': 'b'}}`:                     {mongoerr.BadValue, "The source field for $rename may not be dynamic: a.$"},
		`{$rename: {a: 'b.$[]'}}`:                     {mongoerr.BadValue, "The destination field for $rename may not be dynamic: b.$[]"},
		`{$currentDate: {a: 5}}`:                      {mongoerr.BadValue, "int is not valid type for $currentDate"},
		`{$currentDate: {a: {$type: 'x'}}}`:           {mongoerr.BadValue, "is required to be 'date' or 'timestamp'"},
		`{$currentDate: {a: {x: 1}}}`:                 {mongoerr.BadValue, "The only valid field of the option is '$type'"},
		`{$push: {a: {$each: 5}}}`:                    {mongoerr.BadValue, "The argument to $each in $push must be an array but it was of type: int"},
		`{$push: {a: {$each: [], $foo: 1}}}`:          {mongoerr.BadValue, "Unrecognized clause in $push: $foo"},
		`{$push: {a: {$each: [], $slice: 'x'}}}`:      {mongoerr.BadValue, "The value for $slice must be an integer value but was given type: string"},
		`{$push: {a: {$each: [], $position: 1.5}}}`:   {mongoerr.BadValue, "The value for $position must be an integer value, not of type: double"},
		`{$push: {a: {$each: [], $sort: 2}}}`:         {mongoerr.BadValue, "The $sort element value must be either 1 or -1"},
		`{$push: {a: {$each: [], $sort: 'x'}}}`:       {mongoerr.BadValue, "The $sort is invalid"},
		`{$push: {a: {$each: [], $sort: {}}}}`:        {mongoerr.BadValue, "The $sort pattern is empty"},
		`{$push: {a: {$each: [], $sort: {b: 3}}}}`:    {mongoerr.BadValue, "must be either 1 or -1"},
		`{$push: {a: {$each: [], $sort: {'': 1}}}}`:   {mongoerr.BadValue, "The $sort field cannot be empty"},
		`{$push: {a: {$each: [], $sort: {'b.': 1}}}}`: {mongoerr.BadValue, "has an empty part: b."},
		`{$addToSet: {a: {$each: 1}}}`:                {mongoerr.TypeMismatch, "The argument to $each in $addToSet must be an array but it was of type int"},
		`{$addToSet: {a: {$each: [], x: 1}}}`:         {mongoerr.BadValue, "Found unexpected fields after $each in $addToSet"},
		`{$pop: {a: 2}}`:                              {mongoerr.FailedToParse, "$pop expects 1 or -1, found: 2"},
		`{$pull: {a: {$foo: 1}}}`:                     {mongoerr.BadValue, "unknown operator: $foo"},
		`{$pull: {a: {b: {$foo: 1}}}}`:                {mongoerr.BadValue, "unknown operator: $foo"},
		`{$pullAll: {a: 1}}`:                          {mongoerr.BadValue, "$pullAll requires an array argument but was given a int"},
		`{$bit: {a: 1}}`:                              {mongoerr.BadValue, "The $bit modifier is not compatible with a int"},
		`{$bit: {a: {}}}`:                             {mongoerr.BadValue, "You must pass in at least one bitwise operation"},
		`{$bit: {a: {nand: 1}}}`:                      {mongoerr.BadValue, "only supports 'and', 'or', and 'xor', not 'nand'"},
		`{$bit: {a: {and: 1.5}}}`:                     {mongoerr.BadValue, "must be an Integer(32/64 bit); a 'double' is not supported"},
		`[{$match: {}}]`:                              {mongoerr.InvalidOptions, "$match is not allowed to be used within an update"},
		`[{$foo: {}}]`:                                {mongoerr.UnknownPipelineStage, "Unrecognized pipeline stage name: '$foo'"},
	} {
		_, err := ParseUpdate(value(t, text), UpdateOptions{})
		refused(t, err, want.code, want.text)
	}
}

func TestUpdateFailsOnDocuments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		update, doc string
		code        mongoerr.Code
		want        string
	}{
		{`{$set: {_id: 2}}`, `{_id: 1}`, mongoerr.ImmutableField, "Performing an update on the path '_id' would modify the immutable field '_id'"},
		{`{$unset: {_id: 1}}`, `{_id: 1}`, mongoerr.ImmutableField, ""},
		{`{$set: {'_id.a': 2}}`, `{_id: {a: 1}}`, mongoerr.ImmutableField, ""},
		{`{_id: 2}`, `{_id: 1}`, mongoerr.ImmutableField, ""},
		{`[{$set: {_id: 5}}]`, `{_id: 1}`, mongoerr.ImmutableField, ""},
		{`{$set: {'a.b': 1}}`, `{a: 5}`, mongoerr.PathNotViable, "Cannot create field 'b' in element {a: 5}"},
		{`{$set: {'a.b.c': 1}}`, `{a: {b: 'x'}}`, mongoerr.PathNotViable, `Cannot create field 'c' in element {b: "x"}`},
		{`{$set: {'a.b': 1}}`, `{a: null}`, mongoerr.PathNotViable, `Cannot create field 'b' in element {a: null}`},
		{`{$set: {'a.b': 1}}`, `{a: [1]}`, mongoerr.PathNotViable, "Cannot create field 'b' in element {a: [ 1 ]}"},
		{`{$pull: {'a.b': 1}}`, `{a: 1}`, mongoerr.PathNotViable, ""},
		{`{$set: {'a.2000000': 1}}`, `{a: [1]}`, cannotBackfillArray, "can't backfill more than 1500000 elements"},
		{`{$inc: {a: 1}}`, `{_id: 7, a: 'x'}`, mongoerr.TypeMismatch, "Cannot apply $inc to a value of non-numeric type. {_id: 7} has the field 'a' of non-numeric type string"},
		{`{$mul: {a: 1}}`, `{a: null}`, mongoerr.TypeMismatch, "Cannot apply $mul to a value of non-numeric type. {no id} has the field 'a' of non-numeric type null"},
		{`{$inc: {a: 1}}`, `{_id: 1, a: {$numberLong: '9223372036854775807'}}`, mongoerr.BadValue, "Failed to apply $inc operations to current value ((NumberLong)9223372036854775807) for document {_id: 1}"},
		{`{$mul: {a: 4}}`, `{_id: 1, a: {$numberLong: '4611686018427387904'}}`, mongoerr.BadValue, "Failed to apply $mul operations"},
		{`{$push: {a: 1}}`, `{_id: 'k', a: 5}`, mongoerr.BadValue, `The field 'a' must be an array but is of type int in document {_id: "k"}`},
		{`{$addToSet: {a: 1}}`, `{a: 5}`, mongoerr.BadValue, "Cannot apply $addToSet to non-array field. Field named 'a' has non-array type int"},
		{`{$pop: {a: 1}}`, `{a: 5}`, mongoerr.TypeMismatch, "Path 'a' contains an element of non-array type 'int'"},
		{`{$pull: {a: 1}}`, `{a: 5}`, mongoerr.BadValue, "Cannot apply $pull to a non-array value"},
		{`{$pullAll: {a: [1]}}`, `{a: 5}`, mongoerr.BadValue, "Cannot apply $pullAll to a non-array value"},
		{`{$bit: {a: {and: 1}}}`, `{_id: 1, a: 1.5}`, mongoerr.BadValue, "Cannot apply $bit to a value of non-integral type.{_id: 1} has the field a of non-integer type double"},
		{`{$set: {'a.$[]': 1}}`, `{a: 5}`, mongoerr.BadValue, "Cannot apply array updates to non-array element a: 5"},
		{`{$set: {'a.$[]': 1}}`, `{a: {b: 1}}`, mongoerr.BadValue, "Cannot apply array updates to non-array element a: { b: 1 }"},
		{`{$set: {'a.$[]': 1}}`, `{}`, mongoerr.BadValue, "The path 'a' must exist in the document in order to apply array updates."},
		{`{$rename: {'a.b': 'c'}}`, `{_id: 1, a: [{b: 1}]}`, mongoerr.BadValue, "The source field cannot be an array element, 'a.b' in doc with _id: 1 has an array field called 'a'"},
		{`{$rename: {c: 'a.0'}}`, `{_id: 1, a: [{b: 1}], c: 1}`, mongoerr.BadValue, "The destination field cannot be an array element, 'a.0' in doc with _id: 1 has an array field called 'a'"},
		{`[{$set: {a: {$add: ['$a', 1]}}}]`, `{a: 'x'}`, mongoerr.TypeMismatch, "$add only supports"},
		{`[{$replaceWith: '$a'}]`, `{a: 5}`, 40228, "'newRoot' expression must evaluate to an object, but resulting value was: 5. Type of resulting value: 'int'"},
	} {
		out, changed, err := update(t, c.update, UpdateOptions{}).Apply([]byte("kept"), raw(t, c.doc))
		if string(out) != "kept" || changed {
			t.Errorf("%s: buffer changed by a failure", c.update)
		}
		refused(t, err, c.code, c.want)
	}
}

func TestUpdateResultsAreBounded(t *testing.T) {
	t.Parallel()
	big := appendElement(nil, "b", stringValue(strings.Repeat("x", 10<<20)))
	doc := docOf(el(16, "_id", 1, 0, 0, 0), big)
	set := docOf(el(3, "$set", docOf(appendElement(nil, "c", stringValue(strings.Repeat("x", 10<<20))))...))
	u, err := ParseUpdate(documentValue(set), UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = u.Apply(nil, doc)
	refused(t, err, updateTooLarge, "Resulting document after update is larger than 16777216")
	_, err = u.Upsert(nil, mustFilter(t, docOf(big)), func() bson.RawValue { return null })
	refused(t, err, mongoerr.BSONObjectTooLarge, "object to insert too large")

	deep := docOf(el(3, "$set", docOf(el(3, "a.b.c", nested(MaxDepth-2, 3)...))...))
	if u, err = ParseUpdate(documentValue(deep), UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, _, err = u.Apply(nil, docOf())
	refused(t, err, mongoerr.Overflow, "nested too deep")
	_, err = u.Upsert(nil, nil, func() bson.RawValue { return null })
	refused(t, err, mongoerr.Overflow, "nested too deep")
}

func mustFilter(t testing.TB, doc bson.Raw) *Filter {
	t.Helper()
	f, err := ParseFilter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestUpsertBeginsWithTheFilter(t *testing.T) {
	t.Parallel()
	newID := func() bson.RawValue { return stringValue("new") }
	for _, c := range [][3]string{
		{`{}`, `{$set: {a: 1}}`, `{_id: 'new', a: 1}`},
		{`{_id: 5}`, `{$set: {a: 1}}`, `{_id: 5, a: 1}`},
		{`{z: 1, b: {$gt: 5}, 'c.d': 2, e: {$in: [7]}}`, `{$setOnInsert: {f: 1, 'c.x': 3}, $inc: {z: 1}}`, `{_id: 'new', c: {d: 2, x: 3}, e: 7, z: 2, f: 1}`},
		{`{$and: [{x: 1}, {_id: 3}]}`, `{$push: {a: 1}}`, `{_id: 3, x: 1, a: [1]}`},
		{`{_id: 3, x: 1}`, `{y: 1}`, `{_id: 3, y: 1}`},
		{`{x: 1}`, `{y: 1, _id: 4}`, `{_id: 4, y: 1}`},
		{`{x: 1}`, `{$set: {_id: 9}}`, `{_id: 9, x: 1}`},
		{`{'_id.a': 1}`, `{$set: {b: 1}}`, `{_id: {a: 1}, b: 1}`},
		{`{_id: 1, a: 1}`, `[{$set: {b: {$add: ['$a', 1]}}}]`, `{_id: 1, a: 1, b: 2}`},
		{`{'a.0': 1, $or: [{b: 1}, {b: 2}], c: {$regularExpression: {pattern: 'x', options: ''}}}`, `{$set: {d: 1}}`, `{_id: 'new', a: {'0': 1}, d: 1}`},
	} {
		got, err := update(t, c[1], UpdateOptions{Upsert: true}).Upsert(nil, filter(t, c[0]), newID)
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		sameDoc(t, got, c[2])
	}
	for _, c := range []struct {
		filter, update string
		code           mongoerr.Code
		want           string
	}{
		{`{a: 1, $and: [{a: 1}]}`, `{$set: {b: 1}}`, notSingleValueField, "cannot infer query fields to set, path 'a' is matched twice"},
		{`{a: 1, 'a.b': 1}`, `{$set: {b: 1}}`, notSingleValueField, "cannot infer query fields to set, both paths 'a.b' and 'a' are matched"},
		{`{_id: 1}`, `{_id: 2}`, mongoerr.ImmutableField, ""},
		{`{_id: 1}`, `{$set: {_id: 2}}`, mongoerr.ImmutableField, ""},
		{`{_id: {$in: [[1]]}}`, `{$set: {a: 2}}`, mongoerr.InvalidIDField, "The '_id' value cannot be of type array"},
		{`{a: 'x'}`, `{$inc: {a: 1}}`, mongoerr.TypeMismatch, ""},
		{`{'a..b': 'x'}`, `{$inc: {a: 1}}`, mongoerr.EmptyFieldName, ""},
	} {
		_, err := update(t, c.update, UpdateOptions{}).Upsert(nil, filter(t, c.filter), newID)
		refused(t, err, c.code, c.want)
	}
}

func TestInsertableDocumentsHaveTheirIDFirst(t *testing.T) {
	t.Parallel()
	newID := func() bson.RawValue { return stringValue("new") }
	for doc, want := range map[string]string{
		`{}`:                   `{_id: 'new'}`,
		`{a: 1}`:               `{_id: 'new', a: 1}`,
		`{a: 1, _id: 2}`:       `{_id: 2, a: 1}`,
		`{_id: null, a: 1}`:    `{_id: null, a: 1}`,
		`{_id: {a: 1}, $x: 1}`: `{_id: {a: 1}, $x: 1}`,
	} {
		got, err := AppendInsertable([]byte("x"), raw(t, doc), newID)
		if err != nil {
			t.Error(err)
			continue
		}
		sameDoc(t, got[1:], want)
	}
	for doc, code := range map[string]mongoerr.Code{
		`{_id: [1]}`:                mongoerr.InvalidIDField,
		`{_id: {$undefined: true}}`: mongoerr.InvalidIDField,
		`{_id: {$regularExpression: {pattern: 'x', options: ''}}}`: mongoerr.InvalidIDField,
		`{_id: {$a: 1}}`: mongoerr.DollarPrefixedFieldName,
	} {
		_, err := AppendInsertable(nil, raw(t, doc), newID)
		refused(t, err, code, "")
	}
}

// TestUnsetTakesBackWhatSetCreated, and applying a $set twice changes nothing more.
func TestUnsetTakesBackWhatSetCreated(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		marshal := func(v any) bson.Raw {
			out, err := bson.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		doc := marshal(documentsOf(2).Draw(t, "doc"))
		name := rapid.SampledFrom([]string{"new", "a", "b"}).Draw(t, "name")
		apply := func(doc bson.Raw, operator string, v any) (bson.Raw, bool) {
			u, err := ParseUpdate(documentValue(marshal(bson.D{{Key: operator, Value: bson.D{{Key: name, Value: v}}}})), UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			out, changed, err := u.Apply(nil, doc)
			if err != nil {
				t.Fatal(err)
			}
			if err := Validate(out, Limits{}); err != nil {
				t.Fatal(err)
			}
			return out, changed
		}
		v := values(1).Draw(t, "v")
		set, _ := apply(doc, "$set", v)
		if got := field(set, name); Compare(got, field(marshal(bson.D{{Key: "v", Value: v}}), "v")) != 0 {
			t.Fatalf("set to %s", show(got))
		}
		if _, changed := apply(set, "$set", v); changed {
			t.Fatal("set twice")
		}
		left, _ := apply(set, "$unset", "")
		want, _ := apply(doc, "$unset", "")
		if string(left) != string(want) {
			t.Fatalf("%x, want %x", []byte(left), []byte(want))
		}
	})
}

func TestUpdateWithManyFieldsIsNotSlow(t *testing.T) {
	t.Parallel()
	fields, doc := []byte{}, []byte{}
	for i := range 20_000 {
		fields = appendElement(fields, fmt.Sprint("f", i), null)
		doc = appendElement(doc, fmt.Sprint("g", i), null)
	}
	u, err := ParseUpdate(documentValue(docOf(el(3, "$set", docOf(fields)...))), UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, changed, err := u.Apply(nil, docOf(doc))
	if err != nil || !changed || count(out) != 40_000 {
		t.Error(count(out), err)
	}
}
