package document

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var bareName = regexp.MustCompile(`([{,]\s*)([$\w][$\w.\-\[\]]*)\s*:`)

// raw makes a document of relaxed extended JSON in which names need no quotes and strings
// may have single ones.
func raw(t testing.TB, text string) bson.Raw {
	t.Helper()
	text = bareName.ReplaceAllString(strings.ReplaceAll(text, "'", `"`), `$1"$2":`)
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	out, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// value makes a value of the same.
func value(t testing.TB, text string) bson.RawValue {
	t.Helper()
	return field(raw(t, "{v: "+text+"}"), "v")
}

// json is a document as canonical-enough text, for comparisons and messages.
func json(t testing.TB, doc bson.Raw) string {
	t.Helper()
	if err := Validate(doc, Limits{MaxBytes: MaxInternalBytes}); err != nil {
		t.Fatalf("% x: %v", []byte(doc), err)
	}
	out, err := bson.MarshalExtJSON(doc, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// sameDoc fails unless got is the document of the text, byte for byte.
func sameDoc(t testing.TB, got bson.Raw, want string) {
	t.Helper()
	w := raw(t, want)
	if string(got) != string(w) {
		t.Errorf("got  %s\nwant %s", json(t, got), json(t, w))
	}
}

// refused fails unless err has this code, and a text that contains words.
func refused(t testing.TB, err error, code mongoerr.Code, words string) {
	t.Helper()
	var e *mongoerr.Error
	switch {
	case !errors.As(err, &e):
		t.Errorf("got %v, want code %d", err, code)
	case e.Code != code || !strings.Contains(e.Message, words):
		t.Errorf("got %d %q\nwant %d %q", e.Code, e.Message, code, words)
	}
}

func filter(t testing.TB, text string) *Filter {
	t.Helper()
	f, err := ParseFilter(raw(t, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return f
}
