package command

import (
	"errors"
	"testing"
)

// TestInconsistenciesAreNamed: a sound root has none, and what is wrong with another one is said
// in the check's own words.
func TestInconsistenciesAreNamed(t *testing.T) {
	t.Parallel()
	if docs := inconsistencies(7, nil); docs != nil {
		t.Errorf("%v", docs)
	}
	docs := inconsistencies(7, errors.New("chunks of shop.orders leave a hole at { k: 5 }"))
	if len(docs) != 1 || docs[0].Lookup("type").StringValue() != "InvalidRoot" ||
		docs[0].Lookup("description").StringValue() != "chunks of shop.orders leave a hole at { k: 5 }" ||
		docs[0].Lookup("details", "rootVersion").AsInt64() != 7 {
		t.Errorf("%v", docs)
	}
}
