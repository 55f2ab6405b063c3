package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// matchStage is $match.
type matchStage struct{ filter *Filter }

func parseMatch(v bson.RawValue) ([]stage, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, mongoerr.New(15959, "the match filter must be an expression in an object")
	}
	f, err := ParseFilter(v.Value)
	return []stage{matchStage{f}}, err
}

func (s matchStage) run(_ *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		for doc, err := range in {
			matches := false
			if err == nil {
				matches, err = s.filter.MatchErr(doc)
			}
			if (matches || err != nil) && !yield(doc, err) {
				return
			}
		}
	}
}

// limitStage is $limit.
type limitStage int64

func parseLimit(v bson.RawValue) ([]stage, error) {
	n, whole := wholeNumber(v)
	switch {
	case rank(v.Type) != rank(bson.TypeInt32):
		return nil, mongoerr.New(2107201, "invalid argument to $limit stage: Expected a number in: %s", showElement("$limit", v))
	case !whole:
		return nil, mongoerr.New(2107201, "invalid argument to $limit stage: Expected an integer: %s", showElement("$limit", v))
	case n < 0:
		return nil, mongoerr.New(2107201, "invalid argument to $limit stage: Expected a non-negative number in: %s", showElement("$limit", v))
	case n == 0:
		return nil, mongoerr.New(15958, "the limit must be positive")
	}
	return []stage{limitStage(n)}, nil
}

func (s limitStage) run(_ *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		left := int64(s)
		for doc, err := range in {
			left--
			if !yield(doc, err) || left == 0 {
				return
			}
		}
	}
}

// skipStage is $skip.
type skipStage int64

func parseSkip(v bson.RawValue) ([]stage, error) {
	n, whole := wholeNumber(v)
	switch {
	case rank(v.Type) != rank(bson.TypeInt32):
		return nil, mongoerr.New(5107200, "invalid argument to $skip stage: Expected a number in: %s", showElement("$skip", v))
	case !whole:
		return nil, mongoerr.New(5107200, "invalid argument to $skip stage: Expected an integer: %s", showElement("$skip", v))
	case n < 0:
		return nil, mongoerr.New(5107200, "invalid argument to $skip stage: Expected a non-negative number in: %s", showElement("$skip", v))
	}
	return []stage{skipStage(n)}, nil
}

func (s skipStage) run(_ *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		left := int64(s)
		for doc, err := range in {
			if err == nil && left > 0 {
				left--
				continue
			}
			if !yield(doc, err) {
				return
			}
		}
	}
}

// countStage is $count: one document with the number of documents, none of none.
type countStage string

func parseCount(v bson.RawValue) ([]stage, error) {
	if v.Type != bson.TypeString {
		return nil, mongoerr.New(40156, "the count field must be a non-empty string")
	}
	switch name := string(textOf(v)); {
	case name == "":
		return nil, mongoerr.New(40157, "the count field must be a non-empty string")
	case name[0] == '$':
		return nil, mongoerr.New(40158, "the count field cannot be a $-prefixed path")
	case strings.IndexByte(name, 0) >= 0:
		return nil, mongoerr.New(40159, "the count field cannot contain a null byte")
	case strings.IndexByte(name, '.') >= 0:
		return nil, mongoerr.New(40160, "the count field cannot contain '.'")
	default:
		return []stage{countStage(name)}, nil
	}
}

func (s countStage) run(_ *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		n := int64(0)
		for _, err := range in {
			if err != nil {
				yield(nil, err)
				return
			}
			n++
		}
		if n > 0 {
			doc, at := begin(nil)
			doc = appendElement(doc, string(s), number.Int(n).Value())
			yield(finish(doc, at), nil)
		}
	}
}
