package document

import (
	"bytes"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// cannotIndexParallelArrays is MongoDB's code for two arrays in one index.
const cannotIndexParallelArrays mongoerr.Code = 171

// IndexKeys are the keys that a document has in an index, by its specification: key, sparse
// and partialFilterExpression count. There are several when one field is an array, and none
// when the document is not in the index. A missing field counts as null. Two documents that
// share a key break a unique index. Errors: *mongoerr.Error for two arrays, and for a filter
// that fails on the document.
func IndexKeys(spec, doc bson.Raw) ([][]byte, error) {
	key, _ := spec.Lookup("key").DocumentOK()
	pattern, err := shardkey.ParseIndexPattern(key)
	if err != nil {
		return nil, mongoerr.New(mongoerr.CannotCreateIndex, "%v", err)
	}
	if only, ok := spec.Lookup("partialFilterExpression").DocumentOK(); ok {
		f, err := ParseFilter(only)
		if err != nil {
			return nil, err
		}
		if in, err := f.MatchErr(doc); !in || err != nil {
			return nil, err
		}
	}
	keys, some, err := indexKeys(pattern, doc)
	if sparse, _ := spec.Lookup("sparse").BooleanOK(); sparse && !some {
		return nil, err
	}
	return keys, err
}

// indexKeys are the keys of a pattern; some: the document has one of its fields.
func indexKeys(pattern shardkey.Pattern, doc bson.Raw) (keys [][]byte, some bool, err error) {
	keys = [][]byte{nil}
	array := ""
	for _, f := range pattern.Fields {
		v, ok := Lookup(doc, f.Path)
		some = some || ok
		values := []bson.RawValue{v}
		if v.Type == bson.TypeArray {
			if array != "" {
				return nil, some, mongoerr.New(cannotIndexParallelArrays, "cannot index parallel arrays [%s] [%s]", f.Path, array)
			}
			array = f.Path
			if values, _ = bson.RawArray(v.Value).Values(); len(values) == 0 {
				values = []bson.RawValue{{Type: bson.TypeUndefined}}
			}
		}
		var next [][]byte
		for _, k := range keys {
			for _, v := range values {
				next = append(next, shardkey.AppendValue(bytes.Clone(k), v, f.Descending))
			}
		}
		keys = next
	}
	return keys, some, nil
}
