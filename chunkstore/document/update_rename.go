package document

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// parseRename parses $rename: {from: "to"}: two targets, one that takes the old field away
// and one that sets the new one to what the document had before.
func (p *updateParser) parseRename(from string, v bson.RawValue) error {
	if v.Type != bson.TypeString {
		return badValue("The 'to' field for $rename must be a string: %s", showElement(from, v))
	}
	to := string(textOf(v))
	switch {
	case from == to:
		return badValue("The source and target field for $rename must differ: %s", showElement(from, v))
	case hasPositional(from):
		return badValue("The source field for $rename may not be dynamic: %s", from)
	case hasPositional(to):
		return badValue("The destination field for $rename may not be dynamic: %s", to)
	}
	if err := p.add(from, renamed{from}); err != nil {
		return err
	}
	return p.add(to, renameFrom{from, to})
}

func hasPositional(path string) bool {
	for _, part := range splitPath(path) {
		if part == "$" || len(part) > 1 && part[:2] == "$[" {
			return true
		}
	}
	return false
}

// renamed takes the source of a $rename away.
type renamed struct{ path string }

func (renamed) needsPath(*application) bool { return false }

func (m renamed) apply(a *application, dst []byte, _ bson.RawValue) (bson.Type, []byte, error) {
	return 0, dst, checkNoArray(a.doc, m.path, "source")
}

// renameFrom sets the destination of a $rename.
type renameFrom struct{ from, to string }

func (m renameFrom) needsPath(a *application) bool {
	_, ok := Lookup(a.doc, m.from)
	return ok
}

func (m renameFrom) apply(a *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	if err := checkNoArray(a.doc, m.from, "source"); err != nil {
		return 0, dst, err
	}
	v, ok := Lookup(a.doc, m.from)
	if !ok {
		return keep(dst, old)
	}
	return v.Type, append(dst, v.Value...), checkNoArray(a.doc, m.to, "destination")
}

// checkNoArray refuses a path that goes through an array of the document.
func checkNoArray(doc bson.Raw, path, what string) error {
	v := documentValue(doc)
	parts := splitPath(path)
	for _, part := range parts {
		if v.Type != bson.TypeEmbeddedDocument {
			break
		}
		v = field(v.Value, part)
		if v.Type == bson.TypeArray && part != parts[len(parts)-1] {
			return badValue("The %s field cannot be an array element, '%s' in doc with %s has an array field called '%s'",
				what, path, fmt.Sprintf("_id: %s", show(field(doc, "_id"))), part)
		}
	}
	return nil
}
