package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/document"
)

// Advice says in a sentence for people what to add to the filter so that fewer chunks are
// visited; "" when one chunk is visited at most, or when a filter could not do better.
func (p *Plan) Advice() string {
	if len(p.Targets) < 2 || p.Kind == Targeted {
		return ""
	}
	return p.keys.advice()
}

func (k *keys) advice() string {
	var missing []string
	for i, f := range k.pattern.Fields {
		if i >= k.points {
			missing = append(missing, fmt.Sprintf("%q", f.Path))
		}
	}
	if len(missing) == 0 {
		return ""
	}
	first := k.pattern.Fields[k.points]
	how := "an equality, $in or a range on"
	if first.Hashed || k.conditioned(k.points) {
		how = "an equality or $in on"
	}
	advice := fmt.Sprintf("add %s %s to the filter: only the chunks of these values are visited then", how, missing[0])
	if len(missing) > 1 {
		advice += fmt.Sprintf("; an equality on %s as well goes to one chunk", strings.Join(missing[1:], " and "))
	}
	return advice
}

// idle are the conditions on the first field of the key that narrow nothing, as they are
// written in a filter, and whether a branch of an $or has no condition on it at all.
func (k *keys) idle(filter *document.Filter) (ops []string, branch bool) {
	first := k.fields[0]
	var look func(n document.Node) (on bool)
	look = func(n document.Node) (on bool) {
		switch n.Op {
		case document.And, document.Nor, document.Not:
			for _, child := range n.Children {
				on = look(child) || on
			}
			if on && n.Op != document.And {
				ops = append(ops, opName(n))
			}
		case document.Or:
			on = len(n.Children) > 0
			for _, child := range n.Children {
				on = look(child) && on
			}
			branch = branch || !on
		default:
			if on = n.Path == first.Path; on && first.condition(n) == nil {
				ops = append(ops, opName(n))
			}
		}
		return on
	}
	look(filter.Root())
	slices.Sort(ops)
	return slices.Compact(ops), branch
}

var opNames = map[document.Op]string{
	document.Nor: "$nor", document.Not: "$not", document.Eq: "an array", document.Ne: "$ne", document.Gt: "$gt", document.Gte: "$gte",
	document.Lt: "$lt", document.Lte: "$lte", document.In: "$in with an array", document.Nin: "$nin", document.Exists: "$exists",
	document.Regex: "$regex", document.Type: "$type", document.Size: "$size", document.ElemMatch: "$elemMatch", document.Mod: "$mod",
	document.Bits: "$bits", document.Expr: "$expr",
}

func opName(n document.Node) string { return opNames[n.Op] }
