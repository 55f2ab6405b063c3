package document

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func badValue(format string, args ...any) error {
	return mongoerr.New(mongoerr.BadValue, format, args...)
}

// parseQuery parses {path: condition, ..., $operator: ...}. It recurses as deep as the
// query document is nested.
func parseQuery(query []byte) (Node, error) {
	var all []Node
	for w := walkOf(query); ; {
		e, ok := w.next()
		if !ok {
			return both(all), nil
		}
		var err error
		if len(e.name) > 0 && e.name[0] == '$' {
			all, err = parseTopLevel(all, string(e.name), e.value)
		} else {
			all, err = parseField(all, string(e.name), e.value)
		}
		if err != nil {
			return Node{}, err
		}
	}
}

// parseTopLevel parses an operator that stands where a path could.
func parseTopLevel(all []Node, name string, v bson.RawValue) ([]Node, error) {
	switch name {
	case "$and", "$or", "$nor":
		n, err := parseLogic(name, v)
		return append(all, n), err
	case "$comment":
		return all, nil
	case "$expr":
		n, err := parseExprQuery(v)
		return append(all, n), err
	case "$where":
		return nil, badValue("$where is not supported: there is no JavaScript engine")
	case "$text", "$jsonSchema":
		return nil, badValue("%s is not supported", name)
	}
	return nil, badValue("unknown top level operator: %s. If you have a field name that starts with a '$' symbol, "+
		"consider using $getField or $setField.", name)
}

// parseLogic parses the array of queries of $and, $or and $nor.
func parseLogic(name string, v bson.RawValue) (Node, error) {
	switch {
	case v.Type != bson.TypeArray:
		return Node{}, badValue("%s must be an array", name)
	case isEmpty(v.Value):
		return Node{}, badValue("$and/$or/$nor must be a nonempty array")
	}
	var children []Node
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		if e.value.Type != bson.TypeEmbeddedDocument {
			return Node{}, badValue("$or/$and/$nor entries need to be full objects")
		}
		child, err := parseQuery(e.value.Value)
		if err != nil {
			return Node{}, err
		}
		children = append(children, child)
	}
	switch {
	case name == "$nor":
		return Node{Op: Nor, Children: children}, nil
	case name == "$or" && len(children) > 1:
		return Node{Op: Or, Children: children}, nil
	}
	return both(children), nil
}

// parseField parses the condition on a path: operators, a regular expression, or a value.
func parseField(all []Node, path string, v bson.RawValue) ([]Node, error) {
	if hasOperators(v) {
		return parseOperators(all, path, v.Value)
	}
	n, err := parseEquality(path, v)
	return append(all, n), err
}

// hasOperators reports whether v is {$operator: ...}, not a document to be equal to. A
// DBRef, {$ref: ..., $id: ...}, is a document.
func hasOperators(v bson.RawValue) bool {
	if v.Type != bson.TypeEmbeddedDocument {
		return false
	}
	e, ok := first(v.Value)
	if !ok || len(e.name) == 0 || e.name[0] != '$' {
		return false
	}
	return field(v.Value, "$ref").Type == 0 || field(v.Value, "$id").Type == 0
}

// parseOperators parses {$operator: argument, ...}: all must hold.
func parseOperators(all []Node, path string, operators []byte) ([]Node, error) {
	for w := walkOf(operators); ; {
		e, ok := w.next()
		if !ok {
			return all, nil
		}
		name := string(e.name)
		if name == "$options" && field(operators, "$regex").Type != 0 {
			continue // $regex looks at it
		}
		n, err := parseOperator(path, name, e.value, operators)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
}

// operators are the operators on a path, but for those that need more than their argument.
var operators = map[string]func(path string, v bson.RawValue) (Node, error){
	"$eq": parseExplicitEquality, "$ne": parseNotEqual,
	"$gt": comparisonParser(Gt), "$gte": comparisonParser(Gte),
	"$lt": comparisonParser(Lt), "$lte": comparisonParser(Lte),
	"$in": parseIn, "$nin": parseNotIn,
	"$exists": parseExists, "$type": parseType, "$size": parseSize, "$mod": parseMod,
	"$bitsAllSet": bitsParser(bitsAllSet), "$bitsAllClear": bitsParser(bitsAllClear),
	"$bitsAnySet": bitsParser(bitsAnySet), "$bitsAnyClear": bitsParser(bitsAnyClear),
}

func parseOperator(path, name string, v bson.RawValue, siblings []byte) (Node, error) {
	if parse, ok := operators[name]; ok {
		return parse(path, v)
	}
	switch name {
	case "$not":
		return parseNot(path, v)
	case "$all":
		return parseAll(path, v)
	case "$elemMatch":
		return parseElemMatch(path, v)
	case "$regex":
		return parseRegexOperator(path, v, field(siblings, "$options"))
	case "$options":
		return Node{}, badValue("$options needs a $regex")
	case "$where":
		return Node{}, badValue("$where cannot be applied to a field")
	case "$near", "$nearSphere", "$geoNear", "$geoWithin", "$within", "$geoIntersects":
		return Node{}, badValue("%s is not supported: there are no geospatial indexes", name)
	}
	return Node{}, badValue("unknown operator: %s", name)
}

func parseNot(path string, v bson.RawValue) (Node, error) {
	if v.Type == bson.TypeRegex {
		n, err := parseEquality(path, v)
		return Node{Op: Not, Children: []Node{n}}, err
	}
	switch {
	case v.Type != bson.TypeEmbeddedDocument:
		return Node{}, badValue("$not needs a regex or a document")
	case isEmpty(v.Value):
		return Node{}, badValue("$not cannot be empty")
	}
	all, err := parseOperators(nil, path, v.Value)
	return Node{Op: Not, Children: []Node{both(all)}}, err
}
