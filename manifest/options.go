package manifest

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// requireShardKeyOption is true for a collection that takes no document without all fields
// of its shard key.
const requireShardKeyOption = "requireShardKey"

// RequiresShardKey reports whether owners refuse documents that lack a field of the shard
// key. Without this option such a field counts as null.
func (c *Collection) RequiresShardKey() bool {
	if len(c.Options) == 0 {
		return false
	}
	yes, _ := c.Options.Lookup(requireShardKeyOption).BooleanOK()
	return yes
}

// WithRequireShardKey is options with that wish or, when it is false, without it.
func WithRequireShardKey(options bson.Raw, require bool) bson.Raw {
	plain := withoutOption(options, requireShardKeyOption)
	if !require {
		return plain
	}
	return withOption(plain, bsoncore.AppendBooleanElement(nil, requireShardKeyOption, true))
}

const (
	chunkSizeOption  = "chunkSizeBytes"   // what its chunks are meant to be
	migrationsOption = "permitMigrations" // false: no chunk changes its shard
	autoMergeOption  = "enableAutoMerge"  // false: neighbours are left alone
)

// ChunkSizeBytes is the size that the collection's chunks are meant to have; 0: the cluster's.
func (c *Collection) ChunkSizeBytes() int64 {
	n, _ := c.option(chunkSizeOption).AsInt64OK()
	return n
}

// WithChunkSize is options with that size or, when it is 0, without one.
func WithChunkSize(options bson.Raw, bytes int64) bson.Raw {
	plain := withoutOption(options, chunkSizeOption)
	if bytes == 0 {
		return plain
	}
	return withOption(plain, bsoncore.AppendInt64Element(nil, chunkSizeOption, bytes))
}

// PermitsMigrations reports whether chunks of the collection may change their shard.
func (c *Collection) PermitsMigrations() bool { return c.unlessFalse(migrationsOption) }

// WithMigrations is options with the wish about moves.
func WithMigrations(options bson.Raw, permit bool) bson.Raw {
	return withUnlessFalse(options, migrationsOption, permit)
}

// AutoMerges reports whether neighbours among the collection's chunks may be merged by
// themselves.
func (c *Collection) AutoMerges() bool { return c.unlessFalse(autoMergeOption) }

// WithAutoMerge is options with the wish about merges.
func WithAutoMerge(options bson.Raw, merge bool) bson.Raw {
	return withUnlessFalse(options, autoMergeOption, merge)
}

func (c *Collection) option(name string) bson.RawValue {
	if len(c.Options) == 0 {
		return bson.RawValue{}
	}
	return c.Options.Lookup(name)
}

// unlessFalse is a switch that is on unless it was turned off.
func (c *Collection) unlessFalse(name string) bool {
	on, known := c.option(name).BooleanOK()
	return on || !known
}

func withUnlessFalse(options bson.Raw, name string, on bool) bson.Raw {
	plain := withoutOption(options, name)
	if on {
		return plain
	}
	return withOption(plain, bsoncore.AppendBooleanElement(nil, name, false))
}

// withOption is options and one more element.
func withOption(options bson.Raw, element []byte) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	if len(options) > 5 {
		doc = append(doc, options[4:len(options)-1]...)
	}
	doc = append(doc, element...)
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// withoutOption is options without the element of that name; nil when nothing is left.
func withoutOption(options bson.Raw, name string) bson.Raw {
	if len(options) == 0 {
		return options
	}
	if _, err := options.LookupErr(name); err != nil {
		return options
	}
	start, doc := bsoncore.AppendDocumentStart(nil)
	kept := 0
	for rest := []byte(options[4:]); ; {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			break
		}
		if e.Key() != name {
			doc = append(doc, e...)
			kept++
		}
		rest = next
	}
	if kept == 0 {
		return nil
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}
