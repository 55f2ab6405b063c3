package reader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Every way to read a chunk fails when a segment of it is missing, cut short or damaged,
// and says which; none of them takes it for empty.
func TestUnreadableSegmentsAreNeverEmpty(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		damage func(w *world, id manifest.SegmentID, body []byte)
		kind   error
	}{
		{"missing", func(w *world, id manifest.SegmentID, _ []byte) { w.must(w.inner.Delete(ctx, id.Key())) }, errkind.NotFound},
		{"empty", func(w *world, id manifest.SegmentID, _ []byte) { w.upload(id, nil) }, errkind.Corrupt},
		{"without its last byte", func(w *world, id manifest.SegmentID, b []byte) { w.upload(id, b[:len(b)-1]) }, errkind.Corrupt},
		{"cut in the blocks", func(w *world, id manifest.SegmentID, b []byte) { w.upload(id, b[:60]) }, errkind.Corrupt},
		{"another segment", func(w *world, id manifest.SegmentID, b []byte) {
			other := w.view.Chunk.Refs[0].Segment
			o, err := w.inner.Get(ctx, other.Key(), bucket.GetOptions{})
			w.must(err)
			w.upload(id, o.Body)
		}, errkind.Corrupt},
		{"a flipped bit in the tail", func(w *world, id manifest.SegmentID, b []byte) { b[len(b)-90] ^= 4; w.upload(id, b) }, errkind.Corrupt},
		{"a flipped bit in a block", func(w *world, id manifest.SegmentID, b []byte) { b[60] ^= 4; w.upload(id, b) }, errkind.Corrupt},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.block = 64 << 10 // one block: every read meets it
			w.add(run(0, 10, 1, "older")...)
			ref := w.add(run(0, 10, 2, "newer")...)
			ref.RetryUntil = 100
			o, err := w.inner.Get(ctx, ref.Segment.Key(), bucket.GetOptions{})
			w.must(err)
			c.damage(w, ref.Segment, slices.Clone(o.Body))
			for verb, err := range w.everyRead() {
				if verb == "retries" && c.what == "a flipped bit in a block" {
					continue // they come with the tail
				}
				if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), ref.Segment.Key()) {
					t.Errorf("%s: %v; want %v, naming the segment", verb, err, c.kind)
				}
			}
		})
	}
}

// everyRead is the error of each verb.
func (w *world) everyRead() map[string]error {
	errs := map[string]error{}
	_, _, errs["get"] = w.store.Get(ctx, w.view, key(5))
	errs["get many"] = w.store.GetMany(ctx, w.view, [][]byte{key(5)})[0].Err
	_, errs["retries"] = w.store.Retries(ctx, w.view, 0)
	for name, reverse := range map[string]bool{"scan": false, "scan backwards": true} {
		it := w.store.Scan(ctx, w.view, shardkey.Range{}, reverse)
		for it.Next(ctx) {
		}
		errs[name] = it.Err()
		if it.Next(ctx) || !errors.Is(it.Err(), errs[name]) {
			errs[name+", again"] = fmt.Errorf("went on after %v", errs[name])
		}
	}
	estimated := *w.view.Chunk
	estimated.RowsEstimated = true
	_, errs["count"] = w.store.Count(ctx, View{Chunk: &estimated})
	_, errs["count with unflushed rows"] = w.store.Count(ctx, View{Chunk: w.view.Chunk, Mems: []Mem{newMem(put(5, 9, "x"))}})
	return errs
}

// A row above its reference's highest seq would be seen by some reads and not by others.
func TestRowAboveItsReferencesSeqIsCorrupt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(run(0, 10, 5, "v")...).MaxSeq = 4
	for verb, err := range w.everyRead() {
		if verb != "retries" && !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

func TestKeyOutsideTheChunkIsInvalid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.view.Chunk.Range = keys(10, 20)
	if _, _, err := w.store.Get(ctx, w.view, key(20)); !errors.Is(err, errkind.Invalid) {
		t.Errorf("%v", err)
	}
	if got := w.scan(keys(20, 30), false, 0); got != nil {
		t.Errorf("scan outside: %v", got)
	}
}

func TestUnknownLocationIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(run(0, 10, 1, "v")...)
	lost := errors.New("no such location")
	s := NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return nil, lost }, nil)
	if _, _, err := s.Get(ctx, w.view, key(1)); !errors.Is(err, lost) {
		t.Errorf("%v", err)
	}
}

// A scan that meets nothing but deletions still ends with its context.
func TestScanEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var rows []segment.Row
	for k := range 3 * pollEvery {
		rows = append(rows, del(k, 1))
	}
	w.view.Mems = []Mem{newMem(rows...)}
	dead, stop := context.WithCancelCause(ctx)
	tired := errors.New("tired")
	stop(tired)
	it := w.store.Scan(dead, w.view, shardkey.Range{}, false)
	if it.Next(dead) || !errors.Is(it.Err(), tired) {
		t.Errorf("%v", it.Err())
	}
}
