// Package audittest looks for a word in objects, with as little knowledge of their formats as
// finding it takes. It is what audits are held against in tests.
//
// The word is put into keys and documents that must stay in one place; an object elsewhere that
// has it is a leak, whatever the audit says. Bytes are searched as they are and as zstd unpacks
// them; segments, whose blocks are packed otherwise, are walked over row by row.
//
// It changes nothing, so that a crash leaves nothing.
package audittest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/klauspost/compress/zstd"
)

// Holds tells whether an object has a word in it: as it is, in what zstd packed from any place
// on, or in the rows and retry entries of a segment.
func Holds(t testing.TB, word, key string, object []byte) bool {
	t.Helper()
	has := func(list ...[]byte) bool {
		for _, b := range list {
			if bytes.Contains(b, []byte(word)) {
				return true
			}
		}
		return false
	}
	found := has(object) || has(unpacked(t, object)...)
	if !strings.HasPrefix(key, "seg/") {
		return found
	}
	id, err := manifest.ParseSegmentKey(key)
	if err != nil {
		t.Fatal(err)
	}
	err = segment.Walk(id, object, func(r segment.Row) error {
		found = found || has(r.Key, r.Doc)
		return nil
	}, func(e segment.RetryEntry) error {
		found = found || has(e.Key, e.Reply, e.Span.Min, e.Span.Max)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// unpacked is what zstd makes of an object from each place on that looks like a frame.
func unpacked(t testing.TB, object []byte) (plain [][]byte) {
	t.Helper()
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for rest := object; ; {
		i := bytes.Index(rest, []byte{0x28, 0xB5, 0x2F, 0xFD})
		if i < 0 {
			return plain
		}
		p, _ := d.DecodeAll(rest[i:], nil) // what follows a frame is none: an error, and the frame's bytes
		plain, rest = append(plain, p), rest[i+4:]
	}
}
