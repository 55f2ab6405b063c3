package document

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Upsert appends the document to insert when nothing matched the filter: the values that
// the filter's equalities ask for, changed by the update ($setOnInsert included), or the
// replacement with the filter's _id. The _id comes first; newID gives one if neither filter
// nor update does.
//
// Errors: those of Apply; NotSingleValueField when the filter asks for two values of one path;
// InvalidIDField for an _id that cannot be one; ImmutableField when filter and update say
// different ones.
func (u *Update) Upsert(dst []byte, f *Filter, newID func() bson.RawValue) ([]byte, error) {
	wanted, err := documentOf(f)
	if err != nil {
		return dst, err
	}
	made, err := u.apply(nil, wanted, true)
	if err != nil {
		return dst, err
	}
	if err := checkSameID(wanted, made); err != nil {
		return dst, err
	}
	out, err := AppendInsertable(dst, made, newID)
	if err != nil {
		return dst, err
	}
	if err := checkUpdated(out[len(dst):]); err != nil {
		return dst, err
	}
	return out, nil
}

// documentOf is the smallest document with the filter's equalities, in the order of their
// paths.
func documentOf(f *Filter) (bson.Raw, error) {
	p := updateParser{root: &target{}}
	for _, e := range equalities(nil, f.Root()) {
		switch taken, err := p.place(e.path, setTo{e.value}); {
		case err != nil:
			return nil, err
		case taken == e.path:
			return nil, mongoerr.New(notSingleValueField,
				"cannot infer query fields to set, path '%s' is matched twice", e.path)
		case taken != "":
			return nil, mongoerr.New(notSingleValueField,
				"cannot infer query fields to set, both paths '%s' and '%s' are matched", e.path, taken)
		}
	}
	p.root.order()
	a := application{doc: emptyDocument}
	return a.document(nil, emptyDocument, p.root)
}
