package document

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// within puts MongoDB's preface before an error of a stage.
func within(stage string, err error) error {
	if e, ok := err.(*mongoerr.Error); ok {
		return mongoerr.New(e.Code, "Invalid %s :: caused by :: %s", stage, e.Message)
	}
	return err
}

// transform makes a shape a stage.
func (s *shape) transform(e *evaluation, dst []byte, doc bson.Raw) ([]byte, error) {
	return s.appendWith(e, dst, doc)
}

func parseProject(v bson.RawValue) ([]stage, error) {
	switch {
	case v.Type != bson.TypeEmbeddedDocument:
		return nil, mongoerr.New(15969, "$project specification must be an object")
	case isEmpty(v.Value):
		return nil, within("$project", mongoerr.New(51272, "projection specification must have at least one field"))
	}
	s, err := parseShape(v.Value, false)
	if err != nil {
		return nil, within("$project", err)
	}
	return []stage{mapped{s}}, nil
}

func addFieldsParser(name string) func(bson.RawValue) ([]stage, error) {
	return func(v bson.RawValue) ([]stage, error) {
		if v.Type != bson.TypeEmbeddedDocument {
			return nil, mongoerr.New(40272, "%s specification stage must be an object, got %s", name, typeName(v.Type))
		}
		if isEmpty(v.Value) {
			return nil, within(name, mongoerr.New(40177, "specification must have at least one field"))
		}
		s, err := parseAddedFields(v.Value)
		if err != nil {
			return nil, within(name, err)
		}
		return []stage{mapped{s}}, nil
	}
}

// parseUnsetStage parses $unset: a path or an array of paths, to be hidden.
func parseUnsetStage(v bson.RawValue) ([]stage, error) {
	paths := argumentsOf(v)
	switch {
	case v.Type != bson.TypeString && v.Type != bson.TypeArray:
		return nil, mongoerr.New(31002, "$unset specification must be a string or an array")
	case len(paths) == 0:
		return nil, mongoerr.New(31119, "$unset specification must be a string or an array with at least one field")
	}
	p := shapeParser{shape: &shape{mode: exclude}, decided: true}
	for _, path := range paths {
		if path.Type != bson.TypeString {
			return nil, mongoerr.New(31120, "$unset specification must be a string or an array containing only string values")
		}
		name := string(textOf(path))
		err := checkFieldPath(name)
		if err == nil {
			_, err = p.leaf(&p.shape.root, name, len(name))
		}
		if err != nil {
			return nil, within("$unset", err)
		}
	}
	return []stage{mapped{p.shape}}, nil
}

// replaceRoot is $replaceRoot and $replaceWith.
type replaceRoot struct{ with expression }

func parseReplaceRoot(v bson.RawValue) ([]stage, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, mongoerr.New(40229, "expected an object as specification for $replaceRoot stage, got %s", typeName(v.Type))
	}
	given, err := namedArguments("$replaceRoot", v, []string{"newRoot"}, 1)
	if err != nil {
		return nil, mongoerr.New(40231, "no newRoot specified for the $replaceRoot stage, or other options: %s", show(v))
	}
	return parseReplaceWith(given[0])
}

func parseReplaceWith(v bson.RawValue) ([]stage, error) {
	with, err := parseExpression(v)
	return []stage{mapped{replaceRoot{with}}}, err
}

func (s replaceRoot) transform(e *evaluation, dst []byte, doc bson.Raw) ([]byte, error) {
	v, err := s.with.eval(e)
	if err != nil {
		return dst, err
	}
	if v.Type != bson.TypeEmbeddedDocument {
		return dst, mongoerr.New(40228, "'newRoot' expression must evaluate to an object, but resulting value was: %s. "+
			"Type of resulting value: '%s'. Input document: %s", show(v), typeName(v.Type), show(documentValue(doc)))
	}
	return append(dst, v.Value...), checkProduced(v.Value)
}
