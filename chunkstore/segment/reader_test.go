package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Costs are requests: an Open is one, a Get of a present key one more, of an absent key
// almost always none; with a cache the second time is free.
func TestRequestsOfPointReads(t *testing.T) {
	t.Parallel()
	rows := sample(3000, 1, 2)
	body, refs := build(t, nil, rows, nil)
	cache := NewCache(8 << 20)
	r, obj := open(t, body, refs, cache)
	if obj.count() != 1 || obj.gets[0] != fmt.Sprintf("%d+%d", refs[0].TailOffset, refs[0].TailLength) {
		t.Errorf("open: %v", obj.gets)
	}
	for range 2 {
		_, ok, err := r.Get(t.Context(), 2, key(1500))
		if !ok || err != nil || obj.count() != 2 {
			t.Errorf("get: %v %v, requests %v", ok, err, obj.gets)
		}
		_, err = Open(t.Context(), obj.fetch, refs[1], cache)
		check(t, err)
	}
	r, obj = open(t, body, refs, nil)
	for n := range 3000 {
		_, ok, err := r.Get(t.Context(), 1, append(key(n), 'x'))
		if ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if passed := obj.count() - 1; passed > 3000*2/100 {
		t.Errorf("%d of 3000 absent keys passed the filter", passed)
	}
}

// A scan reads ahead with growing, bounded requests, in both directions; every byte of the
// object is read once; what is cached is not read again.
func TestRequestsOfScans(t *testing.T) {
	t.Parallel()
	var rows []Row
	for n := range 10_000 {
		rows = append(rows, put(1, n, 1, fmt.Sprintf("%x", noise(n, 500))))
	}
	body, refs := build(t, nil, rows, nil)
	for _, reverse := range []bool{false, true} {
		cache := NewCache(64 << 20)
		r, obj := open(t, body, refs, cache)
		if n := len(scan(t, r, 1, shardkey.Range{}, reverse)); n != len(rows) {
			t.Fatalf("%d rows", n)
		}
		read := 0
		for i, get := range obj.gets {
			var off, length int
			_, err := fmt.Sscanf(get, "%d+%d", &off, &length)
			check(t, err)
			if read += length; length > readAheadMax || i == 1 && length > 64<<10 || i == 2 && length > readAheadMin {
				t.Errorf("reverse %v: request %d of %d bytes", reverse, i, length)
			}
		}
		if read != len(body) || len(obj.gets) > len(body)/readAheadMax+6 {
			t.Errorf("reverse %v: %d requests for %d of %d bytes", reverse, len(obj.gets), read, len(body))
		}
		before := obj.count()
		scan(t, r, 1, shardkey.Range{}, !reverse)
		if obj.count() != before {
			t.Errorf("%d requests although all is cached", obj.count()-before)
		}
		short := scan(t, r, 1, shardkey.Range{Min: key(300), Max: key(305)}, reverse)
		if reverse {
			slices.Reverse(short)
		}
		sameRows(t, short, rows[300:305])
	}
	r, obj := open(t, body, refs, nil)
	it := r.Scan(1, shardkey.Range{Min: key(7000)}, false)
	for range 10 {
		it.Next(t.Context())
	}
	if obj.count() > 3 {
		t.Errorf("a short scan took %v", obj.gets)
	}
}

// Rows of a scan stay as they were, whatever is read afterwards.
func TestRowsStayValid(t *testing.T) {
	t.Parallel()
	rows := sample(2000, 1)
	for _, c := range []Codec{S2, Zstd} {
		body, refs := build(t, &WriterOptions{Codec: c, BlockSize: 2000}, rows, nil)
		r, _ := open(t, body, refs, NewCache(10_000))
		sameRows(t, scan(t, r, 1, shardkey.Range{}, false), rows)
	}
}

// Few retry entries come with the tail, many are read frame by frame; either way a range
// gives exactly its own, in order of keys.
func TestRetriesOfARange(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 50, 5000} {
		var entries []RetryEntry
		for i := range n {
			for _, c := range []manifest.CollectionID{3, 1} {
				e := RetryEntry{
					Collection: c, Key: key(i * 7 % n / 3), ExpiresAt: int64(i),
					Op:    OpID{Session: [32]byte{byte(i), byte(i >> 8), 31: 1}, Txn: int64(i), Stmt: int32(-i), Attempt: int32(i)},
					Reply: bytes.Repeat([]byte{byte(i)}, i%900),
				}
				if i%50 == 1 {
					e.Key, e.Span = nil, shardkey.Range{Min: key(i * 7 % n / 3), Max: key(i*7%n/3 + n/10 + 1)}
				}
				entries = append(entries, e)
			}
		}
		body, refs := build(t, &WriterOptions{Codec: Zstd}, []Row{put(1, 1, 1, "x"), put(3, 1, 1, "y")}, entries)
		if refs[0].RetryUntil != int64(n-1) {
			t.Errorf("retries until %d", refs[0].RetryUntil)
		}
		r, obj := open(t, body, refs, nil)
		if inTail := r.tail.retryBytes != nil; inTail != (n <= 50) || int(refs[0].TailLength) > 20<<10 {
			t.Errorf("%d entries in the tail: %v, of %d bytes", n, inTail, refs[0].TailLength)
		}
		for _, rng := range []shardkey.Range{{}, {Min: key(n / 8), Max: key(n/8 + 1)}, {Min: key(n / 5), Max: key(n / 4)}, {Max: key(0)}, {Min: key(n)}} {
			for _, c := range []manifest.CollectionID{1, 2, 3} {
				var want []RetryEntry
				for _, e := range entries {
					if e.Collection == c && e.in(rng) {
						want = append(want, e)
					}
				}
				sortRetries(want)
				before := obj.count()
				got, err := r.Retries(t.Context(), c, rng)
				check(t, err)
				if !slices.EqualFunc(got, want, equalRetry) {
					t.Fatalf("%d entries, collection %d, [%s, %s): %v, want %v", n, c, rng.Min, rng.Max, got, want)
				}
				if gets := obj.count() - before; n <= 50 && gets > 0 || len(rng.Max) > 0 && gets > 3 {
					t.Errorf("%d entries: %d requests for %d of them", n, gets, len(want))
				}
			}
		}
		check(t, Verify(t.Context(), obj.fetch, refs[0], nil))
	}
}

func equalRetry(a, b RetryEntry) bool {
	return compareRetry(&a, &b) == 0 && a.Op == b.Op && bytes.Equal(a.Reply, b.Reply) && a.Span.Equal(b.Span) && a.ExpiresAt == b.ExpiresAt
}

// A reply may be as large as a document.
func TestLargeRetryEntry(t *testing.T) {
	t.Parallel()
	e := RetryEntry{Collection: 1, Key: bytes.Repeat([]byte("k"), MaxKeyBytes), Reply: bytes.Repeat([]byte("r"), MaxDocBytes)}
	body, refs := build(t, nil, nil, []RetryEntry{e, {Collection: 1, Key: key(1)}})
	r, _ := open(t, body, refs, nil)
	got, err := r.Retries(t.Context(), 1, shardkey.Range{})
	check(t, err)
	if len(got) != 2 || !bytes.Equal(got[1].Reply, e.Reply) && !bytes.Equal(got[0].Reply, e.Reply) {
		t.Errorf("%d entries", len(got))
	}
}

// What the bucket says is passed on, except that a range beyond the end means damage.
func TestErrorsOfTheBucketPass(t *testing.T) {
	t.Parallel()
	body, refs := build(t, nil, sample(100, 1), nil)
	for _, kind := range []error{errkind.NotFound, context.DeadlineExceeded, errkind.Throttled} {
		fail := func(context.Context, int64, int64) ([]byte, error) { return nil, kind }
		_, err := Open(t.Context(), fail, refs[0], nil)
		wantKind(t, err, kind)
		if !strings.Contains(err.Error(), refs[0].Segment.Key()) {
			t.Errorf("%v does not name the segment", err)
		}
		r, _ := open(t, body, refs, nil)
		r.fetch = fail
		_, _, err = r.Get(t.Context(), 1, key(1))
		wantKind(t, err, kind)
		it := r.Scan(1, shardkey.Range{}, false)
		for range 2 {
			if it.Next(t.Context()) {
				t.Error("a row")
			}
		}
		wantKind(t, it.Err(), kind)
	}
	_, err := Open(t.Context(), (&object{}).fetch, refs[0], nil)
	wantKind(t, err, errkind.Corrupt)
}

// A reference that does not fit its object is found out before it is read far.
func TestWrongReferencesAreRefused(t *testing.T) {
	t.Parallel()
	body, refs := build(t, nil, sample(100, 1), nil)
	obj := &object{body: body}
	for name, spoil := range map[string]func(ref *manifest.SegmentRef){
		"another segment": func(ref *manifest.SegmentRef) { ref.Segment = segmentID(2) },
		"offset":          func(ref *manifest.SegmentRef) { ref.TailOffset-- },
		"no offset":       func(ref *manifest.SegmentRef) { ref.TailOffset = 0 },
		"huge offset":     func(ref *manifest.SegmentRef) { ref.TailOffset = 1 << 63 },
		"length":          func(ref *manifest.SegmentRef) { ref.TailLength++ },
		"no length":       func(ref *manifest.SegmentRef) { ref.TailLength = 0 },
		"huge length":     func(ref *manifest.SegmentRef) { ref.TailLength = 1<<32 - 1 },
	} {
		ref := refs[0]
		spoil(&ref)
		if _, err := Open(t.Context(), obj.fetch, ref, nil); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cache := NewCache(1 << 20)
	_, err := Open(t.Context(), obj.fetch, refs[0], cache)
	check(t, err)
	ref := refs[0]
	ref.TailOffset--
	_, err = Open(t.Context(), obj.fetch, ref, cache)
	wantKind(t, err, errkind.Corrupt)
	ref = refs[0]
	ref.Size++
	wantKind(t, Verify(t.Context(), obj.fetch, ref, nil), errkind.Corrupt)
}

// Stats count the whole segment.
func TestStats(t *testing.T) {
	t.Parallel()
	rows := []Row{put(1, 1, 9, "a"), put(1, 1, 4, "b"), del(1, 2, 12), put(2, 1, 1<<63, "c")}
	body, refs := build(t, nil, rows, []RetryEntry{{Collection: 2, Key: key(1)}})
	r, _ := open(t, body, refs, nil)
	want := Stats{Blocks: 2, Rows: 4, Deletes: 1, MinSeq: 4, MaxSeq: 1 << 63, RetryEntries: 1, Stored: 169}
	for _, row := range rows {
		want.Bytes += int64(len(row.Key) + len(row.Doc))
	}
	if d := cmp.Diff(want, r.Stats()); d != "" {
		t.Error(d)
	}
	var visited []Row
	check(t, Verify(t.Context(), (&object{body: body}).fetch, refs[0], func(row Row) error {
		visited = append(visited, row)
		return nil
	}))
	sameRows(t, visited, rows)
	stop := errors.New("stop")
	wantKind(t, Verify(t.Context(), (&object{body: body}).fetch, refs[0], func(Row) error { return stop }), stop)
}
