package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// A unique index begins with the shard key, therefore documents that it keeps apart have one
// shard-key value: they are in one chunk, and whoever stores one of them holds the latch of
// that value. Under it, the other documents of the value are read, and looked at. That costs
// no index and no message; it costs a look at as many documents as there are of one shard-key
// value, which is none or one where the index is the shard key itself.

// unique is a rule that documents of one shard-key value keep.
type unique struct {
	name    string // "": that of its fields
	pattern shardkey.Pattern
	spec    bson.Raw
}

// uniquesOf are the rules of a collection beyond the one that row keys keep by themselves.
func uniquesOf(coll *manifest.Collection) (list []unique) {
	if coll.Key.HasID() {
		return nil // what begins with the shard key has the whole row key in it
	}
	for _, x := range coll.Indexes {
		if yes, _ := x.Spec.Lookup("unique").BooleanOK(); !yes {
			continue
		}
		key, _ := x.Spec.Lookup("key").DocumentOK()
		p, err := shardkey.ParseIndexPattern(key)
		if err != nil || p.HasID() || !leads(coll.Key, p) {
			continue // it was checked when it was made
		}
		list = append(list, unique{name: x.Name, pattern: p, spec: x.Spec})
	}
	if coll.Unique && !slices.ContainsFunc(list, func(u unique) bool { return u.pattern.Equal(coll.Key) && u.whole() }) {
		spec := bsoncore.NewDocumentBuilder().AppendDocument("key", bsoncore.Document(coll.Key.BSON())).Build()
		list = append(list, unique{pattern: coll.Key, spec: bson.Raw(spec)})
	}
	return list
}

// whole reports whether every document is in the index.
func (u *unique) whole() bool {
	sparse, _ := u.spec.Lookup("sparse").BooleanOK()
	return !sparse && u.spec.Lookup("partialFilterExpression").Type == 0
}

// leads reports whether an index begins with the fields of a key, in any direction.
func leads(key, index shardkey.Pattern) bool {
	return len(key.Fields) <= len(index.Fields) && slices.EqualFunc(key.Fields, index.Fields[:len(key.Fields)], func(a, b shardkey.Field) bool {
		return a.Path == b.Path && !a.Hashed && !b.Hashed
	})
}

// keys are the index keys of a document. Errors: *mongoerr.Error.
func (u *unique) keys(doc bson.Raw) ([][]byte, error) { return document.IndexKeys(u.spec, doc) }

// clash is the key that both documents have in the index, or nil.
func (u *unique) clash(mine [][]byte, other bson.Raw) ([]byte, error) {
	if len(mine) == 0 {
		return nil, nil
	}
	theirs, err := u.keys(other)
	for _, k := range theirs {
		if slices.ContainsFunc(mine, func(m []byte) bool { return bytes.Equal(m, k) }) {
			return k, err
		}
	}
	return nil, err
}

// sameRules reports whether two states of a collection ask the same of its documents.
func sameRules(a, b *manifest.Collection) bool {
	return a == b || a.Unique == b.Unique && bytes.Equal(a.Options, b.Options) &&
		slices.EqualFunc(a.Indexes, b.Indexes, func(x, y manifest.Index) bool { return bytes.Equal(x.Spec, y.Spec) })
}

// keepsUnique makes sure that doc, to be stored at path in the chunk that in finds, may be
// there. before is what it replaces, or nil: index keys that stay are not looked at again.
// Requires: the latch of path. Errors: *mongoerr.Error DuplicateKey; those of a read, errStale.
func (x *exec) keepsUnique(ctx context.Context, path []byte, doc, before bson.Raw) error {
	for i := range x.uniques {
		u := &x.uniques[i]
		mine, err := u.keys(doc)
		if err != nil {
			return err
		}
		if before != nil {
			if was, err := u.keys(before); err == nil && slices.EqualFunc(was, mine, bytes.Equal) {
				continue
			}
		}
		if len(mine) == 0 {
			continue
		}
		if err := x.noClash(ctx, u, mine, path, doc); err != nil {
			return err
		}
	}
	return nil
}

// noClash looks at the other documents of a shard-key value.
func (x *exec) noClash(ctx context.Context, u *unique, mine [][]byte, path []byte, doc bson.Raw) error {
	key, err := x.coll.Key.AppendShardKey(nil, doc)
	if err != nil {
		return err
	}
	for {
		x.s.mu.Lock()
		c := x.s.owned(x.r.Collection, path[4:])
		if c == nil {
			x.s.mu.Unlock()
			return errStale
		}
		v, last := x.s.pendingView(c)
		x.s.mu.Unlock()
		found, err := x.clashIn(ctx, v, u, mine, path, shardkey.Range{Min: key, Max: shardkey.PrefixEnd(key)})
		if err != nil {
			if err = x.s.missing(ctx, err, v.Chunk); errors.Is(err, errOtherRefs) {
				continue
			}
			return err
		}
		if !found {
			return nil
		}
		x.s.mu.Lock()
		x.depend(last)
		x.s.mu.Unlock()
		x.unproved = true
		return duplicateIn(x.coll, u.name, u.pattern, doc)
	}
}

// clashIn reports whether another row of the range has one of the keys in the index.
func (x *exec) clashIn(ctx context.Context, v reader.View, u *unique, mine [][]byte, path []byte, r shardkey.Range) (found bool, err error) {
	err = x.s.w.turns.read(ctx, func() error {
		it := x.s.w.store.Scan(ctx, v, r, false)
		defer it.Rest()
		for it.Next(ctx) {
			if bytes.Equal(it.Row().Key, path[4:]) {
				continue
			}
			k, err := u.clash(mine, it.Row().Doc)
			if err != nil {
				return fmt.Errorf("read chunk %d: %w: a document that breaks a rule of its index: %w", v.Chunk.ID, errkind.Corrupt, err)
			}
			if k != nil {
				found = true
				return nil
			}
		}
		return it.Err()
	})
	return found, err
}
