package document

import (
	"strconv"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxBackfill is how many nulls an update may put into an array to reach an index.
const maxBackfill = 1_500_000

// application is one update of one document.
type application struct {
	doc       bson.Raw // before the update
	inserting bool
	now       int64
	filter    *Filter
}

var emptyDocument = []byte{5, 0, 0, 0, 0}

// document appends doc with the changes of t's children: fields stay where they are, missing
// ones come at the end in the order of the children. It recurses as deep as doc is nested
// and t's paths have parts, both at most MaxDepth.
func (a *application) document(dst, doc []byte, t *target) ([]byte, error) {
	var room [32]bool
	seen := room[:]
	if len(t.children) > len(seen) {
		seen = make([]bool, len(t.children))
	}
	dst, at := begin(dst)
	from := 4 // what is before it has been appended
	var err error
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			dst = append(dst, doc[from:len(doc)-1]...)
			break
		}
		i := t.find(e.name)
		if i < 0 {
			continue
		}
		seen[i] = true
		dst = append(dst, doc[from:e.start]...)
		from = e.end
		if dst, err = a.member(appendHeader(dst, 0, e.name), len(dst), e.value, t.children[i], false); err != nil {
			return dst, err
		}
	}
	for i, child := range t.children {
		if seen[i] {
			continue
		}
		if dst, err = a.member(appendHeader(dst, 0, child.name), len(dst), missing, child, false); err != nil {
			return dst, err
		}
	}
	return finish(dst, at), nil
}

// member appends to an element's header, which begins at the offset at and says type 0, the
// value that t makes of old, and sets the type. Without a value the header goes too.
func (a *application) member(dst []byte, at int, old bson.RawValue, t *target, inArray bool) ([]byte, error) {
	kind, dst, err := a.value(dst, old, t)
	switch {
	case err != nil:
		return dst, err
	case kind != 0:
		dst[at] = byte(kind)
	case inArray && old.Type != 0: // arrays keep their indexes: $unset leaves null
		dst[at] = byte(bson.TypeNull)
	default:
		dst = dst[:at]
	}
	return dst, nil
}

// value appends what t makes of old, and returns its type.
func (a *application) value(dst []byte, old bson.RawValue, t *target) (bson.Type, []byte, error) {
	if t.modifier != nil {
		return t.modifier.apply(a, dst, old)
	}
	var err error
	switch {
	case old.Type == bson.TypeArray:
		dst, err = a.array(dst, old, t)
	case old.Type == 0:
		return a.create(dst, t)
	case len(t.positional) > 0:
		err = badValue("Cannot apply array updates to non-array element %s", showElement(t.name, old))
	case old.Type == bson.TypeEmbeddedDocument:
		dst, err = a.document(dst, old.Value, t)
	default:
		dst, err = append(dst, old.Value...), a.checkViable(t, t.children, old)
	}
	return old.Type, dst, err
}

// create appends a new document of the fields that t's children make, if they make any.
func (a *application) create(dst []byte, t *target) (bson.Type, []byte, error) {
	if len(t.positional) > 0 {
		return 0, dst, badValue("The path '%s' must exist in the document in order to apply array updates.", t.path)
	}
	at := len(dst)
	dst, err := a.document(dst, emptyDocument, t)
	if err == nil && len(dst)-at == len(emptyDocument) {
		return 0, dst[:at], nil
	}
	return bson.TypeEmbeddedDocument, dst, err
}

// checkViable refuses fields inside a value that can have none of their names.
func (a *application) checkViable(t *target, children []*target, old bson.RawValue) error {
	for _, child := range children {
		if child.needsPath(a) {
			return mongoerr.New(mongoerr.PathNotViable, "Cannot create field '%s' in element {%s}",
				child.name, showElement(t.name, old))
		}
	}
	return nil
}

func (t *target) needsPath(a *application) bool {
	if t.modifier != nil {
		return t.modifier.needsPath(a)
	}
	for _, child := range t.children {
		if child.needsPath(a) {
			return true
		}
	}
	return len(t.positional) > 0
}

// array appends an array with the changes of t's children, which are indexes, and of those
// targets that stand for elements.
func (a *application) array(dst []byte, old bson.RawValue, t *target) ([]byte, error) {
	array := old.Value
	if err := a.checkViable(t, t.children[t.indexes:], old); err != nil {
		return dst, err
	}
	matched, err := a.matched(t, array)
	if err != nil {
		return dst, err
	}
	dst, at := begin(dst)
	indexes := t.children[:t.indexes] // those that are still ahead
	from, n := 4, 0
	for w := walkOf(array); ; n++ {
		e, ok := w.next()
		if !ok {
			dst = append(dst, array[from:len(array)-1]...)
			break
		}
		var room [4]*target
		targets := room[:0]
		if len(indexes) > 0 && indexOf(indexes[0]) == n {
			targets = append(targets, indexes[0])
			indexes = indexes[1:]
		}
		targets = t.appendPositional(targets, e.value, n == matched)
		if len(targets) == 0 {
			continue
		}
		dst = append(dst, array[from:e.start]...)
		from = e.end
		if dst, err = a.element(dst, e, targets); err != nil {
			return dst, err
		}
	}
	if dst, err = a.extend(dst, n, indexes); err != nil {
		return dst, err
	}
	return finish(dst, at), nil
}

func indexOf(t *target) int {
	i, _ := strconv.Atoi(t.name)
	return i
}

// appendPositional appends the positional targets that stand for an element.
func (t *target) appendPositional(dst []*target, element bson.RawValue, matched bool) []*target {
	for _, p := range t.positional {
		switch {
		case p.name == "$":
			if !matched {
				continue
			}
		case p.name == "$[]":
		case !p.fits(element):
			continue
		}
		dst = append(dst, p)
	}
	return dst
}

// matched is the index that t's $ stands for, -1 when it has none.
func (a *application) matched(t *target, array []byte) (int, error) {
	if len(t.positional) == 0 || t.positional[0].name != "$" {
		return -1, nil
	}
	if i := matchedIndex(a.filter.Root(), t.path, array); i >= 0 {
		return i, nil
	}
	return -1, badValue("The positional operator did not find the match needed from the query.")
}

// element appends an element with the changes of targets, one after another.
func (a *application) element(dst []byte, e element, targets []*target) ([]byte, error) {
	v, last := e.value, len(targets)-1
	for _, t := range targets[:last] {
		kind, value, err := a.value(nil, v, t)
		if err != nil {
			return dst, err
		}
		if v = (bson.RawValue{Type: kind, Value: value}); kind == 0 {
			v = null
		}
	}
	return a.member(appendHeader(dst, 0, e.name), len(dst), v, targets[last], true)
}

// extend appends the elements that targets make past the n that there are, with null
// between.
func (a *application) extend(dst []byte, n int, indexes []*target) ([]byte, error) {
	for _, t := range indexes {
		i := indexOf(t)
		before := len(dst)
		if i-n > maxBackfill {
			return dst, mongoerr.New(cannotBackfillArray, "can't backfill more than %d elements", maxBackfill)
		}
		for j := n; j < i; j++ {
			dst = appendIndexHeader(dst, bson.TypeNull, j)
		}
		start := len(dst)
		var err error
		if dst, err = a.member(appendHeader(dst, 0, t.name), start, missing, t, true); err != nil {
			return dst, err
		}
		if len(dst) == start { // nothing made: no nulls either
			dst = dst[:before]
			continue
		}
		n = i + 1
	}
	return dst, nil
}
