package rewrite

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ref is "rows keys seqs", such as "3 b..k 4..6".
func ref(t *testing.T, text string) manifest.SegmentRef {
	t.Helper()
	var r manifest.SegmentRef
	var keys string
	if _, err := fmt.Sscanf(text, "%d %s %d..%d", &r.Rows, &keys, &r.MinSeq, &r.MaxSeq); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	low, high, _ := strings.Cut(keys, "..")
	r.MinKey, r.MaxKey = []byte(low), []byte(high)
	return r
}

// Outputs that have what the inputs have not are refused before the commit, and so are rows that
// appear or are missing.
func TestWrongOutputsAreRefused(t *testing.T) {
	for _, x := range []struct {
		outputs             string
		rows, live, expired int64
		wrong               string // "": nothing
	}{
		{"5 b..k 1..9", 5, 5, 0, ""},
		{"2 b..d 1..9, 3 e..k 2..3", 5, 5, 0, ""},
		{"4 b..k 1..9", 4, 4, 1, ""},
		{"5 a..k 1..9", 5, 5, 0, "keys 61..6b came out of 62..6b"},
		{"5 b..l 1..9", 5, 5, 0, "keys 62..6c came out of 62..6b"},
		{"5 b..k 0..9", 5, 5, 0, "seqs 0..9 came out of 1..9"},
		{"5 b..k 1..10", 5, 5, 0, "seqs 1..10 came out of 1..9"},
		{"2 b..e 1..9, 3 e..k 2..3", 5, 5, 0, "outputs overlap at 65"},
		{"5 b..k 1..9", 6, 5, 0, "6 rows were written, 5 of them live; the segments say 5"},
		{"5 b..k 1..9", 5, 6, 0, "5 rows were written, 6 of them live"},
		{"4 b..k 1..9", 4, 4, 0, "4 live rows were read, of which 0 have expired; the root counts 5"},
		{"6 b..k 1..9", 6, 6, 0, "the root counts 5"},
		{"5 b..k 1..9", 5, 5, 1, "6 live rows were read, of which 1 have expired; the root counts 5"},
		{"", 0, 0, 0, "0 live rows were read"},
	} {
		c := &manifest.Chunk{ID: 7, Rows: 5, Range: shardkey.Range{Max: []byte("z")}}
		c.Refs = []manifest.SegmentRef{ref(t, "4 b..f 1..6"), ref(t, "3 d..k 7..9")}
		m := &merged{job: &plan.Compaction{Chunk: c, To: 2}, rows: x.rows, live: x.live, expired: x.expired}
		for text := range strings.SplitSeq(x.outputs, ", ") {
			if text != "" {
				m.outputs = append(m.outputs, ref(t, text))
			}
		}
		err := m.check()
		if x.wrong == "" && err != nil || x.wrong != "" && (!errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), x.wrong)) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	c := &manifest.Chunk{ID: 7, RowsEstimated: true, Refs: []manifest.SegmentRef{ref(t, "4 b..f 1..6")}}
	m := &merged{job: &plan.Compaction{Chunk: c, To: 1}, rows: 5, live: 5, outputs: []manifest.SegmentRef{ref(t, "5 b..f 1..6")}}
	if err := m.check(); err == nil || !strings.Contains(err.Error(), "5 rows came out of 4") {
		t.Errorf("more rows than were there: %v", err)
	}
}

func doc(v string) []byte {
	return bsoncore.NewDocumentBuilder().AppendString("v", v).Build()
}

// What is about to be stored must be what was added, to the byte.
func TestASegmentThatIsNotWhatWasAddedIsRefused(t *testing.T) {
	rows := []segment.Row{{Collection: 1, Key: []byte("a"), Seq: 1, Doc: doc("one")}, {Collection: 1, Key: []byte("b"), Seq: 2, Delete: true}}
	build := func(rows []segment.Row) ([]byte, manifest.SegmentRef) {
		w := segment.NewWriter(manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob}}, nil)
		for _, r := range rows {
			if err := w.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Cut(segment.Part{Collection: 1}); err != nil {
			t.Fatal(err)
		}
		body, _, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return body, w.Refs()[0]
	}
	m := &merger{}
	for i := range rows {
		m.part.add(&rows[i])
	}
	body, r := build(rows)
	if err := m.verify(t.Context(), body, r); err != nil {
		t.Fatal(err)
	}
	for i := range body {
		bad := append([]byte(nil), body...)
		bad[i] ^= 4
		if err := m.verify(t.Context(), bad, r); err == nil {
			t.Fatalf("byte %d of %d was changed, and nobody saw it", i, len(body))
		}
	}
	for _, other := range [][]segment.Row{
		rows[:1],
		{rows[0], {Collection: 1, Key: []byte("b"), Seq: 3, Delete: true}},
		{rows[0], {Collection: 1, Key: []byte("b"), Seq: 2, Doc: doc("two")}},
		{rows[0], {Collection: 1, Key: []byte("c"), Seq: 2, Delete: true}},
		{{Collection: 1, Key: []byte("a"), Seq: 1, Doc: doc("on3")}, rows[1]},
	} {
		body, r := build(other)
		if err := m.verify(t.Context(), body, r); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%v in place of %v: %v", other, rows, err)
		}
	}
}
