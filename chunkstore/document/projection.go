package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Projection is a parsed projection of find and findAndModify. A nil Projection shows whole
// documents.
type Projection struct{ shape *shape }

// ParseProjection compiles {path: 1}, which shows only these fields and _id, or {path: 0},
// which shows all others; _id alone may go against the rest. A document as value is the
// same as dotted paths, or an expression; strings that begin with $ are field paths, other
// values stand for themselves. An empty or nil projection gives a nil Projection.
//
// Errors: Location31253 and Location31254 when both kinds are mixed, Location31249 and
// Location31250 when paths collide, and those of expressions. The operators $slice,
// $elemMatch, $meta and the positional .$ are refused with BadValue.
func ParseProjection(p bson.Raw) (*Projection, error) {
	if len(p) == 0 || isEmpty(p) {
		return nil, nil
	}
	shape, err := parseShape(p, true)
	if err != nil {
		return nil, err
	}
	return &Projection{shape}, nil
}

// Append appends what the projection shows of doc. Errors come from expressions; on one dst
// is as it was. Without expressions it does not allocate.
func (p *Projection) Append(dst []byte, doc bson.Raw) ([]byte, error) {
	if p == nil {
		return append(dst, doc...), nil
	}
	var e *evaluation
	if p.shape.computes {
		e = &evaluation{root: doc}
	}
	return p.shape.appendWith(e, dst, doc)
}

// mode is what a shape does with fields that it does not name, and with those it names.
type mode uint8

const (
	include mode = iota // only the named ones stay
	exclude             // the named ones go
	add                 // the named ones are computed, all others stay
)

// shape is a projection, or the fields that a stage adds: what becomes of a document's
// fields.
type shape struct {
	mode     mode
	root     part
	computes bool
}

// part is a field of a shape: shown or hidden as a whole, computed, or gone into.
type part struct {
	name   string
	index  int // among the parts it is one of
	expr   expression
	parts  []*part
	byName map[string]*part // when there are many
	makes  bool             // something in it is computed
}

func (p *part) find(name []byte) *part {
	if p.byName != nil {
		return p.byName[string(name)]
	}
	for _, inner := range p.parts {
		if inner.name == string(name) {
			return inner
		}
	}
	return nil
}

func (p *part) isLeaf() bool { return len(p.parts) == 0 && p.expr == nil }

// appendWith appends what the shape makes of doc, which e has begun on.
func (s *shape) appendWith(e *evaluation, dst []byte, doc bson.Raw) ([]byte, error) {
	out, err := s.document(e, dst, doc, &s.root)
	if err != nil {
		return dst, err
	}
	if s.computes {
		if err := checkProduced(out[len(dst):]); err != nil {
			return dst, err
		}
	}
	return out, nil
}

// document appends doc as p shows it. It recurses as deep as doc or the shape is nested.
func (s *shape) document(e *evaluation, dst, doc []byte, p *part) ([]byte, error) {
	var room [32]bool
	seen := room[:0] // of p.parts
	if p.makes {
		if seen = room[:]; len(p.parts) > len(seen) {
			seen = make([]bool, len(p.parts))
		}
	}
	dst, at := begin(dst)
	var err error
	for w := walkOf(doc); ; {
		el, ok := w.next()
		if !ok {
			break
		}
		inner := p.find(el.name)
		switch {
		case inner == nil:
			if s.mode != include {
				dst = append(dst, doc[el.start:el.end]...)
			}
			continue
		case inner.expr != nil && s.mode == include:
			continue // comes after what was there
		}
		if p.makes {
			seen[inner.index] = true
		}
		if dst, err = s.field(e, appendHeader(dst, 0, el.name), len(dst), el.value, inner); err != nil {
			return dst, err
		}
	}
	for _, inner := range p.parts {
		if !inner.makes || seen[inner.index] {
			continue
		}
		if dst, err = s.field(e, appendHeader(dst, 0, inner.name), len(dst), missing, inner); err != nil {
			return dst, err
		}
	}
	return finish(dst, at), nil
}

// field appends to an element's header, which begins at the offset at and says type 0, what
// p makes of v, and sets the type. Without a value the header goes too.
func (s *shape) field(e *evaluation, dst []byte, at int, v bson.RawValue, p *part) ([]byte, error) {
	kind, dst, err := s.value(e, dst, v, p)
	if kind == 0 {
		return dst[:at], err
	}
	dst[at] = byte(kind)
	return dst, err
}

// value appends what p makes of v, and returns its type, 0 for nothing.
func (s *shape) value(e *evaluation, dst []byte, v bson.RawValue, p *part) (bson.Type, []byte, error) {
	switch {
	case p.expr != nil:
		computed, err := p.expr.eval(e)
		return computed.Type, append(dst, computed.Value...), err
	case p.isLeaf() && s.mode == exclude:
		return 0, dst, nil
	case p.isLeaf():
		return v.Type, append(dst, v.Value...), nil
	case v.Type == bson.TypeEmbeddedDocument:
		dst, err := s.document(e, dst, v.Value, p)
		return v.Type, dst, err
	case v.Type == bson.TypeArray:
		dst, err := s.array(e, dst, v.Value, p)
		return v.Type, dst, err
	case p.makes: // a document takes the place of anything else, and of nothing
		dst, err := s.document(e, dst, emptyDocument, p)
		return bson.TypeEmbeddedDocument, dst, err
	case s.mode == include:
		return 0, dst, nil
	}
	return v.Type, append(dst, v.Value...), nil
}

// array appends the elements of an array as p shows them, those inside arrays too.
func (s *shape) array(e *evaluation, dst, array []byte, p *part) ([]byte, error) {
	dst, at := begin(dst)
	i := 0
	for w := walkOf(array); ; {
		el, ok := w.next()
		if !ok {
			return finish(dst, at), nil
		}
		start := len(dst)
		kind, out, err := s.value(e, appendIndexHeader(dst, 0, i), el.value, p)
		if err != nil {
			return dst, err
		}
		if dst = out; kind == 0 {
			dst = dst[:start]
			continue
		}
		dst[start] = byte(kind)
		i++
	}
}

// checkFieldPath refuses paths that expressions and stages do not know.
func checkFieldPath(path string) error {
	switch {
	case path == "":
		return mongoerr.New(40352, "FieldPath cannot be constructed with empty string")
	case strings.HasSuffix(path, "."):
		return mongoerr.New(40353, "FieldPath must not end with a '.'.")
	}
	for i, name := range splitPath(path) {
		switch {
		case name == "":
			return mongoerr.New(15998, "FieldPath field names may not be empty strings.")
		case i >= MaxDepth:
			return mongoerr.New(mongoerr.Overflow, "FieldPath is too long, it has more than %d parts", MaxDepth)
		case name[0] == '$' && name != "$id" && name != "$ref" && name != "$db":
			return mongoerr.New(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.")
		case strings.IndexByte(name, 0) >= 0:
			return mongoerr.New(16411, "FieldPath field names may not contain '\\0'.")
		}
	}
	return nil
}
