package bucket_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
)

func TestCellSwapsOnlyFromTheTagItWasGiven(t *testing.T) {
	ctx, c := t.Context(), bucket.NewCell(membucket.New())
	if _, _, err := c.Load(ctx, "meta/root", ""); !errors.Is(err, errkind.NotFound) {
		t.Fatal(err)
	}
	one, err := c.Swap(ctx, "meta/root", []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Swap(ctx, "meta/root", []byte("x"), ""); !errors.Is(err, errkind.Conflict) {
		t.Fatal(err)
	}
	if _, _, err := c.Load(ctx, "meta/root", one); !errors.Is(err, errkind.NotModified) {
		t.Fatal(err)
	}
	two, err := c.Swap(ctx, "meta/root", []byte("two"), one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Swap(ctx, "meta/root", []byte("x"), one); !errors.Is(err, errkind.Conflict) {
		t.Fatal(err)
	}
	body, tag, err := c.Load(ctx, "meta/root", one)
	if string(body) != "two" || tag != two || err != nil {
		t.Fatal(string(body), tag, err)
	}
}

// answering is a store that answers every Put with one error.
type answering struct {
	bucket.Bucket
	err error
}

func (a answering) Put(context.Context, string, []byte, bucket.Condition) (bucket.Tag, error) {
	return "", a.err
}

// Whatever a driver answers, the caller of Swap sees one of three kinds.
func TestCellSortsErrorsOfSwap(t *testing.T) {
	for _, c := range []struct{ answer, want error }{
		{errkind.Conflict, errkind.Conflict},
		{errkind.NotFound, errkind.Conflict},
		{errkind.Throttled, errkind.Throttled},
		{errkind.UnknownOutcome, errkind.UnknownOutcome},
		{errkind.Invalid, errkind.Invalid},
		{errkind.Corrupt, errkind.UnknownOutcome},
		{errors.New("409"), errkind.UnknownOutcome},
		{context.DeadlineExceeded, errkind.UnknownOutcome},
	} {
		_, err := bucket.NewCell(answering{err: c.answer}).Swap(t.Context(), "k", nil, "tag")
		if !errors.Is(err, c.want) || !errors.Is(err, c.answer) {
			t.Errorf("%v became %v, want %v", c.answer, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := bucket.NewCell(answering{err: errors.New("was sent")}).Swap(ctx, "k", nil, "")
	if !errors.Is(err, errkind.Throttled) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCheckKeyNamesTheRule(t *testing.T) {
	for key, rule := range map[string]string{
		"": "1 to 1024 bytes", strings.Repeat("k", 1025): "1 to 1024 bytes", "a//b": "empty component",
		"/a": "empty component", "a/../b": ". or ..", "a\x00": "NUL", "\xff": "UTF-8",
		strings.Repeat("k", 256): "at most 255",
	} {
		err := bucket.CheckKey(key)
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), rule) {
			t.Errorf("%.20q: %v", key, err)
		}
	}
	for _, key := range []string{"meta/root", "wal/shard01/1/2", "a.b", "...", strings.Repeat("k", 255)} {
		if err := bucket.CheckKey(key); err != nil {
			t.Error(err)
		}
	}
}
