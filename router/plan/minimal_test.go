package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// The world of TestEveryVisitedChunkCanHoldAMatch: filters and cuts know the whole numbers
// 0 to 5 and "m"; documents know what lies between and around them as well.
var (
	worldPaths   = []string{"a", "b"}
	worldSet     = []any{int32(0), int32(1), int32(2), int32(3), int32(4), int32(5), "m"}
	worldBetween = []any{nil, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, "a", "m", "ma", "z", true,
		bson.Regex{Pattern: "^m"}, bson.Regex{Pattern: "^a"}, bson.Regex{Pattern: "^mm?"}, bson.Regex{Pattern: "^z+"}}
)

// allDocs are the documents of the world with their row keys.
func allDocs(t *rapid.T, p shardkey.Pattern) (docs []bson.Raw, keys [][]byte) {
	for _, a := range append([]any{"missing"}, worldBetween...) {
		for _, b := range append([]any{"missing"}, worldBetween...) {
			d := bson.D{{Key: "_id", Value: int32(1)}}
			for i, v := range []any{a, b} {
				if v != "missing" {
					d = append(d, bson.E{Key: worldPaths[i], Value: v})
				}
			}
			raw := marshal(t, d)
			key, err := p.AppendKey(nil, raw)
			if err != nil {
				t.Fatal(err)
			}
			docs, keys = append(docs, raw), append(keys, key)
		}
	}
	return docs, keys
}

// drawPoint is a condition that a few values fit; drawSpan one that leaves out a part.
func drawPoint(t *rapid.T) any {
	switch v := rapid.SampledFrom(worldSet).Draw(t, "value"); rapid.IntRange(0, 4).Draw(t, "point") {
	case 0:
		return bson.D{{Key: "$in", Value: bson.A{v, rapid.SampledFrom(worldSet).Draw(t, "other")}}}
	case 1:
		return nil
	case 2:
		return bson.D{{Key: "$exists", Value: false}}
	default:
		return v
	}
}

func drawSpan(t *rapid.T) any {
	if rapid.IntRange(0, 5).Draw(t, "prefix") == 0 {
		return bson.Regex{Pattern: "^" + rapid.SampledFrom([]string{"m", "a", "mm?", "z+"}).Draw(t, "pattern")}
	}
	var d bson.D
	if from := rapid.SampledFrom([]string{"", "$gt", "$gte"}).Draw(t, "from"); from != "" {
		d = append(d, bson.E{Key: from, Value: rapid.SampledFrom(worldSet[:6]).Draw(t, "low")})
	}
	if to := rapid.SampledFrom([]string{"$lt", "$lte"}).Draw(t, "to"); len(d) == 0 || rapid.Bool().Draw(t, "both") {
		d = append(d, bson.E{Key: to, Value: rapid.SampledFrom(worldSet[:6]).Draw(t, "high")})
	}
	return d
}

// drawBranch has points on the leading fields of the key and anything on the next: what a
// key can answer exactly.
func drawBranch(t *rapid.T, p shardkey.Pattern) bson.D {
	n := rapid.IntRange(1, len(p.Fields)).Draw(t, "conditions")
	var d bson.D
	for i, f := range p.Fields[:n] {
		v := drawPoint(t)
		if i == n-1 && !f.Hashed && rapid.Bool().Draw(t, "span") {
			v = drawSpan(t)
		}
		d = append(d, bson.E{Key: f.Path, Value: v})
	}
	return d
}

// TestEveryVisitedChunkCanHoldAMatch: of the filters that a key can answer exactly, a chunk is
// visited only if some document could lie in it and match. The documents are all those of a
// small world, matched one by one.
func TestEveryVisitedChunkCanHoldAMatch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p shardkey.Pattern
		for _, path := range rapid.Permutation(worldPaths).Draw(t, "paths")[:rapid.IntRange(1, 2).Draw(t, "fields")] {
			p.Fields = append(p.Fields, shardkey.Field{Path: path})
		}
		docs, keys := allDocs(t, p)
		var points [][]byte
		for range rapid.IntRange(0, 8).Draw(t, "cuts") {
			var d bson.D
			for _, f := range p.Fields[:rapid.IntRange(1, len(p.Fields)).Draw(t, "cut fields")] {
				d = append(d, bson.E{Key: f.Path, Value: rapid.SampledFrom(worldSet).Draw(t, "cut")})
			}
			key, _, err := p.Bound(marshal(t, d))
			if err != nil {
				t.Fatal(err)
			}
			points = append(points, key)
		}
		chunks := cut(points, 3)
		branches := bson.A{}
		for range rapid.IntRange(1, 3).Draw(t, "branches") {
			branches = append(branches, drawBranch(t, p))
		}
		raw := marshal(t, bson.D{{Key: "$or", Value: branches}})
		filter, err := document.ParseFilter(raw)
		if err != nil {
			t.Fatal(err)
		}
		plan := Make(chunks, &manifest.Collection{ID: 1, Key: p}, filter, nil)
		need := map[manifest.ChunkID]string{}
		for i, d := range docs {
			if filter.Match(d) {
				at := slices.IndexFunc(chunks, func(c *manifest.Chunk) bool { return c.Range.Contains(keys[i]) })
				need[chunks[at].ID] = fmt.Sprint(d)
			}
		}
		for _, x := range plan.Targets {
			if need[x.Chunk.ID] == "" {
				t.Fatalf("key %v, cuts %x: %v visits chunk %d %v, which can hold no match", p, points, raw, x.Chunk.ID, x.Chunk.Range)
			}
			delete(need, x.Chunk.ID)
		}
		if len(need) > 0 {
			t.Fatalf("key %v, cuts %x: %v does not visit %v", p, points, raw, need)
		}
	})
}
