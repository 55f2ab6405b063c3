package command

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The database config shows the root in the words of MongoDB's config servers, so that
// sh.status() and whatever else reads it works: nothing is stored under these names.

// configNames are the collections of config, in the order in which they are listed.
var configNames = []string{
	"actionlog", "changelog", "chunks", "collections", "databases", "locks", "mongos", "settings", "shards", "tags", "version",
}

// virtual is the documents of a collection that shows the cluster, or those of them that a filter
// can match; false for any other. Each is good until the next one.
func (s *Commands) virtual(ctx context.Context, ns router.Namespace, filter bson.Raw, maxTime time.Duration) (all iter.Seq[bson.Raw], ok bool, err error) {
	if ns.Database != "config" {
		return nil, false, nil
	}
	st, err := s.router.State(ctx, maxTime)
	if err != nil {
		return nil, true, err
	}
	var docs []bson.Raw
	switch ns.Collection {
	case "chunks":
		return configChunks(st, filter), true, nil
	case "shards":
		docs = configShards(st)
	case "databases":
		docs = configDatabases(st)
	case "collections":
		docs = configCollections(st)
	case "tags":
		docs, err = configTags(st)
	case "settings":
		docs = configSettings(st)
	case "actionlog":
		docs = configActionlog(st)
	case "changelog":
		docs = configChangelog(st)
	case "version":
		docs = configVersion(st)
	case "mongos":
		docs = s.configMongos()
	}
	return slices.Values(docs), true, err
}

// shardHost is a shard as drivers and tools want to see it: a replica set and its member.
func shardHost(h *manifest.Shard) string {
	address := h.Address
	switch {
	case h.Status == manifest.ShardFree:
		address = "free:0" // nobody holds it, reads go to the bucket
	case address == "":
		address = "in-process:0"
	}
	return string(h.ID) + "/" + address
}

// whereIs is the host of a shard as config.shards has it: one with a location of its own shows
// that, as it was added.
func whereIs(st *manifest.State, h *manifest.Shard) string {
	if h.Location == 0 {
		return shardHost(h)
	}
	l, _ := st.Location(h.Location)
	return string(h.ID) + "/" + l.URL
}

func configShards(st *manifest.State) (docs []bson.Raw) {
	for _, h := range st.Shards() {
		b := build().AppendString("_id", string(h.ID)).AppendString("host", whereIs(st, h)).AppendInt32("state", 1)
		if len(h.Zones) > 0 {
			b.AppendArray("tags", stringArray(h.Zones...))
		}
		if _, wish := balancing.Draining(st, h.ID); wish || h.Status == manifest.ShardDraining {
			b.AppendBoolean("draining", true)
		}
		docs = append(docs, bson.Raw(b.Build()))
	}
	return docs
}

// configDatabases: no shard is a database's primary; tools want to see one, and get the
// first.
func configDatabases(st *manifest.State) (docs []bson.Raw) {
	primary := ""
	if shards := st.Shards(); len(shards) > 0 {
		primary = string(shards[0].ID)
	}
	for _, name := range st.Databases() {
		docs = append(docs, bson.Raw(build().
			AppendString("_id", name).AppendString("primary", primary).AppendBoolean("partitioned", true).Build()))
	}
	return docs
}

// epoch is what config shows as a collection's epoch: an ObjectId that is the same as long
// as the collection is.
func epoch(coll *manifest.Collection) (id bson.ObjectID) {
	copy(id[:], coll.UUID[:])
	return id
}

func configCollections(st *manifest.State) (docs []bson.Raw) {
	for _, coll := range st.Collections() {
		b := build().
			AppendString("_id", coll.Namespace()).
			AppendObjectID("lastmodEpoch", epoch(coll)).
			AppendDateTime("lastmod", coll.CreatedMillis).
			AppendTimestamp("timestamp", uint32(coll.CreatedMillis/1000), uint32(coll.ID)).
			AppendBinary("uuid", bson.TypeBinaryUUID, coll.UUID[:]).
			AppendDocument("key", coll.Key.BSON()).
			AppendBoolean("unique", coll.Unique)
		appendSwitches(b, coll)
		if !coll.Sharded {
			b.AppendBoolean("unsplittable", true)
		}
		docs = append(docs, bson.Raw(b.Build()))
	}
	return docs
}

func configTags(st *manifest.State) (docs []bson.Raw, err error) {
	ranges, err := router.ZoneRanges(st)
	for _, z := range ranges {
		id := build().AppendString("ns", z.Namespace).AppendDocument("min", z.Min).Build()
		docs = append(docs, bson.Raw(build().
			AppendDocument("_id", id).AppendString("ns", z.Namespace).AppendString("tag", z.Zone).
			AppendDocument("min", z.Min).AppendDocument("max", z.Max).Build()))
	}
	return docs, err
}

// configSettings are what somebody set. What is not there has its default: chunks are cut,
// merged and moved by themselves.
func configSettings(st *manifest.State) (docs []bson.Raw) {
	for _, kind := range []manifest.RecordKind{manifest.RecordBalancer, manifest.RecordSetting} {
		for _, r := range st.Records(kind) {
			if kind == manifest.RecordSetting || balancing.IsSetting(r.ID) {
				docs = append(docs, withID(r.ID, r.Body))
			}
		}
	}
	return docs
}

// withID is a record's body under its id.
func withID(id string, body bson.Raw) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "_id", id)
	if len(body) > 5 {
		for rest := []byte(body[4:]); ; {
			e, next, ok := bsoncore.ReadElement(rest)
			if !ok {
				break
			}
			if string(e.KeyBytes()) != "_id" {
				doc = append(doc, e...)
			}
			rest = next
		}
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// configChangelog is the root's history. A move is one entry there; tools count those of the
// shard that gave the chunk away, which say how it went.
func configChangelog(st *manifest.State) (docs []bson.Raw) {
	for i, h := range st.History() {
		if isAction(h.What) {
			continue
		}
		docs = append(docs, historyDoc(i, h, h.What, h.Detail))
		if h.What == "moveChunk.commit" {
			docs = append(docs, historyDoc(i, h, "moveChunk.from", appended(h.Detail, func(d []byte) []byte {
				return bsoncore.AppendStringElement(d, "note", "success")
			})))
		}
	}
	return docs
}

func configVersion(st *manifest.State) []bson.Raw {
	id := st.ClusterID()
	var cluster bson.ObjectID
	copy(cluster[:], id[:])
	return []bson.Raw{bson.Raw(build().AppendInt32("_id", 1).AppendObjectID("clusterId", cluster).Build())}
}

// configMongos shows the router that is asked. Routers write nothing anywhere, so that there can be
// any number of them at no cost, also one for each call of a function: there is no list of them.
func (s *Commands) configMongos() []bson.Raw {
	return []bson.Raw{bson.Raw(build().
		AppendString("_id", s.options.Address).
		AppendDateTime("ping", s.host.Wall().UnixMilli()).
		AppendInt64("up", int64((s.host.Mono()-s.started)/time.Second)).
		AppendBoolean("waiting", true).
		AppendString("mongoVersion", Version).Build())}
}
