package command

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Some helpers of mongosh are plain updates of config: sh.disableBalancing sets noBalance in
// config.collections, sh.stopAutoMerger sets enabled in config.settings, and for a window
// there is no helper at all. These updates are taken, field by field; whatever else is
// written to config is refused, with the command that does it.

// writable are the fields of config.settings, by document.
var writable = map[string][]string{
	balancing.SettingsID: {"stopped", "mode", "activeWindow", "timeZone", "policy", "_secondaryThrottle", "_waitForDelete", "attemptToBalanceJumboChunks", "by", "at"},
	"chunksize":          {"value"},
	"autosplit":          {"enabled"},
	"automerge":          {"enabled"},
	"compaction":         {"bytesPerSecond", "requestsPerSecond"},
	"history":            {"keepSeconds", "everySeconds"},
}

// instead is what to type for a write to config that is not taken.
var instead = map[string]string{
	"shards":      "sh.addShard and db.adminCommand({ removeShard: NAME }) add and remove shards, sh.addShardToZone makes one a member of a zone",
	"databases":   "sh.enableSharding records a database, db.dropDatabase() drops one",
	"collections": "sh.enableBalancing, sh.disableBalancing, sh.enableAutoMerger and configureCollectionBalancing change what can be changed: updates of noBalance, enableAutoMerge, noAutoSplit, maxChunkSizeBytes and splitWithinKey by _id",
	"chunks":      "sh.splitAt, sh.moveChunk and mergeChunks change chunks; nothing needs to be repaired by hand here, clearJumboFlag has a cut tried again",
	"tags":        "sh.updateZoneKeyRange and sh.removeRangeFromZone change zones",
	"locks":       "there are no locks",
	"settings":    "updates of the documents balancer, chunksize, autosplit, automerge, compaction and history by _id are possible",
	"mongos":      "routers are not recorded",
	"changelog":   "it is the root's history",
	"actionlog":   "it is the root's history",
	"version":     "granary doctor tells about formats",
}

// configRefusal is the error of a write to config that is not taken.
func configRefusal(ns router.Namespace, what string) error {
	text := instead[ns.Collection]
	if text == "" {
		text = "config shows the cluster's root, and has no collections of yours: use another database"
	}
	name := strings.TrimSuffix(ns.String(), ".")
	return mongoerr.New(mongoerr.IllegalOperation, "%s is not possible on %s: %s", what, name, text)
}

// updateConfig runs the statements of an update of config.
func (s *Commands) updateConfig(ctx context.Context, c *call, docs []bson.Raw) (bson.Raw, error) {
	ns := c.namespace()
	if c.err != nil {
		return nil, c.err
	}
	var results []router.Result
	for _, d := range docs {
		st, err := c.updateStatement(d)
		if err != nil {
			return nil, err
		}
		r, err := s.configStatement(ctx, c, ns, st)
		if err != nil {
			var m *mongoerr.Error
			if !errors.As(err, &m) {
				m = router.MongoError(err)
			}
			r = router.Result{}
			r.Err = m
		}
		r.Done = true
		if results = append(results, r); err != nil && (absent(c.value("ordered")) || c.bool("ordered")) {
			break
		}
	}
	return writeReply(c.cmd.Name, results), nil
}

func (s *Commands) configStatement(ctx context.Context, c *call, ns router.Namespace, st router.Statement) (router.Result, error) {
	id, ok := st.Filter.Lookup("_id").StringValueOK()
	if es, _ := st.Filter.Elements(); !ok || len(es) != 1 {
		return router.Result{}, mongoerr.New(mongoerr.IllegalOperation, "updates of %s name one document by its _id: { _id: \"...\" }", ns)
	}
	u, err := document.ParseUpdate(st.Update, document.UpdateOptions{ArrayFilters: st.ArrayFilters, NowMillis: s.host.Wall().UnixMilli()})
	if err != nil {
		return router.Result{}, err
	}
	switch {
	case ns.Collection == "settings" && writable[id] != nil:
		return s.updateSetting(ctx, c, id, u, st.Upsert)
	case ns.Collection == "collections":
		return s.updateCollection(ctx, c, id, u)
	}
	return router.Result{}, configRefusal(ns, "an update of "+id)
}

// updateSetting changes a document of config.settings.
func (s *Commands) updateSetting(ctx context.Context, c *call, id string, u *document.Update, upsert bool) (x router.Result, err error) {
	kind := manifest.RecordSetting
	if id == balancing.SettingsID {
		kind = manifest.RecordBalancer
	}
	err = s.router.AlterRecord(ctx, kind, id, func(body bson.Raw, exists bool) (bson.Raw, error) {
		x = router.Result{}
		if !exists && !upsert {
			return nil, nil
		}
		doc, changed, err := u.Apply(nil, withID(id, body))
		if err != nil {
			return nil, err
		}
		x.N = 1
		if !exists {
			x.UpsertedID = bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, id)}
		} else if changed {
			x.Modified = 1
		}
		if exists && !changed {
			return nil, nil
		}
		return s.setting(c, id, body, doc)
	}, c.maxTime)
	return x, err
}

// setting is the body of a record that a document of config.settings becomes, once it is known
// to make sense.
func (s *Commands) setting(c *call, id string, was, doc bson.Raw) (bson.Raw, error) {
	if err := onlyFields("config.settings "+id, doc, writable[id]); err != nil {
		return nil, err
	}
	body := withoutID(doc)
	switch id {
	case balancing.SettingsID:
		if _, err := balancing.ParseSettings(body); err != nil {
			return nil, err
		}
		if on := switched(was, body); on != "" {
			body = restamped(body, on, c.who(), s.host.Wall().UnixMilli())
		}
	case "chunksize":
		n, ok := asInt(doc.Lookup("value"))
		if !ok || n < manifest.ChunkSizeMin>>20 || n > manifest.ChunkSizeMax>>20 {
			return nil, mongoerr.New(mongoerr.BadValue, "the value of chunksize is a size in MB, 1 to %d: { $set: { value: 64 } }", manifest.ChunkSizeMax>>20)
		}
	case "compaction":
		if err := atLeast(doc, "bytesPerSecond", manifest.CompactionBytesMin); err != nil {
			return nil, err
		}
		return body, atLeast(doc, "requestsPerSecond", manifest.CompactionRequestsMin)
	case "history":
		if keep, ok := asInt(doc.Lookup("keepSeconds")); !ok || keep != 0 && keep < int64(manifest.HistoryKeepMin/time.Second) {
			return nil, mongoerr.New(mongoerr.BadValue, "keepSeconds of history is a number from %d on, or 0 for none: { $set: { keepSeconds: 86400 } }", manifest.HistoryKeepMin/time.Second)
		}
		if every, ok := asInt(doc.Lookup("everySeconds")); !absent(doc.Lookup("everySeconds")) && (!ok || every < int64(manifest.MomentEveryMin/time.Second)) {
			return nil, mongoerr.New(mongoerr.BadValue, "everySeconds of history is a number from %d on: { $set: { everySeconds: 600 } }", manifest.MomentEveryMin/time.Second)
		}
	default:
		if _, ok := doc.Lookup("enabled").BooleanOK(); !ok {
			return nil, mongoerr.New(mongoerr.BadValue, "enabled of %s is true or false: { $set: { enabled: false } }", id)
		}
	}
	return body, nil
}

// atLeast refuses a field of the setting compaction that is too small, or no number.
func atLeast(doc bson.Raw, field string, least int64) error {
	v := doc.Lookup(field)
	if n, ok := asInt(v); absent(v) || ok && n >= least {
		return nil
	}
	return mongoerr.New(mongoerr.BadValue, "%s of compaction is a number from %d on, for each process that merges segments: { $set: { %s: %d } }", field, least, field, 16*least)
}

// updateCollection changes the switches of a collection, through its document.
func (s *Commands) updateCollection(ctx context.Context, c *call, id string, u *document.Update) (x router.Result, err error) {
	db, name, _ := strings.Cut(id, ".")
	ns := router.Namespace{Database: db, Collection: name}
	if err := checkNamespace(ns); err != nil {
		return x, err
	}
	err = s.router.AlterBalancing(ctx, ns, func(coll *manifest.Collection) error {
		x = router.Result{}
		x.N = 1
		doc, changed, err := u.Apply(nil, switches(coll))
		if err != nil || !changed {
			return err
		}
		if err := onlyFields("config.collections", doc, switchNames); err != nil {
			return err
		}
		x.Modified = 1
		return flip(coll, doc, s.host.Wall().UnixMilli())
	}, c.maxTime)
	var m *mongoerr.Error
	if errors.As(err, &m) && m.Code == mongoerr.NamespaceNotFound {
		return router.Result{}, nil // as an update that matches nothing
	}
	return x, err
}

// switchNames are what can be changed in a document of config.collections.
var switchNames = []string{"noBalance", "permitMigrations", "enableAutoMerge", "noAutoSplit", "maxChunkSizeBytes", splitWithinKey}

// switches are these fields of a collection; noBalance is always there.
func switches(coll *manifest.Collection) bson.Raw {
	return bson.Raw(appendSwitches(build().AppendString("_id", coll.Namespace()), coll).Build())
}

func appendSwitches(b *bsoncore.DocumentBuilder, coll *manifest.Collection) *bsoncore.DocumentBuilder {
	b.AppendBoolean("noBalance", coll.NoBalance)
	for _, name := range switchNames[1:] {
		if v, err := coll.Options.LookupErr(name); err == nil {
			b.AppendValue(name, core(v))
		}
	}
	if coll.SplitWithinKey {
		b.AppendBoolean(splitWithinKey, true)
	}
	return b
}

// flip gives a collection the switches of a document.
func flip(coll *manifest.Collection, doc bson.Raw, nowMillis int64) error {
	read := func(name string, other bool) bool {
		v := doc.Lookup(name)
		if on, ok := asBool(v); ok {
			return on
		}
		return other
	}
	size := int64(0)
	if v := doc.Lookup("maxChunkSizeBytes"); !absent(v) {
		n, ok := asInt(v)
		if !ok || n < manifest.ChunkSizeMin || n > manifest.ChunkSizeMax {
			return mongoerr.New(mongoerr.BadValue, "maxChunkSizeBytes is a number of bytes from %d to %d", manifest.ChunkSizeMin, manifest.ChunkSizeMax)
		}
		size = n
	}
	coll.NoBalance = read("noBalance", false)
	coll.Options = manifest.WithMigrations(coll.Options, read("permitMigrations", true))
	coll.Options = manifest.WithAutoMerge(coll.Options, read("enableAutoMerge", true))
	coll.Options = manifest.WithAutoSplit(coll.Options, !read("noAutoSplit", false))
	coll.Options = manifest.WithChunkSize(coll.Options, size)
	return switchWithinKey(coll, read(splitWithinKey, false), nowMillis)
}

// onlyFields refuses fields that mean nothing.
func onlyFields(of string, doc bson.Raw, names []string) error {
	es, err := doc.Elements()
	if err != nil {
		return err
	}
	for _, e := range es {
		if k := e.Key(); k != "_id" && !slices.Contains(names, k) {
			return mongoerr.New(mongoerr.BadValue, "%s has no field %s that can be set: there are %s", of, k, strings.Join(names, ", "))
		}
	}
	return nil
}

// switched is the mode that an update of the balancer's settings means, when it starts or
// stops it; "": neither. There are two fields for it, and people set one of them.
func switched(was, now bson.Raw) string {
	stopped := func(doc bson.Raw) bool {
		on, _ := doc.Lookup("stopped").BooleanOK()
		return on
	}
	before, _ := balancing.ParseSettings(was)
	after, _ := balancing.ParseSettings(now)
	switch {
	case stopped(now) != stopped(was) && stopped(now), stopped(now) == stopped(was) && !before.Stopped && after.Stopped:
		return "off"
	case stopped(now) != stopped(was), before.Stopped && !after.Stopped:
		return "full"
	}
	return ""
}

// restamped is the settings of the balancer in a mode, with who chose it, and when.
func restamped(body bson.Raw, mode, by string, atMillis int64) bson.Raw {
	kept := without(body, "stopped", "mode", "by", "at")
	return appended(kept, func(doc []byte) []byte {
		doc = bsoncore.AppendStringElement(bsoncore.AppendBooleanElement(doc, "stopped", mode == "off"), "mode", mode)
		return bsoncore.AppendDateTimeElement(bsoncore.AppendStringElement(doc, "by", by), "at", atMillis)
	})
}

func withoutID(doc bson.Raw) bson.Raw { return without(doc, "_id") }

// without is a document without some fields.
func without(doc bson.Raw, names ...string) bson.Raw {
	return appended(bson.Raw(build().Build()), func(out []byte) []byte {
		es, _ := doc.Elements()
		for _, e := range es {
			if !slices.Contains(names, e.Key()) {
				out = append(out, e...)
			}
		}
		return out
	})
}

// appended is a document with more elements.
func appended(doc bson.Raw, more func([]byte) []byte) bson.Raw {
	start, out := bsoncore.AppendDocumentStart(nil)
	out = more(append(out, doc[4:len(doc)-1]...))
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}
