package faults

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest/host"
)

// verbs of each kind of fault: for the others it does nothing.
var verbs = map[faultbucket.Kind][]layer.Verb{
	faultbucket.Before:     {layer.Get, layer.Head, layer.Put, layer.Delete, layer.List},
	faultbucket.After:      {layer.Put, layer.Delete},
	faultbucket.Late:       {layer.Put, layer.Delete},
	faultbucket.Twice:      {layer.Put, layer.Delete},
	faultbucket.Throttle:   {layer.Get, layer.Head, layer.Put, layer.Delete, layer.List},
	faultbucket.DiskFull:   {layer.Put},
	faultbucket.Slow:       {layer.Get, layer.Head, layer.Put, layer.Delete, layer.List},
	faultbucket.Stuck:      {layer.Get, layer.Head, layer.Put, layer.Delete, layer.List},
	faultbucket.StuckAfter: {layer.Put, layer.Delete},
	faultbucket.StaleList:  {layer.List},
	faultbucket.Truncate:   {layer.Get},
	faultbucket.Rot:        {layer.Get},
	faultbucket.OldTag:     {layer.Get},
}

// classes are the objects of a cluster, by the prefix of their keys, and the verbs with which
// the life of a cluster meets them. Seals are log objects; a page of its own needs a root
// that is much larger.
var classes = []struct {
	name, prefix string
	verbs        []layer.Verb
}{
	{"root", "meta/root", []layer.Verb{layer.Get, layer.Put}},
	{"log", "wal/", []layer.Verb{layer.Get, layer.Head, layer.Put, layer.Delete, layer.List}},
	{"segment", "seg/", []layer.Verb{layer.Get, layer.Put}},
	{"probe", "meta/probe/", []layer.Verb{layer.Get, layer.Put, layer.Delete, layer.List}},
}

// TestMatrix runs every cell. In each of them the fault must have happened.
func TestMatrix(t *testing.T) {
	cells := 0
	for kind := faultbucket.Before; kind <= faultbucket.OldTag; kind++ {
		for _, class := range classes {
			for _, verb := range class.verbs {
				if !has(verbs[kind], verb) {
					continue
				}
				if cells++; testing.Short() && cells%12 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s %s of %s", kind, verb, class.name), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { cell(t, kind, verb, class.prefix) })
				})
			}
		}
	}
	t.Logf("%d cells", cells)
}

func has(list []layer.Verb, v layer.Verb) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

func cell(t *testing.T, kind faultbucket.Kind, verb layer.Verb, prefix string) {
	l := newLife(t)
	n := 0
	rules := faultbucket.Rules(host.System(), faultbucket.Rule{Prefix: prefix, Verbs: []layer.Verb{verb}, Fault: faultbucket.Fault{Kind: kind, Delay: 1500 * time.Millisecond}})
	l.fault.SetPlan(func(c faultbucket.Call) (f faultbucket.Fault) {
		if f = rules(c); f.Kind != faultbucket.None {
			if n++; n%3 != 1 {
				return faultbucket.Fault{}
			}
		}
		return f
	})
	l.whole()
	if n == 0 {
		t.Error("it never happened: the life of the cluster has no such request")
	}
	l.recover()
}
