package command

import (
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// topBroadcasts is how many kinds of broadcasts serverStatus shows.
const topBroadcasts = 20

// appendSharding adds how far operations reached: shardingStatistics in MongoDB's form, over
// all collections, and by collection. Counts and distincts stand under aggregate there.
func (s *Commands) appendSharding(b *bsoncore.DocumentBuilder, granary *bsoncore.DocumentBuilder) {
	all := s.router.Targeting()
	hosts := build()
	for _, x := range []struct {
		name  string
		verbs []router.Verb
	}{
		{"find", []router.Verb{router.FindVerb}},
		{"insert", []router.Verb{router.InsertVerb}},
		{"update", []router.Verb{router.UpdateVerb}},
		{"delete", []router.Verb{router.DeleteVerb}},
		{"aggregate", []router.Verb{router.CountVerb, router.DistinctVerb}},
	} {
		var one, some, every, unsharded int64
		for i := range all {
			for _, v := range x.verbs {
				n := &all[i].Operations[v]
				if !all[i].Sharded {
					unsharded += n[router.OneShard] + n[router.SomeShards] + n[router.AllShards]
					continue
				}
				one, some, every = one+n[router.OneShard], some+n[router.SomeShards], every+n[router.AllShards]
			}
		}
		hosts.AppendDocument(x.name, build().
			AppendInt64("allShards", every).AppendInt64("manyShards", some).
			AppendInt64("oneShard", one).AppendInt64("unsharded", unsharded).Build())
	}
	b.AppendDocument("shardingStatistics", build().AppendDocument("numHostsTargeted", hosts.Build()).Build())
	granary.AppendArray("targeting", array(s.targeting(all))).
		AppendArray("broadcasts", array(s.broadcasts()))
}

// targeting is by collection, how many operations reached how far, and the part of them that
// did not go to all shards.
func (s *Commands) targeting(all []router.Targeting) (docs []bson.Raw) {
	for i := range all {
		t := &all[i]
		var reach [3]int64
		for _, n := range t.Operations {
			for r, k := range n {
				reach[r] += k
			}
		}
		docs = append(docs, bson.Raw(build().
			AppendString("ns", namespaceOf(t.Namespace)).
			AppendInt64("oneShard", reach[router.OneShard]).
			AppendInt64("manyShards", reach[router.SomeShards]).
			AppendInt64("allShards", reach[router.AllShards]).
			AppendDouble("targetedShare", t.Share()).Build()))
	}
	return docs
}

func (s *Commands) broadcasts() (docs []bson.Raw) {
	for _, k := range s.router.Broadcasts(topBroadcasts) {
		docs = append(docs, bson.Raw(build().
			AppendString("ns", namespaceOf(k.Namespace)).
			AppendString("op", k.Verb.String()).
			AppendString("shape", k.Shape).
			AppendInt64("count", k.Count).Build()))
	}
	return docs
}

// namespaceOf names the collections beyond those that are counted by themselves.
func namespaceOf(ns router.Namespace) string {
	if ns == (router.Namespace{}) {
		return "(others)"
	}
	return ns.String()
}
