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

// migrationsOption is false for a collection whose chunks keep their shards.
const migrationsOption = "permitMigrations"

// PermitsMigrations reports whether chunks of the collection may change their shard.
func (c *Collection) PermitsMigrations() bool {
	yes, said := c.option(migrationsOption).BooleanOK()
	return yes || !said
}

// WithMigrations is options with the wish about moves.
func WithMigrations(options bson.Raw, permit bool) bson.Raw {
	plain := withoutOption(options, migrationsOption)
	if permit {
		return plain
	}
	return withOption(plain, bsoncore.AppendBooleanElement(nil, migrationsOption, false))
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
