package plan

import (
	"bytes"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// MaxConjunctions bounds the expansion of $or inside $and; an $or beyond it narrows
	// nothing.
	MaxConjunctions = 1024
	// MaxRanges bounds the ranges of one conjunction; beyond it the later fields of the key
	// narrow nothing.
	MaxRanges = 200_000
)

// conjunction is one span set per field of the row key.
type conjunction []spans

func (c conjunction) and(field int, s spans) conjunction {
	out := slices.Clone(c)
	out[field] = c[field].intersect(s)
	return out
}

// possible reports whether no field is left without a value.
func (c conjunction) possible() bool {
	for _, s := range c {
		if s != nil && len(s) == 0 {
			return false
		}
	}
	return true
}

// keys is where matching row keys can lie.
type keys struct {
	pattern shardkey.Pattern // the shard key
	fields  []field          // of the row key
	any     []conjunction    // a match satisfies one of these
	ranges  []shardkey.Range
	points  int // how many leading fields are points in every range
	filter  *document.Filter
}

func keysOf(p shardkey.Pattern, filter *document.Filter) *keys {
	k := &keys{pattern: p, filter: filter}
	row := p.RowPattern().Fields
	k.fields = make([]field, len(row))
	for i, f := range row {
		k.fields[i] = field{f}
	}
	k.any = []conjunction{make(conjunction, len(k.fields))}
	if filter != nil {
		k.any = k.expand(filter.Root(), k.any)
	}
	k.any = slices.DeleteFunc(k.any, func(c conjunction) bool { return !c.possible() })
	k.points = len(k.fields)
	for _, c := range k.any {
		rs, points := c.ranges(len(p.Fields))
		k.ranges = append(k.ranges, rs...)
		k.points = min(k.points, points)
	}
	k.ranges = uniteRanges(k.ranges)
	return k
}

// expand adds the conditions of n to each of in.
func (k *keys) expand(n document.Node, in []conjunction) []conjunction {
	switch n.Op {
	case document.And:
		for _, child := range n.Children {
			in = k.expand(child, in)
		}
		return in
	case document.Or:
		return k.expandOr(n, in)
	}
	for i, f := range k.fields {
		var s spans
		if n.Path == f.Path {
			s = f.condition(n)
		} else if rest, ok := strings.CutPrefix(f.Path, n.Path+"."); ok && n.Path != "" {
			s = f.inside(n, rest)
		}
		if s == nil {
			continue
		}
		out := make([]conjunction, len(in))
		for j, c := range in {
			out[j] = c.and(i, s)
		}
		in = out
	}
	return in
}

// expandOr expands the branches by themselves first: branches that differ in one field only
// are one conjunction ($or of a thousand _ids is an $in), and the rest multiply.
func (k *keys) expandOr(n document.Node, in []conjunction) []conjunction {
	var branches []conjunction
	for _, child := range n.Children {
		for _, c := range k.expand(child, []conjunction{make(conjunction, len(k.fields))}) {
			if c.possible() {
				branches = append(branches, c)
			}
		}
	}
	branches = joinOneField(branches)
	if len(in)*len(branches) > MaxConjunctions {
		return in
	}
	out := make([]conjunction, 0, len(in)*len(branches))
	for _, c := range in {
		for _, b := range branches {
			both := make(conjunction, len(c))
			for i := range c {
				both[i] = c[i].intersect(b[i])
			}
			if both.possible() {
				out = append(out, both)
			}
		}
	}
	return out
}

// joinOneField unites the branches that have a condition on one and the same field only.
func joinOneField(branches []conjunction) []conjunction {
	var out []conjunction
	joined := make(map[int]spans)
	var order []int
	for _, b := range branches {
		only, n := 0, 0
		for i, s := range b {
			if s != nil {
				only, n = i, n+1
			}
		}
		if n == 0 {
			return []conjunction{b} // a branch without a condition: the $or narrows nothing
		}
		if n > 1 {
			out = append(out, b)
			continue
		}
		if _, ok := joined[only]; !ok {
			order = append(order, only)
		}
		joined[only] = append(joined[only], b[only]...)
	}
	for _, i := range order {
		c := make(conjunction, len(branches[0]))
		c[i] = unite(joined[i])
		out = append(out, c)
	}
	return out
}

// ranges are the key ranges of a possible conjunction under a shard key of so many fields,
// and how many leading fields are points in all of them.
func (c conjunction) ranges(shardKey int) (rs []shardkey.Range, points int) {
	prefixes := [][]byte{nil}
	points = len(c)
	depth := 0 // of the prefixes
	for i, s := range c {
		if s == nil || len(prefixes)*len(s) > MaxRanges {
			points = min(points, i)
			break
		}
		var next [][]byte
		for _, p := range prefixes {
			for _, x := range s {
				if x.point {
					next = append(next, join(p, x.Min))
					continue
				}
				points = min(points, i)
				r := under(p, x.Range)
				if x.value {
					r.Min = least(r.Min, i+1, shardKey)
				}
				rs = append(rs, r)
			}
		}
		prefixes, depth = next, i+1
	}
	for _, p := range prefixes {
		rs = append(rs, shardkey.Range{Min: least(p, depth, shardKey), Max: shardkey.PrefixEnd(p)})
	}
	return rs, points
}

// least is the lower end of the keys that begin with a prefix of that many whole fields:
// when another field of the shard key follows, it is MinKey at least. Without this a chunk
// that ends right there, {country: "de", age: MinKey}, would be visited for "de" in vain.
func least(prefix []byte, fields, shardKey int) []byte {
	if fields == 0 || fields >= shardKey {
		return prefix
	}
	return append(bytes.Clone(prefix), minKey...)
}

var minKey = shardkey.AppendValue(nil, bson.RawValue{Type: bson.TypeMinKey}, false)

// under is the part of the keys with the prefix in which the next field is inside r.
func under(prefix []byte, r shardkey.Range) shardkey.Range {
	out := shardkey.Range{Min: join(prefix, r.Min), Max: shardkey.PrefixEnd(prefix)}
	if len(r.Max) > 0 {
		out.Max = join(prefix, r.Max)
	}
	return out
}

// join is a followed by b; it may be b itself.
func join(a, b []byte) []byte {
	if len(a) == 0 {
		return b
	}
	return slices.Concat(a, b)
}

// uniteRanges makes ranges ascending and disjoint.
func uniteRanges(rs []shardkey.Range) []shardkey.Range {
	if len(rs) < 2 {
		return rs
	}
	slices.SortFunc(rs, func(a, b shardkey.Range) int { return shardkey.CompareMin(a.Min, b.Min) })
	var out []shardkey.Range
	for _, r := range rs {
		n := len(out)
		if n == 0 || len(out[n-1].Max) != 0 && bytes.Compare(out[n-1].Max, r.Min) < 0 {
			out = append(out, r)
			continue
		}
		if shardkey.CompareMax(r.Max, out[n-1].Max) > 0 {
			out[n-1].Max = r.Max
		}
	}
	return out
}
