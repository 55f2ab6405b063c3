package router

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// choose finds the row, and records it when the client may come again.
func (w *writing) choose(ctx context.Context, k *work) error {
	g, err := w.find(ctx, k)
	if err != nil {
		return err
	}
	if g == nil && k.Upsert {
		if g, err = w.newGoal(k, w.r.ids.value); err != nil {
			k.fail(err)
			return nil
		}
	}
	if g == nil {
		g = &goal{}
	}
	g.attempt = k.op.Attempt
	// Uncertain, with nothing chosen: the collection was given another key since.
	if w.retry != nil || k.uncertain {
		if g, err = w.intend(ctx, k, g); err != nil {
			return err
		}
	}
	return w.adopt(k, g)
}

// adopt makes the goal that counts k's.
func (w *writing) adopt(k *work, g *goal) (err error) {
	k.follow = false
	k.op.Attempt = g.attempt
	if g.direct != 0 {
		// An earlier try went to a chunk without a key; nobody knows which is its heir.
		k.direct, k.told = &manifest.ChunkAt{}, true
		return nil
	}
	if !g.id.IsZero() {
		if g, err = w.remake(k, g); err != nil {
			k.fail(err)
			return nil
		}
	}
	k.goal, k.direct = g, nil
	return nil
}

// remake makes the document of an upsert that another try of the client's made before. It is
// the same but for what depends on the time; with another key it is not used.
func (w *writing) remake(k *work, recorded *goal) (*goal, error) {
	g, err := w.newGoal(k, func() bson.RawValue { return recorded.id })
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(g.key, recorded.key) {
		return recorded, nil
	}
	g.attempt = recorded.attempt
	return g, nil
}

// find looks for a match: the first in k's order, in key order when it has none.
func (w *writing) find(ctx context.Context, k *work) (*goal, error) {
	rd := &read{Query: Query{Filter: k.Filter, Projection: onlyID, Limit: 1, First: 1}, ns: w.ns, filter: k.filter, sort: k.sort}
	if k.sort != nil {
		rd.Sort = k.Sort
	}
	exists, err := rd.prepare(ctx, w.a)
	if err != nil || !exists || len(rd.plan.Targets) == 0 {
		return nil, err
	}
	q := rd.request(2)
	q.Mode, q.KeyOrder, q.Sort, q.WithSortKey = rpc.Keys, 0, rd.Sort, k.sort != nil
	streams, err := w.r.scatter(ctx, w.a, rd, rd.plan.ByShard(), q)
	if err != nil {
		return nil, err
	}
	defer closeAll(ctx, streams)
	var best *goal
	var bestKey []byte
	for _, st := range streams {
		row, err := st.next(ctx, 1)
		if err != nil {
			return nil, fmt.Errorf("find a match for a write: %w: %w", err, errkind.StaleVersion)
		}
		if row == nil {
			continue
		}
		key, order, err := keyRow(row, k.sort != nil)
		if err != nil {
			return nil, err
		}
		if best == nil || string(order) < string(bestKey) {
			best, bestKey = &goal{key: key}, order
		}
	}
	return best, nil
}

// onlyID is the projection of a search whose documents nobody looks at.
var onlyID = bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1)))

// keyRow reads a row of a Keys read: its row key, and the key it is ordered by.
func keyRow(row bson.Raw, sorted bool) (key, order []byte, err error) {
	k, _ := document.Lookup(row, "k")
	_, key, ok := k.BinaryOK()
	order = key
	if sorted {
		s, _ := document.Lookup(row, "s")
		var isKey bool
		_, order, isKey = s.BinaryOK()
		ok = ok && isKey
	}
	if !ok {
		return nil, nil, fmt.Errorf("a shard answered %d bytes that are no {k, d}: %w", len(row), errkind.Corrupt)
	}
	return key, order, nil
}

// newGoal makes the document that an upsert inserts, and its row key.
func (w *writing) newGoal(k *work, newID func() bson.RawValue) (*goal, error) {
	doc, err := k.update.Upsert(nil, k.filter, newID)
	if err != nil {
		return nil, err
	}
	id, at, err := findID(doc)
	if err != nil {
		return nil, err
	}
	if at == 0 {
		return nil, mongoerr.New(mongoerr.NoSuchKey, "the document of the upsert has no _id")
	}
	if err := w.lacksKey(k, doc); err != nil {
		return nil, err
	}
	key, err := w.coll.Key.AppendKey(nil, doc)
	if err != nil {
		return nil, mongoerr.New(mongoerr.ShardKeyNotFound, "%v", err)
	}
	return &goal{key: key, id: id, doc: doc}, nil
}

// lacksKey says why an upsert that matched nothing does not insert doc: neither its filter
// nor its update gives a value to every field of the shard key. (An insert that says nothing
// of a field means null; an upsert that does is nearly always a mistyped filter.)
func (w *writing) lacksKey(k *work, doc bson.Raw) error {
	missing := w.coll.Key.Missing(doc)
	if !w.coll.Sharded || len(missing) == 0 {
		return nil
	}
	start, filter := bsoncore.AppendDocumentStart(nil)
	if !isEmpty(k.Filter) {
		filter = append(filter, k.Filter[4:len(k.Filter)-1]...)
	}
	for _, path := range missing {
		filter = bsoncore.AppendStringElement(filter, path, "<value>")
	}
	filter, _ = bsoncore.AppendDocumentEnd(filter, start)
	return mongoerr.New(mongoerr.ShardKeyNotFound, "Failed to target upsert by query :: could not extract exact shard key: no document of %s matches, "+
		"and to insert one, filter or update must give a value to %s of the shard key %v; use the filter %s",
		w.ns, strings.Join(missing, ", "), w.coll.Key, bson.Raw(filter))
}
