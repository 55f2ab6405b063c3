package document

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// target is a field that an update changes, or one on the way to it. Targets form a tree by
// the parts of their paths, so that one pass over a document meets every change.
type target struct {
	name     string
	path     string   // dotted, up to here
	modifier modifier // of a field that is changed; nil on the way to one
	// Fields inside, in the order in which missing ones are created: indexes by number, then
	// names.
	children []*target
	indexes  int            // how many of children are indexes
	byName   map[string]int // positions in children, when they are many
	// Elements of an array that are found only when the document is there, in the order in
	// which they change an element that several stand for: $, $[], $[name].
	positional []*target
	filter     *Filter // of a $[name]: which elements
}

// modifier is what an operator does to one field.
type modifier interface {
	// apply appends the new value for old, which has type 0 if the field is missing, and
	// returns its type: 0 (and dst as it was) leaves or makes the field missing.
	apply(a *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error)
	// needsPath reports whether it is an error that the field cannot exist, because
	// something on the way to it is neither document nor array.
	needsPath(a *application) bool
}

type updateParser struct {
	root    *target
	names   []string // of the array filters
	filters map[string]*Filter
	used    map[string]bool
}

// parse parses {$operator: {path: argument, ...}, ...}.
func (p *updateParser) parse(update []byte, arrayFilters []bson.Raw) error {
	if err := p.parseArrayFilters(arrayFilters); err != nil {
		return err
	}
	for w := walkOf(update); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		if err := p.parseModifiers(string(e.name), e.value); err != nil {
			return err
		}
	}
	for _, name := range p.names {
		if !p.used[name] {
			return mongoerr.New(mongoerr.FailedToParse,
				"The array filter for identifier '%s' was not used in the update %s", name, show(documentValue(update)))
		}
	}
	p.root.order()
	return nil
}

func (p *updateParser) parseModifiers(operator string, v bson.RawValue) error {
	parse, known := modifiers[operator]
	switch {
	case !known:
		return mongoerr.New(mongoerr.FailedToParse, "Unknown modifier: %s. Expected a valid update modifier or "+
			"pipeline-style update specified as an array", quotable([]byte(operator)))
	case v.Type != bson.TypeEmbeddedDocument:
		return mongoerr.New(mongoerr.FailedToParse, "Modifiers operate on fields but we found type %s instead. "+
			"For example: {$mod: {<field>: ...}} not {%s}", typeName(v.Type), showElement(operator, v))
	}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			return nil
		}
		path := string(e.name)
		if operator == "$rename" {
			if err := p.parseRename(path, e.value); err != nil {
				return err
			}
			continue
		}
		m, err := parse(path, e.value)
		if err != nil {
			return err
		}
		if err := p.add(path, m); err != nil {
			return err
		}
	}
}

// modifiers are the operators; $rename, which has two paths, is parsed apart.
var modifiers = map[string]func(path string, v bson.RawValue) (modifier, error){
	"$set": parseSet, "$setOnInsert": parseSetOnInsert, "$unset": parseUnset, "$rename": nil,
	"$inc": arithmeticParser(increment), "$mul": arithmeticParser(multiply), "$bit": parseBit,
	"$min": extremeParser(-1), "$max": extremeParser(1), "$currentDate": parseCurrentDate,
	"$push": parsePush, "$addToSet": parseAddToSet, "$pop": parsePop, "$pull": parsePull,
	"$pullAll": parsePullAll,
}

// add puts a modifier at its place in the tree; no other may be there, above or below.
func (p *updateParser) add(path string, m modifier) error {
	at, err := p.place(path, m)
	if err == nil && at != "" {
		return mongoerr.New(mongoerr.ConflictingUpdateOperators,
			"Updating the path '%s' would create a conflict at '%s'", path, at)
	}
	return err
}

// place puts a modifier at its place, or returns the path where another one is in its way.
func (p *updateParser) place(path string, m modifier) (taken string, err error) {
	if err := checkUpdatePath(path); err != nil {
		return "", err
	}
	at := p.root
	end := 0 // of the part that comes next, in path
	for _, part := range splitPath(path) {
		end += len(part)
		if at, err = p.child(at, part, path[:end]); err != nil {
			return "", err
		}
		end++
		if at.modifier != nil {
			return at.path, nil
		}
	}
	if len(at.children)+len(at.positional) > 0 {
		return at.path, nil
	}
	at.modifier = m
	return "", nil
}

// child finds or makes the target of a part of a path.
func (p *updateParser) child(of *target, part, path string) (*target, error) {
	if part[0] == '$' && (part == "$" || strings.HasPrefix(part, "$[")) {
		return p.positional(of, part, path)
	}
	if i := of.find([]byte(part)); i >= 0 {
		return of.children[i], nil
	}
	t := &target{name: part, path: path}
	of.children = append(of.children, t)
	of.index(len(of.children) - 1)
	return t, nil
}

func (p *updateParser) positional(of *target, part, path string) (*target, error) {
	for _, t := range of.positional {
		if t.name == part {
			return t, nil
		}
	}
	t := &target{name: part, path: path}
	of.positional = append(of.positional, t)
	if part == "$" || part == "$[]" {
		return t, nil
	}
	name := strings.TrimSuffix(part[2:], "]")
	if t.filter = p.filters[name]; t.filter == nil {
		return nil, badValue("No array filter found for identifier '%s' in path '%s'", name, path)
	}
	p.used[name] = true
	return t, nil
}

// checkUpdatePath refuses paths that no document can have.
func checkUpdatePath(path string) error {
	if path == "" {
		return mongoerr.New(mongoerr.EmptyFieldName, "An empty update path is not valid.")
	}
	parts := splitPath(path)
	if len(parts) > MaxDepth {
		return mongoerr.New(mongoerr.Overflow, "An update path has at most %d parts", MaxDepth)
	}
	for i, part := range parts {
		switch {
		case part == "":
			return mongoerr.New(mongoerr.EmptyFieldName,
				"The update path '%s' contains an empty field name, which is not allowed.", quotable([]byte(path)))
		case part[0] != '$':
		case part == "$" || strings.HasPrefix(part, "$["):
			if i == 0 {
				return badValue("Cannot have positional (i.e. '$') element in the first position in path '%s'", path)
			}
		case part != "$ref" && part != "$id" && part != "$db":
			return mongoerr.New(mongoerr.DollarPrefixedFieldName,
				"The dollar ($) prefixed field '%s' in '%s' is not valid for storage.", part, path)
		}
	}
	if strings.Count("."+path+".", ".$.") > 1 {
		return badValue("Too many positional (i.e. '$') elements found in path '%s'", path)
	}
	return nil
}

// order brings children into their final order, all the way down.
func (t *target) order() {
	slices.SortFunc(t.children, func(a, b *target) int { return compareNames(a.name, b.name) })
	slices.SortFunc(t.positional, func(a, b *target) int { return strings.Compare(a.name, b.name) })
	t.indexes, t.byName = 0, nil
	for i, child := range t.children {
		t.index(i)
		t.indexes += boolRank(isIndex(child.name))
		child.order()
	}
	for _, child := range t.positional {
		child.order()
	}
}

func compareNames(a, b string) int {
	if x, y := isIndex(a), isIndex(b); x != y {
		return boolRank(y) - boolRank(x)
	} else if x {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}

// manyChildren is when searching one by one stops being quicker than a map.
const manyChildren = 8

// index makes child i known to find.
func (t *target) index(i int) {
	if i < manyChildren {
		return
	}
	if t.byName == nil {
		t.byName = map[string]int{}
		for j, child := range t.children[:i] {
			t.byName[child.name] = j
		}
	}
	t.byName[t.children[i].name] = i
}

// find is the position of the child of this name, -1 if none.
func (t *target) find(name []byte) int {
	if t.byName != nil {
		if i, ok := t.byName[string(name)]; ok {
			return i
		}
		return -1
	}
	for i, child := range t.children {
		if child.name == string(name) {
			return i
		}
	}
	return -1
}
