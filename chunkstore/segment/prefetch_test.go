package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"pgregory.net/rapid"
)

// What is taken never passes the bound of a part or of the whole, and what is given back can
// be taken again.
func TestPrefetchKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole := NewPrefetch(100)
		parts := []*Prefetch{whole, whole.Part(60), whole.Part(70)}
		taken := make([][]int64, len(parts))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, len(parts)-1).Draw(t, "part")
			if n := len(taken[i]); n > 0 && rapid.Bool().Draw(t, "give") {
				parts[i].Give(taken[i][n-1])
				taken[i] = taken[i][:n-1]
			} else if n := rapid.Int64Range(0, 80).Draw(t, "bytes"); parts[i].Take(n) {
				taken[i] = append(taken[i], n)
			}
			var sum int64
			for i, p := range parts {
				var own int64
				for _, n := range taken[i] {
					own += n
				}
				if sum += own; i > 0 && p.Used() != own || own > p.limit {
					t.Fatalf("part %d: %d used, %d taken", i, p.Used(), own)
				}
			}
			if whole.Used() != sum || sum > 100 {
				t.Fatalf("%d used, %d taken", whole.Used(), sum)
			}
		}
	})
	var none *Prefetch
	if none.Part(5).Take(0) {
		t.Error("nothing allows something")
	}
	none.Give(5)
}

// noisyRows is n rows of 500 bytes that do not compress.
func noisyRows(n int) (rows []Row) {
	for i := range n {
		rows = append(rows, put(1, i, 1, fmt.Sprintf("%x", noise(i, 500))))
	}
	return rows
}

// A scan that reads ahead sees the same rows as any, in either direction, whatever is cached,
// whatever room it has, and wherever it rests; nothing stays taken.
func TestScanAheadSeesAllRows(t *testing.T) {
	t.Parallel()
	rows := noisyRows(6000)
	body, refs := build(t, nil, rows, nil)
	rapid.Check(t, func(t *rapid.T) {
		cache := NewCache(rapid.SampledFrom([]int64{0, 500_000, 64 << 20}).Draw(t, "cache"))
		p := NewPrefetch(rapid.SampledFrom([]int64{0, 300_000, 64 << 20}).Draw(t, "room"))
		reverse := rapid.Bool().Draw(t, "reverse")
		obj := &object{body: body}
		r, err := Open(context.Background(), obj.fetch, refs[0], cache)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 20).Draw(t, "cached") { // holes in what is to be read
			if _, _, err := r.Get(context.Background(), 1, key(rapid.IntRange(0, len(rows)-1).Draw(t, "key"))); err != nil {
				t.Fatal(err)
			}
		}
		rest := int64(rapid.SampledFrom([]int{1, 700, 3000, 10_000}).Draw(t, "rest"))
		from := rapid.IntRange(0, len(rows)).Draw(t, "from")
		to := rapid.IntRange(from, len(rows)).Draw(t, "to")
		if rest == 1 { // slow
			to = min(to, from+300)
		}
		want := rows[from:to]
		it := r.Scan(1, shardkey.Range{Min: key(from), Max: key(to)}, reverse)
		left := rest
		if rapid.Bool().Draw(t, "wants") {
			it.Prefetch(p, func() int64 { return left })
		} else {
			it.Prefetch(p, nil)
		}
		n := 0
		for ; it.Next(context.Background()); n++ {
			at := n
			if reverse {
				at = len(want) - 1 - n
			}
			if at < 0 || at >= len(want) || string(it.Row().Key) != string(want[at].Key) || string(it.Row().Doc) != string(want[at].Doc) {
				t.Fatalf("row %d is %s", n, it.Row().Key)
			}
			if left--; left == 0 {
				it.Rest()
				if p.Used() != 0 {
					t.Fatalf("%d taken at rest", p.Used())
				}
				left = rest
			}
		}
		if it.Err() != nil || p.Used() != 0 || n != len(want) {
			t.Fatalf("%d rows of %d, %v, %d taken", n, len(want), it.Err(), p.Used())
		}
	})
}

// Reads that were sent ahead overlap one another and the scan; a scan that had all planned
// says so.
func TestScanAheadOverlapsItsReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, refs := build(t, nil, noisyRows(20_000), nil)
		obj := &object{body: body}
		slow := func(ctx context.Context, off, length int64) ([]byte, error) {
			time.Sleep(time.Second)
			return obj.fetch(ctx, off, length)
		}
		for _, c := range []struct {
			p       *Prefetch
			seconds int
		}{{nil, len(body)/readAheadMax + 6}, {NewPrefetch(64 << 20), 9}} {
			obj.gets = nil
			begin := time.Now()
			r, err := Open(t.Context(), slow, refs[0], nil)
			check(t, err)
			it := r.Scan(1, shardkey.Range{}, false)
			it.Prefetch(c.p, nil)
			planned := 0
			for it.Next(t.Context()) {
				if it.Planned() {
					planned++
				}
			}
			check(t, it.Err())
			seconds := int(time.Since(begin) / time.Second)
			t.Logf("%d requests, %d seconds", obj.count(), seconds)
			if seconds > c.seconds || planned == 0 || planned == 20_000 {
				t.Errorf("%d requests, %d seconds, %d rows planned", obj.count(), seconds, planned)
			}
		}
	})
}

// A batch reads each block that its keys need once, adjacent ones together, and finds what
// Get finds; what could not be read is the error of its keys.
func TestBatchReadsEachBlockOnce(t *testing.T) {
	t.Parallel()
	rows := sample(3000, 1, 2)
	body, refs := build(t, &WriterOptions{BlockSize: 4 << 10}, rows, nil)
	cache := NewCache(8 << 20)
	r, obj := open(t, body, refs, cache)
	plain, _ := open(t, body, refs, nil)
	absent := append(key(77), 'x')
	for round, fetched := range []bool{true, false} {
		b := r.Batch()
		before := obj.count()
		wanted := map[int]bool{}
		for n := 0; n < 3000; n += 7 {
			if wanted[n] = b.Want(1, key(n)); !wanted[n] {
				t.Fatalf("key %d surely absent", n)
			}
		}
		if b.Want(1, absent) && round == 0 {
			t.Log("the filter lets an absent key pass")
		}
		if b.Want(9, key(1)) {
			t.Log("the filter lets an absent collection pass")
		}
		reads := b.Reads()
		for _, read := range reads {
			b.Read(t.Context(), read)
		}
		if again := b.Reads(); again != nil {
			t.Errorf("read again: %v", again)
		}
		sent := obj.count() - before
		if fetched != (sent > 0) || sent != len(reads) || sent > 3 {
			t.Errorf("round %d: %d requests for %d reads", round, sent, len(reads))
		}
		for n := range wanted {
			got, ok, err := b.Get(t.Context(), 1, key(n))
			check(t, err)
			want, found, err := plain.Get(t.Context(), 1, key(n))
			check(t, err)
			if ok != found || got.Seq != want.Seq || string(got.Doc) != string(want.Doc) {
				t.Errorf("key %d: %+v", n, got)
			}
		}
		if _, ok, err := b.Get(t.Context(), 1, absent); ok || err != nil {
			t.Error(ok, err)
		}
		if obj.count() != before+sent {
			t.Error("Get fetched what the batch has")
		}
		_, ok, err := b.Get(t.Context(), 2, key(5)) // not wanted before: read now
		if !ok || err != nil {
			t.Error(ok, err)
		}
	}
	broken := slices.Clone(body)
	broken[plain.tail.blocks.offs[3]+20] ^= 1
	r, _ = open(t, broken, refs, nil)
	b := r.Batch()
	for n := range 200 {
		b.Want(1, key(n))
	}
	for _, read := range b.Reads() {
		b.Read(t.Context(), read)
	}
	failed := 0
	for n := range 200 {
		_, ok, err := b.Get(t.Context(), 1, key(n))
		if err != nil {
			wantKind(t, err, errkind.Corrupt)
			failed++
		} else if !ok {
			t.Errorf("key %d is missing", n)
		}
	}
	if failed == 0 || failed > 100 {
		t.Errorf("%d keys failed", failed)
	}
	r.fetch = func(context.Context, int64, int64) ([]byte, error) { return nil, errors.New("broken") }
	b = r.Batch()
	b.Want(1, key(5))
	b.Want(1, key(5))
	for _, read := range b.Reads() {
		b.Read(t.Context(), read)
	}
	if _, _, err := b.Get(t.Context(), 1, key(5)); err == nil {
		t.Error("no error")
	}
}
