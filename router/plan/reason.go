package plan

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest/shardkey"
)

func (k *keys) kind() Kind {
	switch {
	case len(k.ranges) == 0:
		return Nothing
	case k.points >= len(k.pattern.Fields):
		return Targeted
	case len(k.ranges) == 1 && len(k.ranges[0].Min) == 0 && len(k.ranges[0].Max) == 0:
		return Broadcast
	}
	return Range
}

// row is the only row key in the ranges, or nil.
func (k *keys) row() []byte {
	if k.points < len(k.fields) || len(k.ranges) != 1 || !bytes.Equal(k.ranges[0].Max, shardkey.PrefixEnd(k.ranges[0].Min)) {
		return nil
	}
	return k.ranges[0].Min
}

// reason says which conditions narrowed the plan, or what would have.
func (k *keys) reason() string {
	switch k.kind() {
	case Nothing:
		return fmt.Sprintf("the conditions on the shard key %s contradict one another: nothing can match", k.pattern)
	case Targeted:
		return fmt.Sprintf("equality on the whole shard key %s", k.pattern)
	case Range:
		return fmt.Sprintf("conditions on %s, leading in the shard key %s", k.narrowing(), k.pattern)
	}
	return k.broadcast()
}

// broadcast says why every chunk may hold a match: what there is of conditions on the first
// field narrows nothing.
func (k *keys) broadcast() string {
	first := k.fields[0]
	why := fmt.Sprintf("no usable condition on %q, the first field of the shard key %s", first.Path, k.pattern)
	if first.Hashed {
		why = fmt.Sprintf("no equality on %q, the first field of the shard key %s, and a hashed field has no ranges", first.Path, k.pattern)
	}
	ops, branch := k.idle(k.filter)
	if len(ops) > 0 && !first.Hashed {
		why += fmt.Sprintf(" (%s narrows nothing)", strings.Join(ops, ", "))
	}
	if branch {
		why += ", and a branch of $or has none"
	}
	return why + ": every chunk may hold a match"
}

// narrowing names the leading fields that every conjunction has a condition on.
func (k *keys) narrowing() string {
	var names []string
	for i, f := range k.fields {
		if i > k.points || !k.conditioned(i) {
			break
		}
		names = append(names, fmt.Sprintf("%q", f.Path))
	}
	return strings.Join(names, ", ")
}

func (k *keys) conditioned(i int) bool {
	for _, c := range k.any {
		if c[i] == nil {
			return false
		}
	}
	return true
}

// constant reports whether field i has one value in every match, so that a sort need not
// look at it.
func (k *keys) constant(i int) bool {
	for _, c := range k.any {
		if len(c[i]) != 1 || !c[i][0].point || !c[i][0].Equal(k.any[0][i][0].Range) {
			return false
		}
	}
	return len(k.any) > 0
}

// order is the direction in which key order is the order of the sort, or 0. Constant fields
// count for nothing, in the key as in the sort: with {a: 7} the key (a, b) is in order of b.
func (k *keys) order(sort []document.SortField) int8 {
	if len(sort) == 0 {
		return 0
	}
	var dir int8
	i := 0
	for _, s := range sort {
		if k.constantPath(s.Path) {
			continue
		}
		for i < len(k.fields) && k.constant(i) {
			i++
		}
		if i == len(k.fields) {
			break // the key so far names one row: later fields decide nothing
		}
		if k.fields[i].Path != s.Path || k.fields[i].Hashed {
			return 0
		}
		d := int8(1)
		if s.Descending {
			d = -1
		}
		if dir != 0 && d != dir {
			return 0
		}
		dir = d
		i++
	}
	if dir == 0 {
		return 1
	}
	return dir
}

func (k *keys) constantPath(path string) bool {
	for i, f := range k.fields {
		if f.Path == path {
			return k.constant(i)
		}
	}
	return false
}
