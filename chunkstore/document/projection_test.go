package document

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// TestProjectionShows lists projection, document, what is shown.
func TestProjectionShows(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{`{}`, `{_id: 1, a: 1}`, `{_id: 1, a: 1}`},
		{`{a: 1}`, `{_id: 1, b: 2, a: 1}`, `{_id: 1, a: 1}`},
		{`{a: true, _id: 0}`, `{_id: 1, b: 2, a: 1}`, `{a: 1}`},
		{`{a: 1, b: 1}`, `{_id: 1, b: 2, a: 1}`, `{_id: 1, b: 2, a: 1}`},
		{`{_id: 1}`, `{_id: 1, a: 1}`, `{_id: 1}`},
		{`{_id: 0}`, `{_id: 1, a: 1}`, `{a: 1}`},
		{`{a: 0}`, `{_id: 1, b: 2, a: 1}`, `{_id: 1, b: 2}`},
		{`{a: 0, _id: 0}`, `{_id: 1, b: 2, a: 1}`, `{b: 2}`},
		{`{_id: 1, a: 0}`, `{_id: 1, b: 2, a: 1}`, `{_id: 1, b: 2}`},
		{`{'a.b': 1}`, `{_id: 1, a: {b: 1, c: 2}, d: 1}`, `{_id: 1, a: {b: 1}}`},
		{`{a: {b: 1}}`, `{_id: 1, a: {b: 1, c: 2}, d: 1}`, `{_id: 1, a: {b: 1}}`},
		{`{a: {b: {c: 1}, 'd.e': 1}}`, `{_id: 1, a: {b: {c: 1, x: 1}, d: {e: 2, f: 3}}}`, `{_id: 1, a: {b: {c: 1}, d: {e: 2}}}`},
		{`{'a.b': 1, 'a.c': 1}`, `{_id: 1, a: [{b: 1, d: 1}, 5, [{c: 1, d: 1}], {}]}`, `{_id: 1, a: [{b: 1}, [{c: 1}], {}]}`},
		{`{'a.b': 1}`, `{_id: 1, a: 5}`, `{_id: 1}`},
		{`{'a.b': 0}`, `{_id: 1, a: 5}`, `{_id: 1, a: 5}`},
		{`{'a.b': 0}`, `{_id: 1, a: [{b: 1, d: 1}, 5, [{b: 1, d: 1}]]}`, `{_id: 1, a: [{d: 1}, 5, [{d: 1}]]}`},
		{`{x: '$a', y: 'text', z: {$literal: 1}, a: 1}`, `{_id: 1, a: 5}`, `{_id: 1, a: 5, x: 5, y: 'text', z: 1}`},
		{`{x: '$nope', a: 1}`, `{_id: 1, a: 5}`, `{_id: 1, a: 5}`},
		{`{x: {$add: ['$a', 1]}}`, `{_id: 1, a: 5}`, `{_id: 1, x: 6}`},
		{`{_id: 0, x: '$a'}`, `{_id: 1, a: 5}`, `{x: 5}`},
		{`{'a.b': '$c'}`, `{_id: 1, a: {x: 1}, c: 2}`, `{_id: 1, a: {b: 2}}`},
		{`{'a.b': '$c', 'a.x': 1}`, `{_id: 1, a: [{x: 1}, 5], c: 2}`, `{_id: 1, a: [{x: 1, b: 2}, {b: 2}]}`},
		{`{a: {b: '$c'}}`, `{_id: 1, c: 2}`, `{_id: 1, a: {b: 2}}`},
		{`{'a.b': '$nope'}`, `{_id: 1}`, `{_id: 1, a: {}}`},
		{`{a: ['$c', 1]}`, `{_id: 1, c: 2}`, `{_id: 1, a: [2, 1]}`},
	} {
		p, err := ParseProjection(raw(t, c[0]))
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		got, err := p.Append([]byte("x"), raw(t, c[1]))
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		if string(got[1:]) != string(raw(t, c[2])) {
			t.Errorf("%s on %s:\ngot  %s\nwant %s", c[0], c[1], json(t, got[1:]), c[2])
		}
	}
}

func TestProjectionRefusals(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		code mongoerr.Code
		text string
	}{
		`{a: 1, b: 0}`:              {31254, "Cannot do exclusion on field b in inclusion projection"},
		`{a: 0, b: 1}`:              {31253, "Cannot do inclusion on field b in exclusion projection"},
		`{a: 0, b: '$c'}`:           {31252, "Cannot use expression other than $meta in exclusion projection"},
		`{a: {b: 1, c: 0}}`:         {31254, "Cannot do exclusion on field a.c in inclusion projection"},
		`{a: '$x', b: 0}`:           {31254, "Cannot do exclusion on field b in inclusion projection"},
		`{a: 1, 'a.b': 1}`:          {31249, "Path collision at a.b remaining portion b"},
		`{'a.b': 1, 'a.b.c.d': 1}`:  {31249, "Path collision at a.b.c.d remaining portion c.d"},
		`{'a.b': 1, a: 1}`:          {31250, "Path collision at a"},
		`{'a.b': 1, a: {b: 1}}`:     {31250, "Path collision at a.b"},
		`{a: 1, a: {b: 1}}`:         {31250, "Path collision at a"},
		`{a: {}}`:                   {51270, "An empty sub-projection is not a valid value"},
		`{'': 1}`:                   {40352, "FieldPath cannot be constructed with empty string"},
		`{'a.': 1}`:                 {40353, "FieldPath must not end with a '.'."},
		`{'a..b': 1}`:               {15998, "FieldPath field names may not be empty strings."},
		`{'$a': 1}`:                 {16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField."},
		`{'a.$': 1}`:                {mongoerr.BadValue, "the positional projection 'a.$' is not supported"},
		`{a: {$slice: 5}}`:          {mongoerr.BadValue, "$slice is not supported"},
		`{a: {$slice: [1, 2]}}`:     {mongoerr.BadValue, "$slice is not supported"},
		`{a: {$elemMatch: {b: 1}}}`: {mongoerr.BadValue, "$elemMatch is not supported"},
		`{a: {$meta: 'textScore'}}`: {mongoerr.BadValue, "$meta is not supported"},
		`{a: {$foo: 1}}`:            {invalidPipelineOperator, "Unrecognized expression '$foo'"},
		`{a: '$$NOW'}`:              {51144, "Builtin variable '$$NOW' is not available"},
	} {
		if text == `{a: 1, a: {b: 1}}` {
			continue // no valid document
		}
		_, err := ParseProjection(raw(t, text))
		refused(t, err, want.code, want.text)
	}
	p, err := ParseProjection(raw(t, `{x: {$add: ['$a', 1]}}`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Append([]byte("kept"), raw(t, `{a: 'x'}`))
	refused(t, err, mongoerr.TypeMismatch, "$add only supports numeric or date types, not string")
	if string(out) != "kept" {
		t.Error("buffer changed by a failure")
	}
}

func TestProjectionKeepsWhatItDoesNotHide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc, err := bson.Marshal(documentsOf(2).Draw(t, "doc"))
		if err != nil {
			t.Fatal(err)
		}
		path := rapid.SampledFrom([]string{"a", "b", "a.b", "a.b.c"}).Draw(t, "path")
		project := func(doc bson.Raw, flag int) bson.Raw {
			spec, _ := bson.Marshal(bson.D{{Key: path, Value: flag}, {Key: "_id", Value: flag}})
			p, err := ParseProjection(spec)
			if err != nil {
				t.Fatal(err)
			}
			out, err := p.Append(nil, doc)
			if err != nil || Validate(out, Limits{}) != nil {
				t.Fatal(err, Validate(out, Limits{}))
			}
			return out
		}
		shown, hidden := project(doc, 1), project(doc, 0)
		if string(project(shown, 1)) != string(shown) || string(project(hidden, 0)) != string(hidden) {
			t.Fatal("projecting twice is not projecting once")
		}
		if v, ok := Lookup(doc, path); ok {
			if w, ok := Lookup(shown, path); !ok || Compare(v, w) != 0 {
				t.Fatalf("%s is not shown", path)
			}
		}
		if _, ok := Lookup(hidden, path); ok {
			t.Fatalf("%s is not hidden", path)
		}
	})
}

func TestSortKeysOrderDocuments(t *testing.T) {
	t.Parallel()
	for text, docs := range map[string][]string{ // in order; the same place: equal keys
		`{a: 1}`:        {`{a: []}`, `{}`, `{a: 1}`, `{a: [5, 2]}`, `{a: 3}`, `{a: 'x'}`},
		`{a: -1}`:       {`{a: 'x'}`, `{a: [2, 5]}`, `{a: 3}`, `{a: 1}`, `{a: null}`, `{a: []}`},
		`{a: 1, b: -1}`: {`{a: 1, b: 2}`, `{b: 1, a: 1}`, `{a: 1}`, `{a: 2, b: 9}`},
		`{'a.b': 1}`:    {`{a: [{b: 5}, {}]}`, `{a: {b: 1}}`, `{a: [{b: [7, 2]}, {b: 9}]}`, `{a: {b: 3}}`},
		`{'a.0': 1}`:    {`{a: 1}`, `{a: [1, 0]}`, `{a: [2]}`, `{a: {'0': 3}}`},
		`{'a.b.c': -1}`: {`{a: {b: {c: 2}}}`, `{a: [{b: [{c: 1}]}]}`, `{a: {b: 1}}`},
	} {
		s, err := ParseSort(raw(t, text))
		if err != nil {
			t.Fatal(err)
		}
		var keys [][]byte
		for _, doc := range docs {
			keys = append(keys, s.AppendKey(nil, raw(t, doc)))
		}
		if !slices.IsSortedFunc(keys, bytes.Compare) || len(slices.CompactFunc(keys, bytes.Equal)) != len(docs) {
			t.Errorf("%s: %x", text, keys)
		}
	}
	s, _ := ParseSort(raw(t, `{a: 1, 'b.c': -1}`))
	if got := fmt.Sprint(s.Fields()); got != "[{a false} {b.c true}]" {
		t.Error(got)
	}
	if v := s.SortValues(raw(t, `{a: [3, 2]}`)); show(v[0]) != "2" || show(v[1]) != "null" {
		t.Error(v)
	}
	a, b := s.AppendKey(nil, raw(t, `{}`)), s.AppendKey(nil, raw(t, `{a: null, b: 1}`))
	if !bytes.Equal(a, b) {
		t.Error("missing is not null")
	}
	if s, err := ParseSort(nil); s != nil || err != nil || s.Fields() != nil || s.AppendKey(nil, nil) != nil || len(s.SortValues(nil)) > 0 {
		t.Error("no sort is a nil Sort that does nothing")
	}
}

func TestSortRefusals(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		code mongoerr.Code
		text string
	}{
		`{a: 2}`:            {15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)"},
		`{a: 'x'}`:          {15974, `Illegal key in $sort specification: a: "x"`},
		`{a: {$meta: 'x'}}`: {mongoerr.BadValue, "$meta sorts are not supported"},
		`{a: {}}`:           {15974, "Illegal key"},
		`{'a..b': 1}`:       {15998, "may not be empty strings"},
		`{'$a': 1}`:         {16410, "may not start with '$'"},
	} {
		_, err := ParseSort(raw(t, text))
		refused(t, err, want.code, want.text)
	}
	many := []byte{}
	for i := range maxSortFields + 1 {
		many = append(many, el(16, fmt.Sprint("f", i), 1, 0, 0, 0)...)
	}
	_, err := ParseSort(docOf(many))
	refused(t, err, mongoerr.BadValue, "at most 32 fields")
}
