package plan

import (
	"bytes"
	"flag"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var update = flag.Bool("update", false, "rewrite testdata")

// table is a chunk map of one collection.
type table []*manifest.Chunk

func (t table) ChunksIn(_ manifest.CollectionID, r shardkey.Range) iter.Seq[*manifest.Chunk] {
	return func(yield func(*manifest.Chunk) bool) {
		for _, c := range t {
			if c.Range.Overlaps(r) && !yield(c) {
				return
			}
		}
	}
}

// cut makes a chunk map from cut points, owned by shards in turn.
func cut(points [][]byte, shards int) table {
	slices.SortFunc(points, bytes.Compare)
	points = slices.CompactFunc(points, bytes.Equal)
	var t table
	var min []byte
	for i := range len(points) + 1 {
		c := &manifest.Chunk{ID: manifest.ChunkID(i + 1), Shard: manifest.ShardID(fmt.Sprintf("s%d", i%shards+1))}
		c.Range.Min = min
		if i < len(points) {
			c.Range.Max, min = points[i], points[i]
		}
		t = append(t, c)
	}
	return t
}

func doc(t testing.TB, json string) bson.Raw {
	t.Helper()
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(json), false, &raw); err != nil {
		t.Fatalf("%s: %v", json, err)
	}
	return raw
}

func filterOf(t testing.TB, raw bson.Raw) *document.Filter {
	t.Helper()
	f, err := document.ParseFilter(raw)
	if err != nil {
		t.Fatalf("filter %v: %v", raw, err)
	}
	return f
}

// TestPlansAreAsWritten runs testdata/plans.txt: a line "key {..}" begins a collection,
// "cuts {..} ; {..}" cuts it into chunks on two shards, and each "find {..} [sort {..}]" is
// followed by its plan.
func TestPlansAreAsWritten(t *testing.T) {
	t.Parallel()
	const name = "testdata/plans.txt"
	in, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	c := &manifest.Collection{ID: 1}
	var chunks table
	var out strings.Builder
	for line := range strings.Lines(string(in)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "key":
			if c.Key, err = shardkey.ParsePattern(doc(t, rest)); err != nil {
				t.Fatal(err)
			}
			chunks = cut(nil, 1)
		case "cuts":
			var points [][]byte
			for _, p := range strings.Split(rest, " ; ") {
				key, _, err := c.Key.Bound(doc(t, p))
				if err != nil {
					t.Fatal(err)
				}
				points = append(points, key)
			}
			chunks = cut(points, 2)
		case "find":
			filter, sort, _ := strings.Cut(rest, " sort ")
			describe(&out, Make(chunks, c, filterOf(t, doc(t, filter)), sortOf(t, sort)))
		}
	}
	if *update {
		if err := os.WriteFile(name, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(string(in), out.String()); d != "" && !*update {
		t.Errorf("plans differ (-written +now), -update rewrites:\n%s", d)
	}
}

func sortOf(t testing.TB, json string) []document.SortField {
	t.Helper()
	if json == "" {
		return nil
	}
	s, err := document.ParseSort(doc(t, json))
	if err != nil {
		t.Fatal(err)
	}
	return s.Fields()
}

func describe(w *strings.Builder, p *Plan) {
	fmt.Fprintf(w, "  %s:", p.Kind)
	for _, t := range p.Targets {
		fmt.Fprintf(w, " %d", t.Chunk.ID)
		if t.Ranges != nil {
			fmt.Fprintf(w, "(%d)", len(t.Ranges))
		}
	}
	switch {
	case p.Order != 0:
		fmt.Fprintf(w, "; in order %+d, %d runs", p.Order, len(p.Runs()))
	case len(p.Targets) > 0:
		fmt.Fprintf(w, "; %d shards", len(p.ByShard()))
	}
	if p.Row != nil {
		fmt.Fprintf(w, "; one row")
	}
	fmt.Fprintf(w, "\n  %s\n", p.Reason())
	if advice := p.Advice(); advice != "" {
		fmt.Fprintf(w, "  %s\n", advice)
	}
}
