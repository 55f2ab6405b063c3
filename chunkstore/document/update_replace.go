package document

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// checkReplacement refuses field names that would be operators.
func checkReplacement(doc []byte) error {
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			return nil
		}
		if len(e.name) > 0 && e.name[0] == '$' {
			return mongoerr.New(mongoerr.DollarPrefixedFieldName,
				"The dollar ($) prefixed field '%s' in '%s' is not allowed in the context of an update's replacement "+
					"document. Consider using an aggregation pipeline with $replaceWith.",
				quotable(e.name), quotable(e.name))
		}
	}
}

// appendReplacement appends doc with its own _id first, or with this one if it has none.
func appendReplacement(dst []byte, doc bson.Raw, id bson.RawValue) []byte {
	if own := field(doc, "_id"); own.Type != 0 {
		id = own
	}
	dst, at := begin(dst)
	if id.Type != 0 {
		dst = appendElement(dst, "_id", id)
	}
	return finish(appendAllBut(dst, doc, "_id"), at)
}

// appendAllBut appends the elements of doc without the one of this name.
func appendAllBut(dst []byte, doc []byte, name string) []byte {
	from := 4
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			return append(dst, doc[from:len(doc)-1]...)
		}
		if string(e.name) == name {
			dst = append(dst, doc[from:e.start]...)
			from = e.end
		}
	}
}

// AppendInsertable appends doc as it is stored: with its _id in front, newID's when it has
// none. Errors: InvalidIDField for an _id that is an array, a regular expression or
// undefined; DollarPrefixedFieldName for one with a $ field; BSONObjectTooLarge when the
// new _id makes it so.
func AppendInsertable(dst []byte, doc bson.Raw, newID func() bson.RawValue) ([]byte, error) {
	id := field(doc, "_id")
	if id.Type == 0 {
		id = newID()
	}
	if err := checkID(id); err != nil {
		return dst, err
	}
	out := appendReplacement(dst, doc, id)
	if n := len(out) - len(dst); n > MaxDocumentBytes {
		return dst, mongoerr.New(mongoerr.BSONObjectTooLarge,
			"object to insert too large. size in bytes: %d, max size: %d", n, MaxDocumentBytes)
	}
	return out, nil
}

func checkID(id bson.RawValue) error {
	switch id.Type {
	case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined:
		return mongoerr.New(mongoerr.InvalidIDField, "The '_id' value cannot be of type %s", typeName(id.Type))
	case bson.TypeEmbeddedDocument:
		if hasOperators(id) {
			return mongoerr.New(mongoerr.DollarPrefixedFieldName,
				"_id fields may not contain '$'-prefixed fields: %s is not valid for storage.", show(id))
		}
	}
	return nil
}
