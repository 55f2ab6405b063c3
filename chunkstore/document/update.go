package document

import (
	"bytes"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// UpdateOptions are what a statement carries beside the update itself. The zero value is an
// update without any.
type UpdateOptions struct {
	// ArrayFilters say which elements the $[name]s of the update's paths stand for.
	ArrayFilters []bson.Raw
	// Filter is the statement's filter; a path with the positional $ needs it.
	Filter *Filter
	// NowMillis is the wall time of the statement, for $currentDate and $$NOW.
	NowMillis int64
	// Upsert is the statement's flag, for completeness: the same update serves both.
	Upsert bool
}

// Update is a parsed update: a replacement, operators, or a pipeline.
type Update struct {
	replacement bson.Raw  // or
	root        *target   // operators, or
	pipeline    *Pipeline // stages
	filter      *Filter
	now         int64
}

// ParseUpdate compiles an update: a document without operators replaces, a document of
// operators changes, an array is a pipeline of $set, $unset, $project and $replaceWith.
//
// Operators: $set $unset $setOnInsert $inc $mul $min $max $rename $currentDate $push
// $addToSet $pop $pull $pullAll $bit. Errors: FailedToParse for what is no update,
// ConflictingUpdateOperators for two changes of one field, and those of each operator.
func ParseUpdate(u bson.RawValue, o UpdateOptions) (*Update, error) {
	update := &Update{filter: o.Filter, now: o.NowMillis}
	switch u.Type {
	case bson.TypeArray:
		p, err := parseUpdatePipeline(u)
		update.pipeline = p
		return update, err
	case bson.TypeEmbeddedDocument:
	default:
		return nil, mongoerr.New(mongoerr.FailedToParse,
			"Update argument must be either an object or an array, not %s", typeName(u.Type))
	}
	if e, ok := first(u.Value); ok && len(e.name) > 0 && e.name[0] == '$' {
		p := updateParser{root: &target{}}
		err := p.parse(u.Value, o.ArrayFilters)
		update.root = p.root
		return update, err
	}
	if len(o.ArrayFilters) > 0 {
		return nil, mongoerr.New(mongoerr.FailedToParse, "arrayFilters may not be specified for replacement-style updates")
	}
	update.replacement = u.Value
	return update, checkReplacement(u.Value)
}

// IsReplacement reports whether the update replaces the whole document, but for its _id.
// Such an update is refused for multi.
func (u *Update) IsReplacement() bool { return u.replacement != nil }

// Apply appends the updated document to dst. When it is the same bytes as doc, changed is
// false (nModified does not count it). On an error dst is as it was.
//
// Errors: ImmutableField for another _id; PathNotViable, TypeMismatch, BadValue and others
// by operator; Location17419 when the result is too large, Overflow when it is nested too deep.
func (u *Update) Apply(dst []byte, doc bson.Raw) (out []byte, changed bool, err error) {
	out, err = u.apply(dst, doc, false)
	if err != nil {
		return dst, false, err
	}
	updated := out[len(dst):]
	if bytes.Equal(updated, doc) {
		return out, false, nil
	}
	if err := checkSameID(doc, updated); err != nil {
		return dst, false, err
	}
	if err := checkUpdated(updated); err != nil {
		return dst, false, err
	}
	return out, true, nil
}

// apply appends the updated document, not yet checked.
func (u *Update) apply(dst []byte, doc bson.Raw, inserting bool) ([]byte, error) {
	switch {
	case u.replacement != nil:
		return appendReplacement(dst, u.replacement, field(doc, "_id")), nil
	case u.pipeline != nil:
		return u.pipeline.update(dst, doc, u.now)
	}
	a := application{doc: doc, inserting: inserting, now: u.now, filter: u.filter}
	return a.document(dst, doc, u.root)
}

// checkSameID refuses an update that leaves another _id, or none.
func checkSameID(before, after bson.Raw) error {
	was, is := field(before, "_id"), field(after, "_id")
	if was.Type == 0 || is.Type != 0 && equal(was, is) {
		return nil
	}
	return mongoerr.New(mongoerr.ImmutableField,
		"Performing an update on the path '_id' would modify the immutable field '_id'")
}

// checkUpdated checks a document that an update made.
func checkUpdated(doc []byte) error {
	if len(doc) > MaxDocumentBytes {
		return mongoerr.New(updateTooLarge, "Resulting document after update is larger than %d", MaxDocumentBytes)
	}
	return checkProduced(doc)
}

// checkProduced checks a document that was put together. Its parts are all valid, but
// together they can be too much.
func checkProduced(doc []byte) error {
	err := Validate(doc, Limits{})
	if e, ok := err.(*mongoerr.Error); ok && e.Code != mongoerr.BSONObjectTooLarge {
		return mongoerr.New(mongoerr.Overflow, "the result is no valid document: %s", e.Message)
	}
	return err
}
