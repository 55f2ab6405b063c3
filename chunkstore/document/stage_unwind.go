package document

import (
	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// unwindStage is $unwind: a document for each element of an array.
type unwindStage struct {
	path     string
	index    string // the field that gets the element's index, or empty
	preserve bool   // documents without elements come through
}

func parseUnwind(v bson.RawValue) ([]stage, error) {
	s := unwindStage{}
	path, err := s.parseOptions(v)
	switch {
	case err != nil:
		return nil, err
	case path.Type != bson.TypeString:
		return nil, mongoerr.New(15981,
			"expected either a string or an object as specification for $unwind stage, got %s", typeName(path.Type))
	case len(textOf(path)) == 0 || textOf(path)[0] != '$':
		return nil, mongoerr.New(28818,
			"path option to $unwind stage should be prefixed with a '$': %s", quotable(textOf(path)))
	case len(s.index) > 0 && s.index[0] == '$':
		return nil, mongoerr.New(28822,
			"includeArrayIndex option to $unwind stage should not be prefixed with a '$': %s", s.index)
	}
	s.path = string(textOf(path)[1:])
	if err := checkFieldPath(s.path); err != nil {
		return nil, err
	}
	if s.index != "" {
		if err := checkFieldPath(s.index); err != nil {
			return nil, err
		}
	}
	_, err = s.changes()
	return []stage{s}, err
}

// parseOptions reads {path: ..., ...} and returns the path, or v if it is no document.
func (s *unwindStage) parseOptions(v bson.RawValue) (path bson.RawValue, err error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return v, nil
	}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		switch name := string(e.name); {
		case name == "path":
			path = e.value
		case name == "preserveNullAndEmptyArrays" && e.value.Type == bson.TypeBoolean:
			s.preserve = truth(e.value)
		case name == "preserveNullAndEmptyArrays":
			return path, mongoerr.New(28809,
				"expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got %s", typeName(e.value.Type))
		case name == "includeArrayIndex" && e.value.Type == bson.TypeString && len(textOf(e.value)) > 0:
			s.index = string(textOf(e.value))
		case name == "includeArrayIndex":
			return path, mongoerr.New(28810,
				"expected a non-empty string for the includeArrayIndex  option to $unwind stage, got %s", typeName(e.value.Type))
		default:
			return path, mongoerr.New(28811, "unrecognized option to $unwind stage: %s", quotable(e.name))
		}
	}
	if path.Type == 0 {
		return path, mongoerr.New(28812, "no path specified to $unwind stage")
	}
	return path, nil
}

// changes are the fields that $unwind sets, as an update whose values change from element
// to element.
type changes struct {
	root           *target
	element, index *variable
}

// variable sets a field to a value, of type 0 takes it away.
type variable struct{ v bson.RawValue }

func (m *variable) needsPath(*application) bool { return m.v.Type != 0 }

func (m *variable) apply(_ *application, dst []byte, _ bson.RawValue) (bson.Type, []byte, error) {
	return m.v.Type, append(dst, m.v.Value...), nil
}

func (s unwindStage) changes() (*changes, error) {
	c := &changes{root: &target{}, element: &variable{}, index: &variable{}}
	p := updateParser{root: c.root}
	err := p.add(s.path, c.element)
	if err == nil && s.index != "" {
		err = p.add(s.index, c.index)
	}
	c.root.order()
	return c, err
}

func (s unwindStage) run(r *running, in documents) documents {
	return r.untilEnded(func(yield func(bson.Raw, error) bool) {
		c, err := s.changes()
		if err != nil {
			yield(nil, err)
			return
		}
		var buf []byte
		for doc, err := range in {
			if err != nil {
				yield(nil, err)
				return
			}
			more := true
			if buf, more = s.unwind(c, buf, doc, yield); !more {
				return
			}
		}
	})
}

// unwind yields the documents for one; false when no more are wanted.
func (s unwindStage) unwind(c *changes, buf []byte, doc bson.Raw, yield func(bson.Raw, error) bool) ([]byte, bool) {
	emit := func(element, index bson.RawValue) bool {
		c.element.v, c.index.v = element, index
		a := application{doc: doc}
		var err error
		if buf, err = a.document(buf[:0], doc, c.root); err != nil {
			yield(nil, err)
			return false
		}
		return yield(buf, nil)
	}
	v, _ := Lookup(doc, s.path)
	switch {
	case v.Type == bson.TypeArray && !isEmpty(v.Value):
		i := int64(0)
		for w := walkOf(v.Value); ; i++ {
			e, ok := w.next()
			if !ok {
				return buf, true
			}
			if !emit(e.value, number.Int64(i).Value()) {
				return buf, false
			}
		}
	case v.Type != bson.TypeArray && !isNullish(v):
		return buf, emit(v, null)
	case !s.preserve:
		return buf, true
	case v.Type == bson.TypeArray:
		return buf, emit(missing, null)
	}
	return buf, emit(v, null)
}
