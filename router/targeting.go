package router

import (
	"cmp"
	"slices"
	"sync"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Verb is what an operation does, for the figures about targeting.
type Verb uint8

// The verbs. An aggregate that begins as a find or a count is one of these.
const (
	FindVerb Verb = iota
	CountVerb
	DistinctVerb
	InsertVerb
	UpdateVerb
	DeleteVerb
	verbs = iota
)

// String is the word in metrics.
func (v Verb) String() string {
	return [...]string{"find", "count", "distinct", "insert", "update", "delete"}[v]
}

// Reach is how many shards an operation had to ask.
type Reach uint8

// The reaches.
const (
	// OneShard: one at most.
	OneShard Reach = iota
	// SomeShards: the owners of a part of the key space.
	SomeShards
	// AllShards: every owner of the collection, since the filter says nothing of the key.
	AllShards
	reaches = iota
)

// String is the word in metrics.
func (r Reach) String() string { return [...]string{"one", "some", "all"}[r] }

// reachOf is how far a plan reaches; its shards are not counted.
func reachOf(p *plan.Plan) Reach {
	several := false
	for i := 1; i < len(p.Targets) && !several; i++ {
		several = p.Targets[i].Chunk.Shard != p.Targets[0].Chunk.Shard
	}
	switch {
	case !several:
		return OneShard
	case p.Kind == plan.Broadcast:
		return AllShards
	}
	return SomeShards
}

// Targeting is how far the operations on one collection reached since the router began.
type Targeting struct {
	Namespace Namespace
	Sharded   bool
	// Operations by Verb and Reach: each statement of a write counts.
	Operations [verbs][reaches]int64
}

// Share is the part of the operations that did not go to all shards, 0 to 1.
func (t *Targeting) Share() float64 {
	all, broadcast := int64(0), int64(0)
	for _, n := range t.Operations {
		for _, k := range n {
			all += k
		}
		broadcast += n[AllShards]
	}
	if all == 0 {
		return 1
	}
	return 1 - float64(broadcast)/float64(all)
}

// Broadcast is a kind of operations that went to all shards, without its values.
type Broadcast struct {
	Namespace Namespace
	Verb      Verb
	Shape     string // see plan.Shape
	// Count is how many there were: too high by at most the count of the rarest kind that is
	// remembered, when there are more kinds than that.
	Count int64
}

// Bounds of what is remembered: operations on further collections are counted together, under
// the empty namespace, and a new shape takes the place of the rarest.
const (
	countedCollections = 1000
	countedShapes      = 128
)

// targeting counts operations by how far they reach. Safe for concurrent use.
type targeting struct {
	mu          sync.Mutex // never held across a call
	collections map[Namespace]*Targeting
	shapes      map[Broadcast]int64 // Count 0
}

func newTargeting() *targeting {
	return &targeting{collections: make(map[Namespace]*Targeting), shapes: make(map[Broadcast]int64)}
}

// of is the entry of a collection. Requires: mu.
func (t *targeting) of(ns Namespace, c *manifest.Collection) *Targeting {
	n := t.collections[ns]
	if n == nil && len(t.collections) >= countedCollections {
		ns = Namespace{}
		n = t.collections[ns]
	}
	if n == nil {
		n = &Targeting{Namespace: ns}
		t.collections[ns] = n
	}
	n.Sharded = c.Sharded
	return n
}

// count counts an operation.
func (t *targeting) count(v Verb, ns Namespace, c *manifest.Collection, reach Reach, filter, sort bson.Raw) {
	var kind Broadcast
	if reach == AllShards {
		kind = Broadcast{Namespace: ns, Verb: v, Shape: plan.Shape(filter, sort)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(ns, c).Operations[v][reach]++
	if reach == AllShards {
		t.broadcast(kind)
	}
}

// broadcast counts a kind. When there are too many the rarest makes room, and the new one
// takes its count over: so a frequent kind is never lost. Requires: mu.
func (t *targeting) broadcast(kind Broadcast) {
	if _, known := t.shapes[kind]; !known && len(t.shapes) >= countedShapes {
		var rarest Broadcast
		least := int64(-1)
		for k, n := range t.shapes {
			if least < 0 || n < least || n == least && compareShapes(k, rarest) < 0 {
				rarest, least = k, n
			}
		}
		delete(t.shapes, rarest)
		t.shapes[kind] = least
	}
	t.shapes[kind]++
}

func compareShapes(a, b Broadcast) int {
	return cmp.Or(compareNamespaces(a.Namespace, b.Namespace), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Shape, b.Shape))
}

func compareNamespaces(a, b Namespace) int {
	return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Collection, b.Collection))
}

// inserted counts n documents: each goes to the one shard of its key.
func (t *targeting) inserted(ns Namespace, c *manifest.Collection, n int64) {
	if n == 0 || c == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(ns, c).Operations[InsertVerb][OneShard] += n
}

// Targeting is how far operations reached, by namespace.
func (r *Router) Targeting() []Targeting {
	t := r.targeting
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Targeting
	for _, n := range t.collections {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b Targeting) int { return compareNamespaces(a.Namespace, b.Namespace) })
	return all
}

// Broadcasts are the most frequent kinds of operations that went to all shards, at most n,
// the most frequent first.
func (r *Router) Broadcasts(n int) []Broadcast {
	t := r.targeting
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Broadcast
	for k, count := range t.shapes {
		k.Count = count
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b Broadcast) int { return cmp.Or(cmp.Compare(b.Count, a.Count), compareShapes(a, b)) })
	return all[:min(n, len(all))]
}
