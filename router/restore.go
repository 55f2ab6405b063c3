package router

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A restore into a cluster that is used brings collections back beside those there are: each is
// written under a name of its own, and when all of them are whole, one commit gives them their names,
// and drops what had these. Whoever reads meanwhile sees the one or the other. What was written to a
// collection that is replaced is gone then, but where the past is kept it can be had back.

// Source is where collections come back from: a snapshot of this cluster, or a backup of any.
type Source struct {
	State *manifest.State
	// Read calls put with all documents of a collection of State, some at a time.
	Read func(ctx context.Context, ns Namespace, put func([]bson.Raw) error) error
}

// Snapshot is a pin as a source; then is its state.
func (r *Router) Snapshot(pin manifest.Pin, then *manifest.State) Source {
	return Source{State: then, Read: func(ctx context.Context, ns Namespace, put func([]bson.Raw) error) error {
		cur, err := r.Find(ctx, ns, Query{At: pin.Version, First: restoreDocs})
		if err != nil {
			return err
		}
		defer cur.Close(context.WithoutCancel(ctx))
		for {
			docs, err := cur.Batch(ctx, restoreDocs, restoreBytes)
			if err != nil || len(docs) == 0 {
				return err
			}
			if err := put(docs); err != nil {
				return err
			}
		}
	}}
}

// Stored is a state whose segments a store has, such as a backup's, as a source.
func Stored(state *manifest.State, store *reader.Store) Source {
	return Source{State: state, Read: func(ctx context.Context, ns Namespace, put func([]bson.Raw) error) error {
		c := state.CollectionByName(ns.Database, ns.Collection)
		for chunk := range state.Chunks(c.ID) {
			if err := readChunk(ctx, store, chunk, put); err != nil {
				return fmt.Errorf("read chunk %d of %s: %w", chunk.ID, ns, err)
			}
		}
		return nil
	}}
}

func readChunk(ctx context.Context, store *reader.Store, chunk *manifest.Chunk, put func([]bson.Raw) error) error {
	it := store.Scan(ctx, reader.View{Chunk: chunk}, shardkey.Range{}, false)
	defer it.Rest()
	var docs []bson.Raw
	size := 0
	for it.Next(ctx) {
		doc := bytes.Clone(it.Row().Doc)
		docs, size = append(docs, doc), size+len(doc)
		if len(docs) == restoreDocs || size >= restoreBytes {
			if err := put(docs); err != nil {
				return err
			}
			docs, size = docs[:0], 0
		}
	}
	if it.Err() != nil || len(docs) == 0 {
		return it.Err()
	}
	return put(docs)
}

// SnapshotOf finds a snapshot to restore from; see PinOf.
func (r *Router) SnapshotOf(ctx context.Context, name string, maxTime time.Duration) (pin manifest.Pin, src Source, err error) {
	s, err := r.State(ctx, maxTime)
	if err == nil {
		pin, err = PinOf(s, name)
	}
	if err != nil {
		return pin, src, err
	}
	then, err := r.root.Pinned(ctx, pin.Version)
	return pin, r.Snapshot(pin, then), err
}

// Batches of a restore.
const (
	restoreDocs  = 1000
	restoreBytes = 8 << 20
)

// Restoring is what is to come back.
type Restoring struct {
	Source Source
	// From is the collection; zero: all that the source has.
	From Namespace
	// As is its name from now on; zero: the one it had.
	As Namespace
	// Replace: what has its name now is dropped, in the commit that brings it back.
	Replace bool
	Dry     bool // only look
	// Progress is told of each collection when it is written; nil: nobody is.
	Progress func(RestoredCollection)
	MaxTime  time.Duration
}

// RestoredCollection is one that came back, or would.
type RestoredCollection struct {
	NS        Namespace
	Documents int64 // in a dry run as the root counts them
	Replaced  bool  // in the place of another
}

// Restore brings collections back, all or none. Errors: mongoerr NamespaceNotFound, NamespaceExists
// when something would be replaced that is not to be, with all of it; when the outcome of the last
// commit is not known, it says so.
func (r *Router) Restore(ctx context.Context, x Restoring) (list []RestoredCollection, err error) {
	now, err := r.State(ctx, x.MaxTime)
	if err != nil {
		return nil, err
	}
	if list, err = x.plan(now); err != nil || x.Dry {
		return list, err
	}
	w := restoring{Restoring: x, list: list, ids: make(map[Namespace]manifest.CollectionID)}
	tag := r.host.ID16()
	for i, c := range list {
		temporary := Namespace{Database: c.NS.Database, Collection: c.NS.Collection + ".restoring." + hex.EncodeToString(tag[:4])}
		w.built = append(w.built, temporary)
		if list[i].Documents, err = r.build(ctx, &w, now, i); err != nil {
			break
		}
		if x.Progress != nil {
			x.Progress(list[i])
		}
	}
	if err == nil {
		err = r.name(ctx, &w)
	}
	if err == nil {
		return list, nil
	}
	// Should the last commit still come, it finds nothing to name.
	if left := r.discard(ctx, &w); left != nil {
		return nil, fmt.Errorf("%w; and whether anything came back could not be found out: %w", err, left)
	}
	if w.named(r.root.State()) {
		return list, nil
	}
	return nil, fmt.Errorf("nothing came back: %w", err)
}

// restoring is a Restore under way.
type restoring struct {
	Restoring
	list  []RestoredCollection
	built []Namespace // what each is called until it has its name
	// ids are those of what was built, by the names that they are to have.
	ids map[Namespace]manifest.CollectionID
}

// named reports whether the names changed hands.
func (w *restoring) named(s *manifest.State) bool {
	for _, x := range w.list {
		c := s.CollectionByName(x.NS.Database, x.NS.Collection)
		if c == nil || c.ID != w.ids[x.NS] {
			return false
		}
	}
	return true
}

// nameThen is the name in the source of what comes back under a name.
func (x *Restoring) nameThen(ns Namespace) Namespace {
	if x.From != (Namespace{}) {
		return x.From
	}
	return ns
}

// plan is what comes back, and refuses what must not be.
func (x *Restoring) plan(now *manifest.State) (list []RestoredCollection, err error) {
	if x.As == (Namespace{}) {
		x.As = x.From
	}
	var taken []string
	for _, c := range x.Source.State.Collections() {
		ns := Namespace{Database: c.Database, Collection: c.Name}
		if x.From != (Namespace{}) {
			if ns != x.From {
				continue
			}
			ns = x.As
		}
		there := now.CollectionByName(ns.Database, ns.Collection) != nil
		if there {
			taken = append(taken, ns.String())
		}
		list = append(list, RestoredCollection{NS: ns, Documents: rowsOf(x.Source.State, c), Replaced: there})
	}
	switch {
	case len(list) == 0 && x.From != (Namespace{}):
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "%s is not in it", x.From)
	case len(taken) > 0 && !x.Replace:
		return nil, mongoerr.New(mongoerr.NamespaceExists, "already there: %s. Type --replace to have it replaced, in one commit, or --as DATABASE.COLLECTION to have one collection under another name", strings.Join(taken, ", "))
	}
	return list, nil
}

// build writes one collection under a name of its own.
func (r *Router) build(ctx context.Context, w *restoring, now *manifest.State, i int) (int64, error) {
	to, from := w.list[i].NS, w.nameThen(w.list[i].NS)
	then := w.Source.State.CollectionByName(from.Database, from.Collection)
	n := likeThen(w.Source.State, then)
	if c := now.CollectionByName(to.Database, to.Collection); c != nil && c.Sharded && c.Key.Equal(then.Key) {
		n.Zones = c.Zones // what may be where is decided now
	}
	if err := r.Create(ctx, w.built[i], n, w.MaxTime); err != nil {
		return 0, err
	}
	return r.copyFrom(ctx, w.Source, from, w.built[i], w.MaxTime)
}

// copyFrom writes the documents of a source, and says how many were.
func (r *Router) copyFrom(ctx context.Context, src Source, from, to Namespace, maxTime time.Duration) (n int64, err error) {
	err = src.Read(ctx, from, func(docs []bson.Raw) error {
		ws := Writes{Statements: make([]Statement, len(docs)), MaxTime: maxTime}
		for i, d := range docs {
			ws.Statements[i] = Statement{Kind: rpc.Insert, Doc: d, Stmt: int32(i)}
		}
		results, err := r.Write(ctx, to, ws)
		if err != nil {
			return err
		}
		for i := range results {
			if e := results[i].Err; e != nil {
				return e
			}
		}
		n += int64(len(docs))
		return nil
	})
	return n, err
}

// name gives what was built its names, in the commit that drops what has them.
func (r *Router) name(ctx context.Context, w *restoring) error {
	ctx, a, cancel := r.begin(ctx, w.MaxTime)
	defer cancel()
	_, err := r.drop(ctx, a, func(s *manifest.State) (x condemned, err error) {
		for i, to := range w.list {
			c := s.CollectionByName(w.built[i].Database, w.built[i].Collection)
			if c == nil {
				return x, mongoerr.New(mongoerr.NamespaceNotFound, "%s, which was to become %s, was dropped meanwhile", w.built[i], to.NS)
			}
			w.ids[to.NS] = c.ID
			if there := s.CollectionByName(to.NS.Database, to.NS.Collection); there != nil {
				if !w.Replace {
					return x, mongoerr.New(mongoerr.NamespaceExists, "%s was created meanwhile", to.NS)
				}
				x.gone = append(x.gone, there)
			}
			x.after = append(x.after, manifest.RenameCollection{ID: c.ID, Database: to.NS.Database, Name: to.NS.Collection})
		}
		return x, nil
	})
	return err
}

// discard drops what was built for nothing, as far as it is there, and reads the root.
func (r *Router) discard(ctx context.Context, w *restoring) error {
	ctx, a, cancel := r.begin(context.WithoutCancel(ctx), 0)
	defer cancel()
	_, err := r.drop(ctx, a, func(s *manifest.State) (x condemned, err error) {
		for _, ns := range w.built {
			if c := s.CollectionByName(ns.Database, ns.Collection); c != nil {
				x.gone = append(x.gone, c)
			}
		}
		return x, nil
	})
	return err
}
