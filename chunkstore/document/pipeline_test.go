package document

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func pipeline(t testing.TB, text string) *Pipeline {
	t.Helper()
	p, err := ParsePipeline(value(t, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func stream(docs ...bson.Raw) documents {
	return func(yield func(bson.Raw, error) bool) {
		for _, doc := range docs {
			if !yield(doc, nil) {
				return
			}
		}
	}
}

// output is what a pipeline makes, as one array value's text.
func output(t testing.TB, p *Pipeline, l RunLimits, docs ...bson.Raw) (string, error) {
	t.Helper()
	var all []bson.RawValue
	for doc, err := range p.Run(t.Context(), stream(docs...), l) {
		if err != nil {
			return "", err
		}
		if err := Validate(doc, Limits{}); err != nil {
			t.Fatal(err)
		}
		all = append(all, documentValue(append(bson.Raw(nil), doc...)))
	}
	return string(appendArray(nil, all)), nil
}

func parseDocs(t testing.TB, text string) []bson.Raw {
	t.Helper()
	var docs []bson.Raw
	for _, v := range valuesOf(value(t, text).Value) {
		docs = append(docs, v.Value)
	}
	return docs
}

// TestPipelineMakes lists pipeline, input, output.
func TestPipelineMakes(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{`[]`, `[{a: 1}]`, `[{a: 1}]`},
		{`[{$match: {a: 1}}]`, `[{a: 1}, {a: 2}]`, `[{a: 1}]`},
		{`[{$match: {}}, {$group: {_id: 1, n: {$sum: 1}}}]`, `[{a: 1}, {a: 2}]`, `[{_id: 1, n: 2}]`},
		{`[{$group: {_id: 1, n: {$sum: 1}}}]`, `[]`, `[]`},
		{`[{$group: {_id: '$g', n: {$sum: '$v'}, c: {$count: {}}}}]`, `[{g: 1, v: 1}, {g: 2, v: 5}, {g: 1.0, v: 2.5}, {v: 1}, {g: null, v: 'x'}]`,
			`[{_id: 1, n: 3.5, c: 2}, {_id: 2, n: 5, c: 1}, {_id: null, n: 1, c: 2}]`},
		{`[{$group: {_id: {a: '$a', b: '$b'}, n: {$sum: 1}}}]`, `[{a: 1}, {a: 1, b: 2}, {a: 1}]`, `[{_id: {a: 1}, n: 2}, {_id: {a: 1, b: 2}, n: 1}]`},
		{`[{$group: {_id: null, s: {$sum: '$v'}, a: {$avg: '$v'}, lo: {$min: '$v'}, hi: {$max: '$v'}, f: {$first: '$v'}, l: {$last: '$v'}, p: {$push: '$v'}, u: {$addToSet: '$v'}}}]`,
			`[{v: 3}, {v: 1}, {}, {v: 'x'}, {v: 1.0}, {v: null}]`,
			`[{_id: null, s: 5.0, a: {$numberDouble: '1.6666666666666667'}, lo: 1, hi: 'x', f: 3, l: null, p: [3, 1, 'x', 1.0, null], u: [3, 1, 'x', null]}]`},
		{`[{$group: {_id: null, a: {$avg: '$v'}, lo: {$min: '$v'}, f: {$first: '$v'}, p: {$push: '$v'}, s: {$sum: '$v'}}}]`, `[{}]`, `[{_id: null, a: null, lo: null, f: null, p: [], s: 0}]`},
		{`[{$group: {_id: null, s: {$sum: '$v'}}}]`, `[{v: {$numberLong: '9223372036854775807'}}, {v: 1}]`, `[{_id: null, s: {$numberDouble: '9223372036854775808'}}]`},
		{`[{$group: {_id: null, s: {$sum: '$v'}}}]`, `[{v: 2147483647}, {v: 1}]`, `[{_id: null, s: {$numberLong: '2147483648'}}]`},
		{`[{$group: {_id: null, s: {$sum: '$v'}, a: {$avg: '$v'}}}]`, `[{v: {$numberDecimal: '0.1'}}, {v: 1}, {v: {$numberDecimal: '0.2'}}]`, `[{_id: null, s: {$numberDecimal: '1.3'}, a: {$numberDecimal: '0.4333333333333333333333333333333333'}}]`},
		{`[{$group: {_id: null, s: {$sum: '$v'}}}]`, `[{v: 1e100}, {v: 1}, {v: -1e100}]`, `[{_id: null, s: 1.0}]`},
		{`[{$group: {_id: null, s: {$sum: '$v'}}}]`, `[{v: {$numberDouble: 'Infinity'}}, {v: 1.0}]`, `[{_id: null, s: {$numberDouble: 'Infinity'}}]`},
		{`[{$count: 'n'}]`, `[{}, {}]`, `[{n: 2}]`},
		{`[{$count: 'n'}]`, `[]`, `[]`},
		{`[{$sort: {a: -1}}]`, `[{a: 1, n: 1}, {a: 3}, {a: 1, n: 2}, {a: 2}]`, `[{a: 3}, {a: 2}, {a: 1, n: 1}, {a: 1, n: 2}]`},
		{`[{$sort: {a: 1}}, {$skip: 1}, {$limit: 2}]`, `[{a: 4}, {a: 3}, {a: 1}, {a: 2}]`, `[{a: 2}, {a: 3}]`},
		{`[{$skip: 1}, {$limit: 1}]`, `[{a: 4}, {a: 3}, {a: 1}]`, `[{a: 3}]`},
		{`[{$limit: 5}, {$skip: 5}]`, `[{a: 4}]`, `[]`},
		{`[{$project: {b: '$a', _id: 0}}]`, `[{_id: 1, a: 4}]`, `[{b: 4}]`},
		{`[{$project: {a: 0}}]`, `[{_id: 1, a: 4}]`, `[{_id: 1}]`},
		{`[{$project: {_id: '$a', n: {$ifNull: ['$n', 'none']}}}]`, `[{a: 4}, {n: 1}]`, `[{_id: 4, n: 'none'}, {n: 1}]`},
		{`[{$addFields: {a: 1, 'b.c': '$x', n: '$nope', d: {e: 2}}}]`, `[{x: 5, a: 0, z: 1, d: {f: 1}}, {b: [{}, 3], n: 1}]`,
			`[{x: 5, a: 1, z: 1, d: {f: 1, e: 2}, b: {c: 5}}, {b: [{}, {}], a: 1, d: {e: 2}}]`},
		{`[{$set: {a: {}}}]`, `[{a: 5}]`, `[{a: {}}]`},
		{`[{$unset: 'a'}, {$unset: ['b.c', 'd']}]`, `[{a: 1, b: {c: 1, e: 1}, d: 1, f: 1}]`, `[{b: {e: 1}, f: 1}]`},
		{`[{$replaceRoot: {newRoot: '$a'}}]`, `[{a: {b: 1}}]`, `[{b: 1}]`},
		{`[{$replaceWith: {$mergeObjects: ['$a', {c: 2}, null]}}]`, `[{a: {b: 1, c: 1}}]`, `[{b: 1, c: 2}]`},
		{`[{$unwind: '$a'}]`, `[{_id: 1, a: [1, 2], z: 1}, {_id: 2, a: 5}, {_id: 3, a: []}, {_id: 4}, {_id: 5, a: null}]`, `[{_id: 1, a: 1, z: 1}, {_id: 1, a: 2, z: 1}, {_id: 2, a: 5}]`},
		{`[{$unwind: {path: '$a.b', includeArrayIndex: 'i', preserveNullAndEmptyArrays: true}}]`, `[{a: {b: ['x', 'y']}}, {a: {b: []}}, {a: {b: 3}}, {a: 1}]`,
			`[{a: {b: 'x'}, i: {$numberLong: '0'}}, {a: {b: 'y'}, i: {$numberLong: '1'}}, {a: {}, i: null}, {a: {b: 3}, i: null}, {a: 1, i: null}]`},
		{`[{$unwind: '$a'}, {$limit: 2}]`, `[{a: [1, 2, 3]}]`, `[{a: 1}, {a: 2}]`},
		{`[{$sortByCount: '$a'}]`, `[{a: 1}, {a: 2}, {a: 2}]`, `[{_id: 2, count: 2}, {_id: 1, count: 1}]`},
		{`[{$match: {$expr: {$gt: ['$a', 1]}}}]`, `[{a: 1}, {a: 2}]`, `[{a: 2}]`},
		// what mongosh asks for
		{`[{$match: {time: {$gt: {$date: {$numberLong: '5'}}}, what: 'moveChunk.from', 'details.errmsg': {$exists: false}, 'details.note': 'success'}}, {$group: {_id: {msg: '$details.errmsg'}, count: {$sum: 1}}}, {$project: {_id: {$ifNull: ['$_id.msg', 'Success']}, count: '$count'}}]`,
			`[{time: {$date: {$numberLong: '6'}}, what: 'moveChunk.from', details: {note: 'success'}}, {time: {$date: {$numberLong: '6'}}, what: 'x'}]`, `[{_id: 'Success', count: 1}]`},
		{`[{$match: {}}, {$group: {_id: '$shard', cnt: {$sum: 1}}}, {$project: {_id: 0, shard: '$_id', nChunks: '$cnt'}}, {$sort: {shard: 1}}]`,
			`[{shard: 'b'}, {shard: 'a'}, {shard: 'b'}]`, `[{shard: 'a', nChunks: 1}, {shard: 'b', nChunks: 2}]`},
	} {
		got, err := output(t, pipeline(t, c[0]), RunLimits{NowMillis: now}, parseDocs(t, c[1])...)
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		if want := value(t, c[2]); got != string(want.Value) {
			t.Errorf("%s on %s:\ngot  %s\nwant %s", c[0], c[1], show(bson.RawValue{Type: bson.TypeArray, Value: []byte(got)}), c[2])
		}
	}
}

// TestExpressionsCompute lists expression, document, value; an empty value is missing.
func TestExpressionsCompute(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{`'$a'`, `{a: 5}`, `5`}, {`'$a.b'`, `{a: {b: 5}}`, `5`}, {`'$a.b'`, `{a: [{b: 1}, {}, 7, [{b: 9}], {b: [2]}]}`, `[1, [2]]`},
		{`'$a.b.c'`, `{a: [{b: [{c: 1}]}]}`, `[[1]]`}, {`'$a.0'`, `{a: [1]}`, `[]`}, {`'$a.b'`, `{a: 5}`, ``}, {`'$x'`, `{}`, ``},
		{`'$$ROOT'`, `{a: 5}`, `{a: 5}`}, {`'$$CURRENT.a'`, `{a: 5}`, `5`}, {`'$$REMOVE'`, `{}`, ``}, {`'$$NOW'`, `{}`, `{$date: {$numberLong: '1700000000123'}}`},
		{`'text'`, `{}`, `'text'`}, {`5`, `{}`, `5`}, {`{$literal: '$a'}`, `{a: 1}`, `'$a'`}, {`['$a', '$x', 'b']`, `{a: 1}`, `[1, null, 'b']`},
		{`{x: '$a', y: {z: '$nope'}}`, `{a: 1}`, `{x: 1, y: {}}`},
		{`{$ifNull: ['$a', '$b', 7]}`, `{a: null}`, `7`}, {`{$ifNull: ['$a', '$b']}`, `{}`, ``}, {`{$ifNull: ['$a', 1]}`, `{a: 0}`, `0`},
		{`{$cond: ['$a', 'yes', 'no']}`, `{a: 1}`, `'yes'`}, {`{$cond: {if: '$a', then: 'yes', else: 'no'}}`, `{}`, `'no'`},
		{`{$switch: {branches: [{case: {$gt: ['$a', 5]}, then: 'big'}, {case: true, then: 'small'}]}}`, `{a: 3}`, `'small'`},
		{`{$switch: {branches: [{case: false, then: 1}], default: '$a'}}`, `{a: 3}`, `3`},
		{`{$and: ['$a', {$not: '$b'}]}`, `{a: 1}`, `true`}, {`{$and: []}`, `{}`, `true`}, {`{$or: ['$x', 0, null]}`, `{}`, `false`}, {`{$or: ['$a']}`, `{a: 'x'}`, `true`}, {`{$not: ['$a']}`, `{a: 0.0}`, `true`},
		{`{$eq: ['$a', 1]}`, `{a: 1.0}`, `true`}, {`{$ne: ['$a', '$b']}`, `{a: null}`, `true`}, {`{$gt: ['$a', 1]}`, `{a: 'x'}`, `true`}, {`{$gte: [1, 1]}`, `{}`, `true`},
		{`{$lt: ['$x', null]}`, `{}`, `true`}, {`{$lte: [2, 1]}`, `{}`, `false`}, {`{$cmp: [1, 2]}`, `{}`, `-1`},
		{`{$add: [1, 2, 3.5]}`, `{}`, `6.5`}, {`{$add: [2147483647, 1]}`, `{}`, `{$numberLong: '2147483648'}`}, {`{$add: [{$numberLong: '9223372036854775807'}, 1]}`, `{}`, `{$numberDouble: '9223372036854775808'}`},
		{`{$add: ['$d', 5]}`, `{d: {$date: {$numberLong: '10'}}}`, `{$date: {$numberLong: '15'}}`}, {`{$add: [1, null]}`, `{}`, `null`}, {`{$add: []}`, `{}`, `0`},
		{`{$subtract: [5, 7]}`, `{}`, `-2`}, {`{$subtract: ['$d', '$e']}`, `{d: {$date: {$numberLong: '10'}}, e: {$date: {$numberLong: '4'}}}`, `{$numberLong: '6'}`},
		{`{$subtract: ['$d', 4]}`, `{d: {$date: {$numberLong: '10'}}}`, `{$date: {$numberLong: '6'}}`}, {`{$subtract: [1, '$x']}`, `{}`, `null`},
		{`{$multiply: [3, 4]}`, `{}`, `12`}, {`{$multiply: [{$numberDecimal: '1.1'}, 2]}`, `{}`, `{$numberDecimal: '2.2'}`}, {`{$multiply: ['$x']}`, `{}`, `null`},
		{`{$divide: [7, 2]}`, `{}`, `3.5`}, {`{$divide: [null, 2]}`, `{}`, `null`}, {`{$mod: [7, -3]}`, `{}`, `1`}, {`{$mod: [-7.5, 2]}`, `{}`, `-1.5`},
		{`{$abs: -5}`, `{}`, `5`}, {`{$abs: -2.5}`, `{}`, `2.5`}, {`{$abs: null}`, `{}`, `null`}, {`{$abs: {$numberDecimal: '-1'}}`, `{}`, `{$numberDecimal: '1'}`},
		{`{$floor: -1.5}`, `{}`, `-2.0`}, {`{$ceil: {$numberDecimal: '-1.5'}}`, `{}`, `{$numberDecimal: '-1'}`}, {`{$trunc: [1.9]}`, `{}`, `1.0`}, {`{$round: 2.5}`, `{}`, `2.0`}, {`{$floor: 5}`, `{}`, `5`}, {`{$floor: null}`, `{}`, `null`},
		{`{$floor: {$numberDecimal: '-1.5'}}`, `{}`, `{$numberDecimal: '-2'}`}, {`{$round: {$numberDecimal: '-2.5'}}`, `{}`, `{$numberDecimal: '-2'}`}, {`{$trunc: {$numberDecimal: '-2.9'}}`, `{}`, `{$numberDecimal: '-2'}`},
		{`{$sum: [1, 'x', 2]}`, `{}`, `3`}, {`{$sum: '$a'}`, `{a: [1, 2]}`, `3`}, {`{$avg: '$a'}`, `{a: [1, 2]}`, `1.5`}, {`{$max: ['$a', 3]}`, `{a: 5}`, `5`}, {`{$min: []}`, `{}`, `null`},
		{`{$concat: ['a', '$b']}`, `{b: 'c'}`, `'ac'`}, {`{$concat: ['a', null]}`, `{}`, `null`}, {`{$toUpper: '$a'}`, `{a: 'aé'}`, `'Aé'`}, {`{$toLower: 'ABC'}`, `{}`, `'abc'`}, {`{$toLower: null}`, `{}`, `''`},
		{`{$strLenCP: 'é'}`, `{}`, `1`}, {`{$strLenBytes: 'é'}`, `{}`, `2`},
		{`{$toString: 1.0}`, `{}`, `'1'`}, {`{$toString: '$d'}`, `{d: {$date: {$numberLong: '0'}}}`, `'1970-01-01T00:00:00.000Z'`}, {`{$toString: {$oid: '507f1f77bcf86cd799439011'}}`, `{}`, `'507f1f77bcf86cd799439011'`}, {`{$toString: true}`, `{}`, `'true'`}, {`{$toString: null}`, `{}`, `null`},
		{`{$toString: {$numberDouble: 'Infinity'}}`, `{}`, `'Infinity'`}, {`{$toString: {$numberDouble: '-Infinity'}}`, `{}`, `'-Infinity'`}, {`{$toString: {$numberDecimal: '1.50'}}`, `{}`, `'1.50'`},
		{`{$size: '$a'}`, `{a: [1, 2]}`, `2`}, {`{$isArray: '$a'}`, `{a: []}`, `true`}, {`{$isArray: [['$a']]}`, `{}`, `true`},
		{`{$arrayElemAt: ['$a', -1]}`, `{a: [1, 2]}`, `2`}, {`{$arrayElemAt: ['$a', 5]}`, `{a: [1, 2]}`, ``}, {`{$arrayElemAt: ['$x', 0]}`, `{}`, `null`}, {`{$first: '$a'}`, `{a: [1, 2]}`, `1`}, {`{$last: '$a'}`, `{a: [1, 2]}`, `2`}, {`{$first: '$x'}`, `{}`, `null`},
		{`{$in: [1, '$a']}`, `{a: [2, 1.0]}`, `true`}, {`{$in: [1, []]}`, `{}`, `false`}, {`{$concatArrays: ['$a', [3]]}`, `{a: [1]}`, `[1, 3]`}, {`{$concatArrays: ['$a', null]}`, `{a: [1]}`, `null`},
		{`{$mergeObjects: '$a'}`, `{a: [{x: 1}, {y: 2, x: 3}]}`, `{x: 3, y: 2}`},
		{`{$type: '$a'}`, `{a: 1}`, `'int'`}, {`{$type: '$x'}`, `{}`, `'missing'`}, {`{$isNumber: '$a'}`, `{a: 1}`, `true`},
		{`{$let: {vars: {x: '$a', y: 2}, in: {$add: ['$$x', '$$y']}}}`, `{a: 1}`, `3`},
		{`{$map: {input: '$a', as: 'e', in: {$add: ['$$e', '$b']}}}`, `{a: [1, 2], b: 10}`, `[11, 12]`}, {`{$map: {input: '$a', in: '$$this.x'}}`, `{a: [{x: 1}, {}]}`, `[1, null]`}, {`{$map: {input: '$x', in: 1}}`, `{}`, `null`},
		{`{$filter: {input: '$a', cond: {$gt: ['$$this', 1]}}}`, `{a: [1, 2, 3]}`, `[2, 3]`}, {`{$filter: {input: '$a', as: 'e', cond: {$gt: ['$$e', 0]}, limit: 2}}`, `{a: [1, 2, 3]}`, `[1, 2]`},
		{`{$reduce: {input: '$a', initialValue: 0, in: {$add: ['$$value', '$$this']}}}`, `{a: [1, 2, 3]}`, `6`},
		{`{$let: {vars: {x: 1}, in: {$let: {vars: {x: {$add: ['$$x', 1]}}, in: '$$x'}}}}`, `{}`, `2`},
	} {
		x, err := parseExpression(value(t, c[0]))
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		e := evaluation{root: raw(t, c[1]), now: now}
		got, err := x.eval(&e)
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		want := missing
		if c[2] != "" {
			want = value(t, c[2])
		}
		if got.Type != want.Type || string(got.Value) != string(want.Value) {
			t.Errorf("%s on %s: %s %s, want %s", c[0], c[1], typeName(got.Type), show(got), c[2])
		}
		if len(e.args) > 0 || len(e.vars) > 0 {
			t.Errorf("%s left something on the stacks", c[0])
		}
	}
}

func TestExpressionFailures(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		code mongoerr.Code
		text string
	}{
		// while parsing
		`{$foo: 1}`:                 {168, "Unrecognized expression '$foo'"},
		`{$add: 1, $b: 2}`:          {15983, "An object representing an expression must have exactly one field"},
		`{x: 1, $b: 2}`:             {16410, "may not start with '$'"},
		`{'x.y': 1}`:                {16412, "may not contain '.'"},
		`{$eq: [1]}`:                {16020, "Expression $eq takes exactly 2 arguments. 1 were passed in."},
		`{$cond: [1, 2]}`:           {16020, "Expression $cond takes exactly 3 arguments. 2 were passed in."},
		`{$cond: {if: 1, then: 2}}`: {mongoerr.FailedToParse, "Missing 'else' parameter to $cond"},
		`{$cond: {if: 1, then: 2, else: 3, x: 4}}`: {mongoerr.FailedToParse, "Unrecognized parameter to $cond"},
		`{$ifNull: [1]}`:                    {1257300, "$ifNull needs at least two arguments, had: 1"},
		`'$'`:                               {16872, "'$' by itself is not a valid FieldPath"},
		`'$a..b'`:                           {15998, "may not be empty strings"},
		`'$a.'`:                             {40353, "must not end with a '.'"},
		`'$$nope'`:                          {17276, "Use of undefined variable: nope"},
		`'$$'`:                              {mongoerr.FailedToParse, "empty variable names are not allowed"},
		`'$$ROOT.'`:                         {40352, ""},
		`{$switch: {branches: []}}`:         {40068, "requires at least one branch"},
		`{$switch: {branches: [1]}}`:        {mongoerr.FailedToParse, "only supports an object"},
		`{$switch: 1}`:                      {mongoerr.FailedToParse, "only supports an object"},
		`{$let: {vars: 1, in: 1}}`:          {16874, "expected an object"},
		`{$let: {vars: {A: 1}, in: 1}}`:     {mongoerr.FailedToParse, "'A' starts with an invalid character for a user variable name"},
		`{$map: {input: 1, as: 5, in: 1}}`:  {mongoerr.FailedToParse, "'as' of $map must be a string"},
		`{$map: {input: 1, as: '', in: 1}}`: {mongoerr.FailedToParse, "invalid character"},
		// while computing
		`{$switch: {branches: [{case: 0, then: 1}]}}`: {40066, "could not find a matching branch"},
		`{$add: ['x']}`:                                 {mongoerr.TypeMismatch, "$add only supports numeric or date types, not string"},
		`{$add: ['$d', '$d']}`:                          {16612, "only one date allowed in an $add expression"},
		`{$add: ['$d', 1e300]}`:                         {mongoerr.Overflow, "date overflow"},
		`{$subtract: ['x', 1]}`:                         {mongoerr.TypeMismatch, "can't $subtract int from string"},
		`{$multiply: ['x']}`:                            {mongoerr.TypeMismatch, "$multiply only supports numeric types, not string"},
		`{$divide: [1, 0]}`:                             {mongoerr.BadValue, "can't $divide by zero"},
		`{$divide: ['x', 0]}`:                           {mongoerr.TypeMismatch, "$divide only supports numeric types, not string and int"},
		`{$mod: [1, 0.0]}`:                              {16610, "can't $mod by zero"},
		`{$abs: 'x'}`:                                   {28765, "$abs only supports numeric types, not string"},
		`{$abs: {$numberLong: '-9223372036854775808'}}`: {28680, "can't take $abs of long long min"},
		`{$floor: 'x'}`:                                 {28765, "$floor only supports numeric types, not string"},
		`{$concat: [1]}`:                                {16702, "$concat only supports strings, not int"},
		`{$toUpper: [[1]]}`:                             {16007, "can't convert from BSON type array to String"},
		`{$strLenCP: 1}`:                                {34473, "$strLenCP requires a string argument, found: int"},
		`{$toString: {a: 1}}`:                           {241, "Unsupported conversion from object to string"},
		`{$size: '$x'}`:                                 {17124, "The argument to $size must be an array, but was of type: missing"},
		`{$arrayElemAt: [1, 0]}`:                        {28689, "$arrayElemAt's first argument must be an array, but is int"},
		`{$arrayElemAt: [[1], 'x']}`:                    {28690, "second argument must be a numeric value, but is string"},
		`{$arrayElemAt: [[1], 1.5]}`:                    {28691, "representable as a 32-bit integer: 1.5"},
		`{$first: 5}`:                                   {28689, "$first's argument must be an array, but is int"},
		`{$in: [1, 2]}`:                                 {40081, "$in requires an array as a second argument, found: int"},
		`{$concatArrays: [1]}`:                          {28664, "$concatArrays only supports arrays, not int"},
		`{$mergeObjects: [1]}`:                          {40400, "$mergeObjects requires object inputs, but input 1 is of type int"},
		`{$map: {input: 1, in: 1}}`:                     {16883, "input to $map must be an array not int"},
		`{$filter: {input: [1], cond: 1, limit: 0}}`:    {327391, "limit must be represented"},
		`{$reduce: {input: [1, 2], initialValue: 'xxxxxxxxxxxxxxxx', in: {$concat: ['$$value', 5]}}}`: {16702, ""},
		`{$let: {vars: {x: {$add: ['x']}}, in: 1}}`:                                                   {mongoerr.TypeMismatch, ""},
	} {
		x, err := parseExpression(value(t, text))
		if err == nil {
			e := evaluation{root: raw(t, `{d: {$date: {$numberLong: '5'}}}`)}
			_, err = x.eval(&e)
		}
		refused(t, err, want.code, want.text)
	}
}

func TestExpressionsAreBounded(t *testing.T) {
	t.Parallel()
	ones := "[" + strings.Repeat("1,", 60) + "1]"
	for _, text := range []string{
		`{$reduce: {input: ` + ones + `, initialValue: 'xxxxxxxxxxxxxxxx', in: {$concat: ['$$value', '$$value']}}}`,
		`{$reduce: {input: ` + ones + `, initialValue: [1], in: {$concatArrays: ['$$value', '$$value']}}}`,
		`{$reduce: {input: ` + ones + `, initialValue: {a: 1}, in: {a: '$$value', b: '$$value'}}}`,
	} {
		x, err := parseExpression(value(t, text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.eval(&evaluation{root: docOf(), made: maxComputedBytes - 1<<20}) // most are taken
		refused(t, err, mongoerr.QueryExceededMemoryLimit, "the expressions of one document")
	}
	var many []bson.RawValue
	for range 20_000 {
		many = append(many, null)
	}
	big := docOf(el(4, "a", appendArray(nil, many)...))
	for _, text := range []string{
		`{$reduce: {input: '$a', initialValue: 0, in: {$reduce: {input: '$a', initialValue: 0, in: 1}}}}`,
		`{$reduce: {input: '$a', initialValue: 0, in: {$size: '$a'}}}`,
		`{$reduce: {input: '$a', initialValue: 0, in: {$in: [1, '$a']}}}`,
		`{$reduce: {input: '$a', initialValue: 0, in: {$last: '$a'}}}`,
		`{$reduce: {input: '$a', initialValue: 0, in: {$size: '$a.b'}}}`,
		`{$reduce: {input: '$a', initialValue: 0, in: {$eq: ['$a', '$a']}}}`,
	} {
		x, err := parseExpression(value(t, text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.eval(&evaluation{root: big, steps: maxSteps - 200_000}) // most of them are taken
		refused(t, err, mongoerr.OperationFailed, "the expressions of one document take more than 20000000 steps")
	}
	deep := "1"
	for range 60 {
		deep = "{a: " + deep + "}"
	}
	p := pipeline(t, `[{$set: {x: {$let: {vars: {v: `+deep+`}, in: {y: `+strings.Replace(deep, "1", "'$$v'", 1)+`}}}}}]`)
	_, err := output(t, p, RunLimits{}, docOf())
	refused(t, err, mongoerr.Overflow, "nested too deep")
}

func TestPipelineRefusals(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		code mongoerr.Code
		text string
	}{
		`5`:                                      {mongoerr.TypeMismatch, "'pipeline' option must be specified as an array"},
		`[5]`:                                    {mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object"},
		`[{}]`:                                   {40323, "A pipeline stage specification object must contain exactly one field."},
		`[{$match: {}, $limit: 1}]`:              {40323, ""},
		`[{$foo: 1}]`:                            {40324, "Unrecognized pipeline stage name: '$foo'"},
		`[{$match: 1}]`:                          {15959, "the match filter must be an expression in an object"},
		`[{$match: {a: {$foo: 1}}}]`:             {mongoerr.BadValue, "unknown operator: $foo"},
		`[{$project: 1}]`:                        {15969, "$project specification must be an object"},
		`[{$project: {}}]`:                       {51272, "Invalid $project :: caused by :: projection specification must have at least one field"},
		`[{$project: {a: 1, b: 0}}]`:             {31254, "Invalid $project :: caused by :: Cannot do exclusion on field b in inclusion projection"},
		`[{$addFields: 1}]`:                      {40272, "$addFields specification stage must be an object, got int"},
		`[{$set: {}}]`:                           {40177, "Invalid $set :: caused by :: specification must have at least one field"},
		`[{$set: {a: {$foo: 1}}}]`:               {168, "Invalid $set :: caused by :: Unrecognized expression '$foo'"},
		`[{$unset: 5}]`:                          {31002, "$unset specification must be a string or an array"},
		`[{$unset: []}]`:                         {31119, "at least one field"},
		`[{$unset: [1]}]`:                        {31120, "only string values"},
		`[{$unset: ['a', 'a.b']}]`:               {31249, "Invalid $unset :: caused by :: Path collision at a.b remaining portion b"},
		`[{$unset: '$a'}]`:                       {16410, "Invalid $unset :: caused by :: FieldPath field names may not start with '$'"},
		`[{$replaceRoot: 1}]`:                    {40229, "expected an object as specification for $replaceRoot stage, got int"},
		`[{$replaceRoot: {x: 1}}]`:               {40231, "no newRoot specified"},
		`[{$sort: 1}]`:                           {15973, "the $sort key specification must be an object"},
		`[{$sort: {}}]`:                          {15976, "$sort stage must have at least one sort key"},
		`[{$sort: {a: 5}}]`:                      {15975, ""},
		`[{$limit: 'x'}]`:                        {2107201, "Expected a number in: $limit: \"x\""},
		`[{$limit: 1.5}]`:                        {2107201, "Expected an integer: $limit: 1.5"},
		`[{$limit: -1}]`:                         {2107201, "Expected a non-negative number in: $limit: -1"},
		`[{$limit: 0}]`:                          {15958, "the limit must be positive"},
		`[{$skip: 'x'}]`:                         {5107200, "Expected a number in"},
		`[{$skip: 1.5}]`:                         {5107200, "Expected an integer"},
		`[{$skip: -1}]`:                          {5107200, "Expected a non-negative number in: $skip: -1"},
		`[{$count: 1}]`:                          {40156, "the count field must be a non-empty string"},
		`[{$count: ''}]`:                         {40157, ""},
		`[{$count: '$a'}]`:                       {40158, "the count field cannot be a $-prefixed path"},
		`[{$count: 'a\u0000'}]`:                  {40159, "null byte"},
		`[{$count: 'a.b'}]`:                      {40160, "the count field cannot contain '.'"},
		`[{$group: 1}]`:                          {15947, "a group's fields must be specified in an object"},
		`[{$group: {a: {$sum: 1}}}]`:             {15955, "a group specification must include an _id"},
		`[{$group: {_id: 1, 'a.b': {$sum: 1}}}]`: {40235, "The field name 'a.b' cannot contain '.'"},
		`[{$group: {_id: 1, $a: {$sum: 1}}}]`:    {40236, "The field name '$a' cannot be an operator name"},
		`[{$group: {_id: 1, a: 1}}]`:             {40234, "The field 'a' must be an accumulator object"},
		`[{$group: {_id: 1, a: {$sum: 1, $avg: 1}}}]`:                  {40238, "The field 'a' must specify one accumulator"},
		`[{$group: {_id: 1, a: {$foo: 1}}}]`:                           {15952, "unknown group operator '$foo'"},
		`[{$group: {_id: 1, a: {$sum: [1]}}}]`:                         {40237, "The $sum accumulator is a unary operator"},
		`[{$group: {_id: 1, a: {$count: 1}}}]`:                         {mongoerr.TypeMismatch, "$count takes no arguments, i.e. $count:{}"},
		`[{$group: {_id: {$foo: 1}}}]`:                                 {168, "Unrecognized expression '$foo'"},
		`[{$sortByCount: 1}]`:                                          {40148, "the sortByCount field must be defined as a $-prefixed path"},
		`[{$unwind: 1}]`:                                               {15981, "expected either a string or an object as specification for $unwind stage, got int"},
		`[{$unwind: 'a'}]`:                                             {28818, "should be prefixed with a '$': a"},
		`[{$unwind: {}}]`:                                              {28812, "no path specified to $unwind stage"},
		`[{$unwind: {path: '$a', preserveNullAndEmptyArrays: 1}}]`:     {28809, "expected a boolean"},
		`[{$unwind: {path: '$a', includeArrayIndex: 1}}]`:              {28810, "expected a non-empty string"},
		`[{$unwind: {path: '$a', includeArrayIndex: '$i'}}]`:           {28822, "should not be prefixed with a '$': $i"},
		`[{$unwind: {path: '$a', x: 1}}]`:                              {28811, "unrecognized option to $unwind stage: x"},
		`[{$unwind: '$a..b'}]`:                                         {15998, ""},
		`[` + strings.Repeat(`{$skip: 1},`, maxStages) + `{$skip: 1}]`: {mongoerr.FailedToParse, "Pipeline length must be no longer than 100 stages"},
	} {
		_, err := ParsePipeline(value(t, text))
		refused(t, err, want.code, want.text)
	}
}

func TestPipelineTellsWhatAPlannerNeeds(t *testing.T) {
	t.Parallel()
	p := pipeline(t, `[{$match: {a: 1}}, {$match: {b: 2}}, {$sort: {a: 1}}, {$match: {c: 3}}]`)
	sameDoc(t, p.LeadingMatch(), `{$and: [{a: 1}, {b: 2}]}`)
	var names []string
	for _, s := range p.Stages() {
		names = append(names, s.Name)
	}
	if fmt.Sprint(names) != "[$match $match $sort $match]" || show(p.Stages()[2].Spec) != "{ a: 1 }" {
		t.Error(names)
	}
	sameDoc(t, pipeline(t, `[{$match: {a: 1}}]`).LeadingMatch(), `{a: 1}`)
	if m := pipeline(t, `[{$sort: {a: 1}}, {$match: {a: 1}}]`).LeadingMatch(); m != nil {
		t.Error(m)
	}
}

func TestPipelineMemoryIsBounded(t *testing.T) {
	t.Parallel()
	var docs []bson.Raw
	for i := range 1000 {
		docs = append(docs, docOf(el(16, "a", le32(i*7919%1000)...), appendElement(nil, "s", stringValue(strings.Repeat("x", 100)))))
	}
	small := RunLimits{MemoryBytes: 64 << 10}
	for _, text := range []string{`[{$sort: {a: 1}}]`, `[{$group: {_id: '$a'}}]`, `[{$group: {_id: 1, all: {$push: '$s'}}}]`,
		`[{$group: {_id: 1, all: {$addToSet: '$a'}}}]`, `[{$sort: {a: 1}}, {$limit: 900}]`} {
		_, err := output(t, pipeline(t, text), small, docs...)
		refused(t, err, mongoerr.QueryExceededMemoryLimit, "Exceeded memory limit for $")
		if _, err := output(t, pipeline(t, text), RunLimits{}, docs...); err != nil {
			t.Error(err)
		}
	}
	got, err := output(t, pipeline(t, `[{$sort: {a: 1}}, {$skip: 2}, {$limit: 3}, {$project: {a: 1}}]`), small, docs...)
	if err != nil {
		t.Fatal(err)
	}
	sameDoc(t, docOf(el(4, "v", []byte(got)...)), `{v: [{a: 2}, {a: 3}, {a: 4}]}`)
}

// TestTopAgreesWithSorting adds the same documents with and without a limit.
func TestTopAgreesWithSorting(t *testing.T) {
	t.Parallel()
	s, err := ParseSort(raw(t, `{a: -1}`))
	if err != nil {
		t.Fatal(err)
	}
	all := NewTop(s, 0)
	held := 0
	tops := map[int64]*Top{1: NewTop(s, 1), 10: NewTop(s, 10), 5000: NewTop(s, 5000)}
	for i := range 2000 {
		doc := docOf(el(16, "a", le32(i*7919%300)...), el(16, "i", le32(i)...))
		all.Add(doc)
		for most, top := range tops {
			n := top.Add(doc)
			if most == 10 {
				held += n
			}
		}
	}
	if held > 200*(11+20+rowOverhead) {
		t.Errorf("10 documents hold %d bytes", held)
	}
	sorted := all.Documents()
	for most, top := range tops {
		want := sorted[:min(int(most), len(sorted))]
		if got := top.Documents(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("first %d differ", most)
		}
	}
}

func TestPipelinePassesErrorsOn(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	in := func(yield func(bson.Raw, error) bool) {
		if yield(docOf(el(10, "a")), nil) {
			yield(nil, broken)
		}
	}
	for _, text := range []string{`[]`, `[{$match: {}}]`, `[{$sort: {a: 1}}]`, `[{$group: {_id: 1}}]`, `[{$count: 'n'}]`, `[{$skip: 1}]`,
		`[{$limit: 5}]`, `[{$project: {a: 1}}]`, `[{$unwind: '$a'}]`} {
		var last error
		for _, err := range pipeline(t, text).Run(t.Context(), in, RunLimits{}) {
			if last != nil {
				t.Errorf("%s: something follows an error", text)
			}
			last = err
		}
		if !errors.Is(last, broken) {
			t.Errorf("%s: %v", text, last)
		}
	}
	for _, text := range []string{`[{$match: {$expr: {$add: ['$a', 'x']}}}]`, `[{$group: {_id: {$add: 'x'}}}]`, `[{$group: {_id: 1, n: {$sum: {$add: 'x'}}}}]`, `[{$project: {x: {$add: 'x'}}}]`} {
		_, err := output(t, pipeline(t, text), RunLimits{}, docOf(el(16, "a", 1, 0, 0, 0)))
		refused(t, err, mongoerr.TypeMismatch, "")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	endless := func(yield func(bson.Raw, error) bool) {
		for n := 0; yield(docOf(), nil); n++ {
			if n == 1000 {
				cancel(broken)
			}
		}
	}
	for _, err := range pipeline(t, `[{$count: 'n'}]`).Run(ctx, endless, RunLimits{}) {
		if !errors.Is(err, broken) {
			t.Error(err)
		}
	}
}

// TestPipelineStopsWhenNobodyAsks: a consumer that has enough ends all stages.
func TestPipelineStopsWhenNobodyAsks(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`[]`, `[{$match: {}}]`, `[{$skip: 1}]`, `[{$limit: 5}]`, `[{$project: {a: 1}}]`, `[{$unwind: '$a'}]`} {
		asked := 0
		in := func(yield func(bson.Raw, error) bool) {
			for yield(docOf(el(16, "a", 1, 0, 0, 0)), nil) {
				asked++
			}
		}
		for range pipeline(t, text).Run(t.Context(), in, RunLimits{}) {
			break
		}
		if asked > 1 {
			t.Errorf("%s: asked for %d more", text, asked)
		}
	}
	for _, text := range []string{`[{$sort: {a: 1}}]`, `[{$group: {_id: '$a'}}]`} {
		for range pipeline(t, text).Run(t.Context(), stream(docOf(), docOf(el(10, "a"))), RunLimits{}) {
			break
		}
	}
}
