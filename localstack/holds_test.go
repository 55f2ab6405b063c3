package localstack_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/klauspost/compress/zstd"
)

// secret is in keys and documents of the EU, and nowhere else.
var secret = []byte("SECRET")

// holds tells whether an object has the word in it: as it is, in what zstd packed from any
// place on, or in the rows and retry entries of a segment.
func holds(t *testing.T, key string, body []byte) bool {
	t.Helper()
	if bytes.Contains(body, secret) || unzipped(t, body) {
		return true
	}
	if !strings.HasPrefix(key, "seg/") {
		return false
	}
	id, err := manifest.ParseSegmentKey(key)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	err = segment.Walk(id, body, func(r segment.Row) error {
		found = found || bytes.Contains(r.Key, secret) || bytes.Contains(r.Doc, secret)
		return nil
	}, func(e segment.RetryEntry) error {
		found = found || bytes.Contains(e.Key, secret) || bytes.Contains(e.Reply, secret) || bytes.Contains(e.Span.Min, secret) || bytes.Contains(e.Span.Max, secret)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func unzipped(t *testing.T, body []byte) bool {
	t.Helper()
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for rest := body; ; {
		i := bytes.Index(rest, []byte{0x28, 0xB5, 0x2F, 0xFD})
		if i < 0 {
			return false
		}
		plain, _ := d.DecodeAll(rest[i:], nil) // what follows a frame is no frame: an error, and the frame's bytes
		if bytes.Contains(plain, secret) {
			return true
		}
		rest = rest[i+4:]
	}
}
