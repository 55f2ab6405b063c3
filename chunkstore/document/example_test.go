package document_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/document"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// encode stands for the bytes that come from a socket or a segment.
func encode(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

var book = encode(bson.D{
	{Key: "_id", Value: 7}, {Key: "title", Value: "Dune"}, {Key: "price", Value: 12.5},
	{Key: "tags", Value: bson.A{"sand", "spice"}},
})

func ExampleValidate() {
	fmt.Println(document.Validate(book, document.Limits{}))
	broken := bytes.Clone(book)
	broken[len(broken)-1] = 1
	fmt.Println(document.Validate(broken, document.Limits{}))
	// Output:
	// <nil>
	// InvalidBSON: invalid BSON: the document does not end in 00 where its length says (field '', offset 0)
}

func ExampleParseFilter() {
	f, err := document.ParseFilter(encode(bson.D{
		{Key: "tags", Value: "spice"}, {Key: "price", Value: bson.D{{Key: "$lt", Value: 20}}},
	}))
	fmt.Println(f.Match(book), err)
	_, err = document.ParseFilter(encode(bson.D{{Key: "price", Value: bson.D{{Key: "$less", Value: 20}}}}))
	fmt.Println(err)
	// Output:
	// true <nil>
	// BadValue: unknown operator: $less
}

func ExampleUpdate_Apply() {
	u, err := document.ParseUpdate(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: encode(bson.D{
		{Key: "$inc", Value: bson.D{{Key: "price", Value: 2}}},
		{Key: "$push", Value: bson.D{{Key: "tags", Value: "classic"}}},
	})}, document.UpdateOptions{})
	if err != nil {
		panic(err)
	}
	updated, changed, err := u.Apply(nil, book)
	fmt.Println(bson.Raw(updated), changed, err)
	// Output:
	// {"_id": {"$numberInt":"7"},"title": "Dune","price": {"$numberDouble":"14.5"},"tags": ["sand","spice","classic"]} true <nil>
}

func ExampleUpdate_Upsert() {
	f, _ := document.ParseFilter(encode(bson.D{{Key: "title", Value: "Emma"}}))
	u, _ := document.ParseUpdate(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: encode(bson.D{
		{Key: "$set", Value: bson.D{{Key: "price", Value: 8}}},
	})}, document.UpdateOptions{Upsert: true})
	inserted, err := u.Upsert(nil, f, func() bson.RawValue {
		return bson.RawValue{Type: bson.TypeInt32, Value: []byte{8, 0, 0, 0}}
	})
	fmt.Println(bson.Raw(inserted), err)
	// Output:
	// {"_id": {"$numberInt":"8"},"title": "Emma","price": {"$numberInt":"8"}} <nil>
}

func ExampleParseProjection() {
	p, err := document.ParseProjection(encode(bson.D{{Key: "title", Value: 1}, {Key: "_id", Value: 0}}))
	if err != nil {
		panic(err)
	}
	shown, err := p.Append(nil, book)
	fmt.Println(bson.Raw(shown), err)
	// Output:
	// {"title": "Dune"} <nil>
}

func ExampleSort_AppendKey() {
	s, err := document.ParseSort(encode(bson.D{{Key: "price", Value: -1}}))
	if err != nil {
		panic(err)
	}
	cheap := encode(bson.D{{Key: "price", Value: 3}})
	fmt.Println(bytes.Compare(s.AppendKey(nil, book), s.AppendKey(nil, cheap)))
	// Output:
	// -1
}

func ExamplePipeline_Run() {
	_, stages, _ := bson.MarshalValue(bson.A{
		bson.D{{Key: "$unwind", Value: "$tags"}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$title"}, {Key: "tags", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	})
	p, err := document.ParsePipeline(bson.RawValue{Type: bson.TypeArray, Value: stages})
	if err != nil {
		panic(err)
	}
	books := func(yield func(bson.Raw, error) bool) { yield(book, nil) }
	for doc, err := range p.Run(context.Background(), books, document.RunLimits{}) {
		fmt.Println(doc, err)
	}
	// Output:
	// {"_id": "Dune","tags": {"$numberInt":"2"}} <nil>
}

func ExampleLookup() {
	v, ok := document.Lookup(book, "title")
	fmt.Println(v, ok)
	// Output:
	// "Dune" true
}
