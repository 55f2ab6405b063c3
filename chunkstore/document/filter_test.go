package document

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// TestFilterMatches lists filters with documents that match and, after a !, that do not.
func TestFilterMatches(t *testing.T) {
	t.Parallel()
	for filterText, docs := range map[string][]string{
		`{}`:                                  {`{}`, `{a: 1}`},
		`{$comment: 'x'}`:                     {`{}`},
		`{a: 1}`:                              {`{a: 1}`, `{a: 1.0}`, `{a: {$numberDecimal: '1.00'}}`, `{b: 2, a: 1}`, `{a: [2, 1]}`, `!{a: 2}`, `!{a: '1'}`, `!{}`, `!{a: [[1]]}`, `!{a: true}`},
		`{a: 'x', b: true}`:                   {`{a: 'x', b: true}`, `{b: true, a: {$symbol: 'x'}}`, `!{a: 'x'}`, `!{a: 'xx', b: true}`},
		`{a: {b: 1, c: 2}}`:                   {`{a: {b: 1, c: 2}}`, `{a: [{b: 1, c: 2}]}`, `{a: {b: 1.0, c: 2}}`, `!{a: {c: 2, b: 1}}`, `!{a: {b: 1, c: 2, d: 3}}`, `!{a: {b: 1}}`},
		`{a: {}}`:                             {`{a: {}}`, `!{a: {b: 1}}`, `!{}`},
		`{a: [1, 2]}`:                         {`{a: [1, 2]}`, `{a: [[1, 2]]}`, `!{a: [2, 1]}`, `!{a: [1, 2, 3]}`, `!{a: 1}`},
		`{a: []}`:                             {`{a: []}`, `{a: [[]]}`, `!{a: [1]}`, `!{}`},
		`{a: null}`:                           {`{a: null}`, `{}`, `{a: [1, null]}`, `!{a: 1}`, `!{a: []}`, `!{a: {$undefined: true}}`, `!{a: false}`},
		`{'a.b': null}`:                       {`{}`, `{a: null}`, `{a: 5}`, `{a: {}}`, `{a: [{}]}`, `{a: [{b: 1}, {}]}`, `!{a: []}`, `!{a: [1, 2]}`, `!{a: [{b: 1}]}`, `{a: [{b: null}]}`},
		`{'a.b': 1}`:                          {`{a: {b: 1}}`, `{a: [{b: 2}, {b: 1}]}`, `{a: {b: [1]}}`, `{a: [{b: [0, 1]}]}`, `!{a: [[{b: 1}]]}`, `!{a: 1}`, `!{b: 1}`},
		`{'a.b.c': 1}`:                        {`{a: [{b: [{c: 1}]}]}`, `{a: {b: {c: 1}}}`, `!{a: [{b: [[{c: 1}]]}]}`},
		`{'a.0': 1}`:                          {`{a: [1]}`, `{a: {'0': 1}}`, `{a: [{'0': 1}]}`, `{a: [5, {'0': 1}]}`, `!{a: [2, 1]}`, `!{a: [[1]]}`, `!{a: 1}`},
		`{'a.1.b': 4}`:                        {`{a: [5, {b: 4}]}`, `{a: [5, [{b: 4}], 3]}`, `{a: [{'1': {b: 4}}]}`, `{a: {'1': {b: 4}}}`, `!{a: [{b: 4}]}`},
		`{'a.0.1': 6}`:                        {`{a: [[5, 6]]}`, `{a: [{'1': 6}]}`, `!{a: [5, 6]}`, `!{a: [[6]]}`},
		`{'a.0': [1]}`:                        {`{a: [[1]]}`, `!{a: [1]}`},
		`{'a.00': 1}`:                         {`!{a: [1]}`, `{a: {'00': 1}}`},
		`{'': 1}`:                             {`{'': 1}`, `!{a: 1}`},
		`{a: {$eq: 1}}`:                       {`{a: 1}`, `!{a: 2}`},
		`{a: {$eq: /x/}}`:                     nil,
		`{a: {$ne: 1}}`:                       {`{a: 2}`, `{}`, `{a: []}`, `!{a: 1}`, `!{a: [2, 1]}`},
		`{'a.b': {$ne: 1}}`:                   {`{a: [{b: 2}]}`, `!{a: [{b: 2}, {b: 1}]}`, `{}`},
		`{a: {$ne: null}}`:                    {`{a: 1}`, `{a: []}`, `!{}`, `!{a: null}`, `!{a: [null]}`},
		`{a: {$gt: 1}}`:                       {`{a: 2}`, `{a: 1.5}`, `{a: {$numberLong: '9'}}`, `{a: [0, 2]}`, `!{a: 1}`, `!{a: 'x'}`, `!{a: null}`, `!{}`, `!{a: {$numberDouble: 'NaN'}}`, `!{a: {$date: {$numberLong: '5'}}}`},
		`{a: {$gte: 1, $lt: 3}}`:              {`{a: 1}`, `{a: 2}`, `!{a: 3}`, `!{a: 0}`, `{a: [0, 5]}`},
		`{a: {$lt: 'b'}}`:                     {`{a: 'a'}`, `{a: ''}`, `!{a: 'b'}`, `!{a: 1}`},
		`{a: {$lte: null}}`:                   {`{a: null}`, `{}`, `!{a: 1}`},
		`{a: {$gt: null}}`:                    {`!{a: null}`, `!{}`, `!{a: 1}`},
		`{a: {$gt: [1]}}`:                     {`{a: [2]}`, `{a: [1, 1]}`, `{a: [[2]]}`, `!{a: [1]}`, `!{a: 5}`},
		`{a: {$gt: {b: 1}}}`:                  {`{a: {b: 2}}`, `{a: {b: 1, c: 1}}`, `!{a: {b: 1}}`, `{a: {b: 'x'}}`},
		`{a: {$gt: {$minKey: 1}}}`:            {`{a: 1}`, `{}`, `{a: null}`, `!{a: {$minKey: 1}}`},
		`{a: {$lt: {$maxKey: 1}}}`:            {`{a: 1}`, `{}`, `{a: 'x'}`, `!{a: {$maxKey: 1}}`},
		`{a: {$lt: {$minKey: 1}}}`:            {`!{a: 1}`, `!{}`, `!{a: {$minKey: 1}}`},
		`{a: {$gte: {$maxKey: 1}}}`:           {`{a: {$maxKey: 1}}`, `!{a: 1}`},
		`{a: {$eq: {$minKey: 1}}}`:            {`{a: {$minKey: 1}}`, `!{a: 1}`},
		`{a: {$numberDouble: 'NaN'}}`:         {`{a: {$numberDouble: 'NaN'}}`, `{a: {$numberDecimal: 'NaN'}}`, `!{a: 1}`},
		`{a: {$lte: {$numberDouble: 'NaN'}}}`: {`{a: {$numberDouble: 'NaN'}}`, `!{a: 1}`},
		`{a: {$lt: {$numberDouble: 'NaN'}}}`:  {`!{a: {$numberDouble: 'NaN'}}`, `!{a: 1}`},
		`{a: {$gte: {$numberLong: '9007199254740993'}}}`: {`{a: {$numberLong: '9007199254740993'}}`, `!{a: {$numberDouble: '9007199254740992'}}`},
		`{a: {$in: [1, 'x', null]}}`:                     {`{a: 1.0}`, `{a: 'x'}`, `{a: null}`, `{}`, `{a: [3, 1]}`, `!{a: 2}`, `!{a: 'y'}`},
		`{a: {$in: [[1, 2], 5]}}`:                        {`{a: [1, 2]}`, `{a: [5]}`, `{a: [[1, 2]]}`, `!{a: [1]}`},
		`{a: {$in: []}}`:                                 {`!{a: 1}`, `!{}`},
		`{a: {$nin: [1, 2]}}`:                            {`{a: 3}`, `{}`, `{a: []}`, `!{a: 1}`, `!{a: [3, 2]}`},
		`{a: {$nin: [null]}}`:                            {`{a: 3}`, `!{}`, `!{a: null}`},
		`{a: {$in: [{$regularExpression: {pattern: '^x', options: ''}}, 5]}}`:  {`{a: 'xy'}`, `{a: 5}`, `{a: ['ab', 'xa']}`, `!{a: 'ax'}`},
		`{a: {$nin: [{$regularExpression: {pattern: '^x', options: ''}}, 5]}}`: {`{a: 'ax'}`, `{}`, `!{a: 'xy'}`, `!{a: 5}`},
		`{a: {$exists: true}}`:          {`{a: 1}`, `{a: null}`, `{a: []}`, `!{}`, `!{b: 1}`},
		`{a: {$exists: 0}}`:             {`{}`, `!{a: null}`},
		`{'a.b': {$exists: true}}`:      {`{a: {b: 1}}`, `{a: [{}, {b: 1}]}`, `!{a: [{}]}`, `!{a: [1]}`, `!{a: {}}`},
		`{'a.b': {$exists: false}}`:     {`{}`, `{a: []}`, `{a: [1]}`, `{a: [{}]}`, `!{a: [{}, {b: 1}]}`},
		`{$and: [{a: 1}, {b: 2}]}`:      {`{a: 1, b: 2}`, `!{a: 1}`},
		`{$or: [{a: 1}, {b: 2}]}`:       {`{a: 1}`, `{b: 2}`, `!{a: 2}`},
		`{$nor: [{a: 1}, {b: 2}]}`:      {`{}`, `!{a: 1}`, `!{b: 2}`},
		`{a: 1, $or: [{b: 1}, {b: 2}]}`: {`{a: 1, b: 2}`, `!{a: 1}`, `!{b: 2}`},
		`{a: {$not: {$gt: 1}}}`:         {`{a: 1}`, `{}`, `{a: 'x'}`, `!{a: 2}`, `!{a: [0, 2]}`},
		`{a: {$not: {$gt: 1, $lt: 5}}}`: {`{a: 1}`, `{a: 5}`, `!{a: 2}`},
		`{a: {$not: {$regularExpression: {pattern: 'x', options: ''}}}}`: {`{a: 'a'}`, `{a: 1}`, `!{a: 'x'}`},
		`{a: {$not: {$not: {$eq: 1}}}}`:                                  {`{a: 1}`, `!{a: 2}`},
		`{a: {$type: 'number'}}`:                                         {`{a: 1}`, `{a: 1.5}`, `{a: {$numberDecimal: '1'}}`, `{a: ['x', 1]}`, `!{a: 'x'}`, `!{}`},
		`{a: {$type: ['string', 8]}}`:                                    {`{a: 'x'}`, `{a: true}`, `!{a: 1}`},
		`{a: {$type: 'array'}}`:                                          {`{a: []}`, `{a: [1]}`, `!{a: 1}`},
		`{a: {$type: -1}}`:                                               {`{a: {$minKey: 1}}`, `!{a: 1}`},
		`{a: {$size: 2}}`:                                                {`{a: [1, 2]}`, `!{a: [1]}`, `!{a: [[1, 2]]}`, `!{a: 2}`},
		`{'a.b': {$size: 1}}`:                                            {`{a: [{b: [1]}]}`, `!{a: [{b: 1}]}`},
		`{a: {$all: [1, 2]}}`:                                            {`{a: [2, 3, 1]}`, `!{a: [1]}`, `!{a: 1}`},
		`{a: {$all: [1]}}`:                                               {`{a: 1}`, `{a: [1]}`},
		`{a: {$all: []}}`:                                                {`!{a: []}`, `!{}`},
		`{a: {$all: [[1, 2]]}}`:                                          {`{a: [1, 2]}`, `{a: [[1, 2]]}`, `!{a: [1, 2, 3]}`},
		`{a: {$all: [{$elemMatch: {b: 1}}, {$elemMatch: {b: 2}}]}}`:      {`{a: [{b: 1}, {b: 2}]}`, `!{a: [{b: 1}]}`},
		`{a: {$all: [{$regularExpression: {pattern: '^x', options: ''}}, 'y']}}`:            {`{a: ['xa', 'y']}`, `!{a: ['y']}`},
		`{a: {$elemMatch: {b: 1, c: 2}}}`:                                                   {`{a: [{b: 1, c: 2}]}`, `!{a: [{b: 1}, {c: 2}]}`, `!{a: {b: 1, c: 2}}`},
		`{a: {$elemMatch: {$gt: 1, $lt: 3}}}`:                                               {`{a: [0, 2]}`, `!{a: [0, 5]}`, `!{a: 2}`, `!{a: [[2]]}`},
		`{a: {$elemMatch: {$not: {$gt: 1}}}}`:                                               {`{a: [0, 2]}`, `!{a: [2]}`, `!{a: []}`},
		`{a: {$elemMatch: {$ne: 1}}}`:                                                       {`{a: [1, 2]}`, `!{a: [1]}`},
		`{a: {$elemMatch: {$nin: [1, 2], $exists: true}}}`:                                  {`{a: [1, 3]}`, `!{a: [1, 2]}`},
		`{a: {$elemMatch: {$in: [{$regularExpression: {pattern: 'x', options: ''}}, 1]}}}`:  {`{a: ['x']}`, `{a: [1]}`, `!{a: [2]}`},
		`{a: {$elemMatch: {$nin: [{$regularExpression: {pattern: 'x', options: ''}}, 1]}}}`: {`{a: [2]}`, `!{a: ['x', 1]}`},
		`{a: {$elemMatch: {$elemMatch: {$gt: 3}}}}`:                                         {`{a: [[4]]}`, `!{a: [4]}`},
		`{a: {$elemMatch: {$size: 2}}}`:                                                     {`{a: [[1, 2]]}`, `!{a: [1, 2]}`},
		`{a: {$elemMatch: {'0': 1}}}`:                                                       {`{a: [[1]]}`, `{a: [{'0': 1}]}`, `!{a: [1]}`},
		`{a: {$elemMatch: {$or: [{b: 1}, {c: 1}]}}}`:                                        {`{a: [{c: 1}]}`, `!{a: [{d: 1}]}`},
		`{'a.b': {$elemMatch: {c: 1}}}`:                                                     {`{a: [{b: [{c: 1}]}]}`, `{a: {b: [{c: 1}]}}`, `!{a: {b: {c: 1}}}`},
		`{a: {$mod: [4, 1]}}`:                                                               {`{a: 5}`, `{a: 5.9}`, `{a: {$numberDecimal: '9.5'}}`, `{a: [2, 5]}`, `!{a: 4}`, `!{a: 'x'}`, `!{a: {$numberDouble: 'NaN'}}`, `!{a: 1e300}`},
		`{a: {$mod: [-1, 0]}}`:                                                              {`{a: {$numberLong: '-9223372036854775808'}}`},
		`{a: {$mod: [3.9, -1]}}`:                                                            {`{a: -4}`, `!{a: 4}`},
		`{a: {$regex: '^ab', $options: 'i'}}`:                                               {`{a: 'ABc'}`, `{a: ['x', 'ab']}`, `!{a: 'cab'}`, `!{a: 1}`},
		`{a: {$options: 'x', $regex: 'a b # c'}}`:                                           {`{a: 'ab'}`, `!{a: 'a b'}`},
		`{a: {$regex: 'a[ #]\\ b', $options: 'x'}}`:                                         {`{a: 'a# b'}`, `!{a: 'ab'}`},
		`{a: {$regex: {$regularExpression: {pattern: 'b$', options: 'm'}}}}`:                {`{a: 'b\nc'}`, `!{a: 'bc'}`},
		`{a: {$regex: 'a.b', $options: 's'}}`:                                               {`{a: 'a\nb'}`},
		`{a: {$regularExpression: {pattern: 'x', options: 'i'}}}`:                           {`{a: 'aX'}`, `{a: {$symbol: 'x'}}`, `{a: {$regularExpression: {pattern: 'x', options: 'i'}}}`, `!{a: {$regularExpression: {pattern: 'x', options: ''}}}`},
		`{a: {$bitsAllSet: 5}}`:                                                             {`{a: 7}`, `{a: 5.0}`, `{a: {$binary: {base64: 'BQ==', subType: '00'}}}`, `{a: -1}`, `!{a: 4}`, `!{a: 5.5}`, `!{a: 'x'}`},
		`{a: {$bitsAllClear: [1, 70]}}`:                                                     {`{a: 5}`, `!{a: 2}`, `!{a: -3}`},
		`{a: {$bitsAnySet: {$binary: {base64: 'Ag==', subType: '00'}}}}`:                    {`{a: 3}`, `!{a: 5}`},
		`{a: {$bitsAnyClear: [0, 1]}}`:                                                      {`{a: 1}`, `!{a: 3}`, `{a: {$binary: {base64: '', subType: '00'}}}`},
		`{a: {$ref: 'c', $id: 1}}`:                                                          {`{a: {$ref: 'c', $id: 1}}`, `!{a: {$ref: 'c', $id: 2}}`},
		`{'a.$id': 1}`:                                                                      {`{a: {$ref: 'c', $id: 1}}`},
		`{$expr: {$gt: ['$a', '$b']}}`:                                                      {`{a: 2, b: 1}`, `!{a: 1, b: 2}`},
		`{$nor: [{$expr: {$add: ['$a', 1]}}]}`:                                              {`!{a: 'x'}`, `!{a: 1}`, `{a: -1}`},
		`{b: 1, $expr: '$a'}`:                                                               {`{a: 1, b: 1}`, `!{b: 1}`},
	} {
		if docs == nil {
			continue
		}
		f := filter(t, filterText)
		for _, text := range docs {
			doc, no := strings.CutPrefix(text, "!")
			if got := f.Match(raw(t, doc)); got == no {
				t.Errorf("%s on %s: %v", filterText, doc, got)
			}
		}
	}
}

func TestFilterRefusals(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{$and: [`, 40) + `{a: 1}` + strings.Repeat(`]}`, 40)
	if _, err := ParseFilter(raw(t, deep)); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		`{$foo: 1}`:                        "unknown top level operator: $foo. If you have a field name that starts with a '$' symbol, consider using $getField or $setField.",
		`{a: {$foo: 1}}`:                   "unknown operator: $foo",
		`{a: {$gt: 1, b: 1}}`:              "unknown operator: b",
		`{a: {$and: [{b: 1}]}}`:            "unknown operator: $and",
		`{$where: 'true'}`:                 "$where is not supported",
		`{a: {$where: 'true'}}`:            "$where cannot be applied to a field",
		`{$text: {$search: 'x'}}`:          "$text is not supported",
		`{a: {$near: [1, 2]}}`:             "$near is not supported",
		`{$and: 1}`:                        "$and must be an array",
		`{$or: []}`:                        "$and/$or/$nor must be a nonempty array",
		`{$nor: [1]}`:                      "$or/$and/$nor entries need to be full objects",
		`{$or: [{a: {$x: 1}}]}`:            "unknown operator: $x",
		`{a: {$in: 1}}`:                    "$in needs an array",
		`{a: {$nin: 1}}`:                   "$nin needs an array",
		`{a: {$in: [{$gt: 1}]}}`:           "cannot nest $ under $in",
		`{a: {$in: [{$undefined: true}]}}`: "cannot be undefined",
		`{a: {$undefined: true}}`:          "cannot compare to undefined",
		`{a: {$not: 1}}`:                   "$not needs a regex or a document",
		`{a: {$not: {}}}`:                  "$not cannot be empty",
		`{a: {$not: {$x: 1}}}`:             "unknown operator: $x",
		`{a: {$ne: {$regularExpression: {pattern: 'x', options: ''}}}}`: "Can't have regex as arg to $ne.",
		`{a: {$gt: {$regularExpression: {pattern: 'x', options: ''}}}}`: "Can't have RegEx as arg to predicate over field 'a'.",
		`{a: {$size: 'x'}}`:                  "Failed to parse $size. Expected a number in: $size: \"x\"",
		`{a: {$size: 1.5}}`:                  "Expected an integer: $size: 1.5",
		`{a: {$size: -1}}`:                   "Expected a non-negative number in: $size: -1",
		`{a: {$all: 1}}`:                     "$all needs an array",
		`{a: {$all: [{$gt: 1}]}}`:            "no $ expressions in $all",
		`{a: {$all: [{$elemMatch: {}}, 1]}}`: "$all/$elemMatch has to be consistent",
		`{a: {$all: [1, {$elemMatch: {}}]}}`: "$all/$elemMatch has to be consistent",
		`{a: {$elemMatch: 1}}`:               "$elemMatch needs an Object",
		`{a: {$elemMatch: {$expr: 1}}}`:      "$expr can only be applied to the top-level document",
		`{a: {$mod: 1}}`:                     "malformed mod, needs to be an array",
		`{a: {$mod: [1]}}`:                   "malformed mod, not enough elements",
		`{a: {$mod: [1, 2, 3]}}`:             "malformed mod, too many elements",
		`{a: {$mod: ['x', 2]}}`:              "malformed mod, divisor not a number",
		`{a: {$mod: [1, 'x']}}`:              "malformed mod, remainder not a number",
		`{a: {$mod: [0, 1]}}`:                "divisor cannot be 0",
		`{a: {$mod: [1e300, 1]}}`:            "malformed mod, divisor value is invalid",
		`{a: {$options: 'i'}}`:               "$options needs a $regex",
		`{a: {$regex: 1}}`:                   "$regex has to be a string",
		`{a: {$regex: 'x', $options: 1}}`:    "$options has to be a string",
		`{a: {$type: 'foo'}}`:                "Unknown type name alias: foo",
		`{a: {$type: 99}}`:                   "Invalid numerical type code: 99",
		`{a: {$type: 0}}`:                    "Invalid numerical type code: 0",
		`{a: {$bitsAllSet: 'x'}}`:            "takes an Array, a number, or a BinData",
		`{a: {$bitsAllSet: [-1]}}`:           "bit positions must be an integer >= 0",
	} {
		_, err := ParseFilter(raw(t, text))
		refused(t, err, mongoerr.BadValue, want)
	}
	for text, code := range map[string]mongoerr.Code{
		`{a: {$type: true}}`:                mongoerr.TypeMismatch,
		`{a: {$type: []}}`:                  mongoerr.FailedToParse,
		`{a: {$bitsAllSet: -1}}`:            mongoerr.FailedToParse,
		`{a: {$bitsAllSet: 1.5}}`:           mongoerr.FailedToParse,
		`{a: {$regex: '(?=x)'}}`:            mongoerr.Location51091,
		`{a: {$regex: 'a{1000}{1000}'}}`:    mongoerr.Location51091,
		`{a: {$regex: '(.{1,900}){1,1}z'}}`: mongoerr.Location51091,
		`{a: {$in: [{$regularExpression: {pattern: '(', options: ''}}]}}`:                  mongoerr.Location51091,
		`{a: {$regex: 'x\u0000'}}`:                                                         mongoerr.Location51091,
		`{a: {$regex: 'x', $options: 'q'}}`:                                                51108,
		`{a: {$regex: {$regularExpression: {pattern: 'x', options: 'i'}}, $options: 'i'}}`: 51075,
		`{$expr: {$foo: 1}}`:                                                               invalidPipelineOperator,
		`{$expr: '$$NOW'}`:                                                                 51144,
		fmt.Sprintf(`{a: {$regex: '%s'}}`, strings.Repeat("x", 5000)):                      mongoerr.Location51091,
	} {
		_, err := ParseFilter(raw(t, text))
		refused(t, err, code, "")
	}
}

// TestFilterTreeIsNormalized shows what a planner sees.
func TestFilterTreeIsNormalized(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                             "And()",
		`{a: 1}`:                         "a Eq 1",
		`{a: 1, b: {$gt: 2, $lte: 5}}`:   "And(a Eq 1, b Gt 2, b Lte 5)",
		`{$or: [{a: 1}]}`:                "a Eq 1",
		`{$and: [{a: 1}, {b: 2}], c: 3}`: "And(And(a Eq 1, b Eq 2), c Eq 3)",
		`{$nor: [{a: {$ne: 1}}]}`:        "Nor(a Ne 1)",
		`{a: {$in: [3, 1, 2, 1.0]}}`:     "a In [1 2 3]",
		`{a: {$nin: [2]}}`:               "a Nin [2]",
		`{a: {$not: {$gt: 1}}}`:          "Not(a Gt 1)",
		`{a: {$exists: false}}`:          "a Exists false",
		`{a: {$all: [1, 2]}}`:            "And(a Eq 1, a Eq 2)",
		`{a: {$elemMatch: {b: 1}}}`:      "a ElemMatch(b Eq 1)",
		`{a: {$elemMatch: {$gt: 1}}}`:    "a ElemMatch( Gt 1)",
		`{a: {$in: [1, {$regularExpression: {pattern: 'x', options: ''}}]}}`: "Or(a In [1], a Regex /x/)",
		`{$expr: '$a'}`: `Expr "$a"`,
	} {
		if got := treeText(filter(t, text).Root()); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if root := (*Filter)(nil).Root(); root.Op != And || len(root.Children) > 0 {
		t.Error(root)
	}
}

func treeText(n Node) string {
	name := []string{"", "And", "Or", "Nor", "Not", "Eq", "Ne", "Gt", "Gte", "Lt", "Lte", "In", "Nin", "Exists",
		"Regex", "Type", "Size", "ElemMatch", "Mod", "Bits", "Expr"}[n.Op]
	var children []string
	for _, c := range n.Children {
		children = append(children, treeText(c))
	}
	inside := "(" + strings.Join(children, ", ") + ")"
	switch n.Op {
	case And, Or, Nor, Not:
		return name + inside
	case ElemMatch:
		return n.Path + " " + name + inside
	case Expr:
		return name + " " + show(n.Value)
	case In, Nin:
		var values []string
		for _, v := range n.Values {
			values = append(values, show(v))
		}
		return n.Path + " " + name + " [" + strings.Join(values, " ") + "]"
	}
	return n.Path + " " + name + " " + show(n.Value)
}

func TestFilterEqualities(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]string{
		`{}`: {},
		`{a: 1, 'b.c': 'x', d: {$gt: 5}, e: {$in: [7]}, f: {$in: [1, 2]}}`:                {"a": "1", "b.c": `"x"`, "e": "7"},
		`{$and: [{a: 1}, {$or: [{b: 2}]}], c: {$eq: 3}}`:                                  {"a": "1", "b": "2", "c": "3"},
		`{$or: [{a: 1}, {b: 2}], c: {$ne: 3}, d: {$not: {$eq: 1}}}`:                       {},
		`{a: 1, $and: [{a: 2}]}`:                                                          {"a": "1"},
		`{a: {$all: [1]}, b: {$regularExpression: {pattern: 'x', options: ''}}, c: null}`: {"a": "1", "c": "null"},
	} {
		got := map[string]string{}
		for path, v := range FilterEqualities(filter(t, text)) {
			got[path] = show(v)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestMatchErrTellsWhyExprFailed(t *testing.T) {
	t.Parallel()
	f := filter(t, `{$or: [{$expr: {$add: ['$a', 1]}}, {b: 1}]}`)
	ok, err := f.MatchErr(raw(t, `{a: 'x', b: 1}`))
	if refused(t, err, mongoerr.TypeMismatch, "$add only supports numeric or date types, not string"); ok {
		t.Error("matched")
	}
	long := docOf(appendElement(nil, "a", stringValue(strings.Repeat("y", maxSearch/700))))
	for text, want := range map[string]string{
		`{a: {$regex: '(x{1,20}){1,20}z'}}`:             "a string is too long for the regular expression on 'a'",
		`{$nor: [{a: {$regex: '(x{1,20}){1,20}z'}}]}`:   "too long",
		`{'a.b': {$not: {$regex: '(x{1,20}){1,20}z'}}}`: "",
		`{a: {$not: {$regex: 'x'}}}`:                    "",
	} {
		ok, err := filter(t, text).MatchErr(long)
		if want == "" && (!ok || err != nil) || want != "" && ok {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
		if want != "" {
			refused(t, err, mongoerr.Location51091, want)
		}
	}
	if ok, err := (*Filter)(nil).MatchErr(nil); !ok || err != nil {
		t.Error(ok, err)
	}
}

func TestFilterLooksAtMoreFieldsThanItHasSlots(t *testing.T) {
	t.Parallel()
	var d, other bson.D
	for i := range 2 * maxSlots {
		d = append(d, bson.E{Key: fmt.Sprint("f", i), Value: int32(i)})
	}
	other = append(slices.Clone(d[:len(d)-1]), bson.E{Key: d[len(d)-1].Key, Value: int32(-1)})
	marshal := func(d bson.D) bson.Raw {
		out, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	f, err := ParseFilter(marshal(d))
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(d)
	if !f.Match(marshal(d)) || f.Match(marshal(other)) || f.Match(marshal(d[1:])) {
		t.Error("slots run out")
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	doc := doc300(t)
	for _, text := range []string{`{'stats.x': {$gt: 10}, tags: 'blue'}`, `{$or: [{n: {$in: [1, 2]}}, {zz: null}]}`,
		`{tags: {$elemMatch: {$gt: 'g', $lt: 'h'}}}`, `{note: {$regex: 'lazy'}}`, `{_id: {$exists: true}, score: {$mod: [2, 1]}}`} {
		f := filter(t, text)
		if !f.Match(doc) {
			t.Error(text)
		}
		n := testing.AllocsPerRun(100, func() { f.Match(doc) })
		for range 5 { // a collection empties the pool of regexp, and the race detector does so by chance
			n = min(n, testing.AllocsPerRun(100, func() { f.Match(doc) }))
		}
		if n > 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
}

// conditions draws filters whose operators agree with their definitions.
func conditions(t *rapid.T, name string) bson.D {
	path := rapid.SampledFrom([]string{"a", "b", "a.b", "a.0", "0", "a.b.c"}).Draw(t, name+" path")
	v := values(1).Draw(t, name)
	switch rapid.IntRange(0, 6).Draw(t, name+" op") {
	case 0:
		return bson.D{{Key: path, Value: bson.D{{Key: "$eq", Value: v}}}}
	case 1:
		return bson.D{{Key: path, Value: bson.D{{Key: "$gt", Value: v}}}}
	case 2:
		return bson.D{{Key: path, Value: bson.D{{Key: "$lte", Value: v}}}}
	case 3:
		return bson.D{{Key: path, Value: bson.D{{Key: "$exists", Value: true}}}}
	case 4:
		return bson.D{{Key: path, Value: bson.D{{Key: "$in", Value: bson.A{v, nil, int32(1)}}}}}
	case 5:
		return bson.D{{Key: path, Value: bson.D{{Key: "$size", Value: 1}}}}
	}
	return bson.D{{Key: path, Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "$gte", Value: v}}}}}}
}

func TestFilterLawsHold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc, err := bson.Marshal(documentsOf(3).Draw(t, "doc"))
		if err != nil {
			t.Fatal(err)
		}
		match := func(f bson.D) bool {
			data, err := bson.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := ParseFilter(data)
			if err != nil {
				t.Skip() // undefined, a regular expression
			}
			return parsed.Match(doc)
		}
		a, b := conditions(t, "first"), conditions(t, "second")
		both, x, y := bson.A{a, b}, match(a), match(b)
		path, condition := a[0].Key, a[0].Value.(bson.D)
		for name, law := range map[string]bool{
			"$and":        match(bson.D{{Key: "$and", Value: both}}) == (x && y),
			"$or":         match(bson.D{{Key: "$or", Value: both}}) == (x || y),
			"$nor":        match(bson.D{{Key: "$nor", Value: both}}) == !(x || y),
			"$not":        match(bson.D{{Key: path, Value: bson.D{{Key: "$not", Value: condition}}}}) == !x,
			"$ne":         condition[0].Key != "$eq" || match(bson.D{{Key: path, Value: bson.D{{Key: "$ne", Value: condition[0].Value}}}}) == !x,
			"$nin":        condition[0].Key != "$in" || match(bson.D{{Key: path, Value: bson.D{{Key: "$nin", Value: condition[0].Value}}}}) == !x,
			"in one":      condition[0].Key != "$eq" || match(bson.D{{Key: path, Value: bson.D{{Key: "$in", Value: bson.A{condition[0].Value}}}}}) == x,
			"same fields": match(bson.D{{Key: "$or", Value: bson.A{a, a}}}) == x,
		} {
			if !law {
				t.Fatalf("%s does not hold: %v, %v", name, a, b)
			}
		}
	})
}
