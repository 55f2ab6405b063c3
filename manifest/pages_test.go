package manifest_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// manyChunks is a collection of n chunks with bounds like those of a hashed key, all on a.
func manyChunks(n int) manifest.CreateCollection {
	bound := func(i int) manifest.Bound {
		if i == 0 || i == n {
			return manifesttest.Bound("", i == n)
		}
		x := uint64(i) * (^uint64(0) / uint64(n))
		key := []byte{0x10, byte(x >> 56), byte(x >> 48), byte(x >> 40), byte(x >> 32), byte(x >> 24), byte(x >> 16), byte(x >> 8), byte(x)}
		return manifest.Bound{Key: key, BSON: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt64("k", int64(x)).Build())}
	}
	c := manifest.CreateCollection{Collection: manifest.Collection{
		UUID: [16]byte{1}, Database: "db", Name: "big", Sharded: true,
		Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "k", Hashed: true}}},
	}}
	for i := range n {
		c.Chunks = append(c.Chunks, manifest.NewChunk{Min: bound(i), Max: bound(i + 1), Shard: "a"})
	}
	return c
}

// fill is a flush that gives every chunk of the big collection refs references, as a loaded
// cluster has them: row keys of hash and ObjectId.
func fill(s *manifest.State, refs int) manifest.Flush {
	h := manifesttest.Host(5)
	f := manifest.Flush{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: 10}, Complete: true}
	by := manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1}
	for c := range s.Chunks(1) {
		f.Chunks = append(f.Chunks, manifest.FlushedChunk{At: c.At(), Added: rows(h.ID16, c, by, refs)})
	}
	return f
}

func rows(random func() [16]byte, c *manifest.Chunk, by manifest.Creator, refs int) manifest.Added {
	var a manifest.Added
	for range refs {
		id := random()
		low := append(append([]byte{}, c.Range.Min...), 1)
		high := append(append([]byte{}, low...), id[:12]...)
		a.Refs = append(a.Refs, manifest.SegmentRef{
			Segment: manifest.SegmentID{Creator: by, Random: random()}, Clip: c.Range, MinKey: low, MaxKey: high,
			MinSeq: c.MaxSeq + 1, MaxSeq: c.MaxSeq + 50, Rows: 50, Bytes: 50 << 10, Size: 1 << 20, TailOffset: 1<<20 - 4000, TailLength: 4000,
		})
		a.RowsDelta += 50
		a.BytesDelta += 50 << 10
	}
	return a
}

// big makes a root with n chunks, a held at epoch 1, each chunk with refs references.
func big(t testing.TB, cell manifest.Cell, n, refs int) *manifest.Root {
	t.Helper()
	if _, err := manifest.Create(t.Context(), cell, manifesttest.Host(9), manifest.InitOptions{Shards: []manifest.ShardID{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
	s, err := r.Commit(t.Context(), edit("create", manyChunks(n), manifest.Claim{Shard: "a", Holder: "p"}))
	if err == nil && refs > 0 {
		_, err = r.Commit(t.Context(), edit("fill", fill(s, refs)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// splitOf is a split of the chunk in the middle of the i-th part of the key space.
func splitOf(s *manifest.State, i, of int) manifest.Split {
	c := s.ChunkOf(1, []byte{0x10, byte(i * 255 / of), 7, 7, 7})
	key := append(append([]byte{}, c.Range.Min...), 0x80)
	if len(c.Range.Min) == 0 {
		key = []byte{0x10, 0}
	}
	return manifest.Split{Chunk: c.At(), Points: []manifest.Bound{{Key: key, BSON: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt64("k", int64(i)).Build())}}}
}

// TestSmallClusterIsOneObject: 1 GET to load, 1 PUT to commit, no pages.
func TestSmallClusterIsOneObject(t *testing.T) {
	cell := &manifesttest.MemCell{}
	r := big(t, cell, 50, 2)
	before := len(cell.Requests("", ""))
	if _, err := r.Commit(t.Context(), edit("split", splitOf(r.State(), 1, 2))); err != nil {
		t.Fatal(err)
	}
	load(t, manifest.NewRoot(cell, manifesttest.Host(2), nil))
	if n := len(cell.Requests("", "")) - before; n != 2 || len(cell.Keys("meta/page/")) != 0 {
		t.Errorf("%d requests, pages %v", n, cell.Keys("meta/page/"))
	}
}

// TestReadersFetchOnlyPagesTheyLack: two roots change a large chunk list in turn; each
// fetches the pages that the other made into objects, and both come to the same state, as
// does a third that starts from nothing.
func TestReadersFetchOnlyPagesTheyLack(t *testing.T) {
	cell := &manifesttest.MemCell{}
	a := big(t, cell, 3000, 1)
	b := manifest.NewRoot(cell, manifesttest.Host(2), nil)
	load(t, b)
	all := len(load(t, b).Pages())
	if all < 20 || int(b.Stats().PagesFetched) != all {
		t.Fatalf("%d pages, %d fetched", all, b.Stats().PagesFetched)
	}
	for i := range 60 {
		was := b.State()
		if _, err := a.Commit(t.Context(), edit(fmt.Sprint("split", i), splitOf(a.State(), i, 60))); err != nil {
			t.Fatal(err)
		}
		fetched := b.Stats().PagesFetched
		now := load(t, b)
		if n := b.Stats().PagesFetched - fetched; n > 0 {
			t.Errorf("split %d: %d pages fetched, but the one that changed came with the root", i, n)
		}
		if err := manifest.ValidateStep(was, now); err != nil {
			t.Error(err)
		}
		changed := 0
		for range manifest.ChangedChunks(was, now) {
			changed++
		}
		if changed != 3 {
			t.Errorf("split %d: %d chunks changed, expected the parent and two children", i, changed)
		}
		if _, err := b.Commit(t.Context(), edit(fmt.Sprint("mark", i), manifest.MarkChunk{Chunk: firstOf(now).At(), Flags: manifest.ChunkIndivisible})); err != nil {
			t.Fatal(err)
		}
	}
	c := manifest.NewRoot(cell, manifesttest.Host(3), nil)
	want, got := load(t, a), load(t, c)
	if manifesttest.Format(want) != manifesttest.Format(got) {
		t.Error("a state built step by step differs from one read from nothing")
	}
	if err := manifest.Validate(got); err != nil {
		t.Error(err)
	}
	for _, p := range got.Pages() {
		if cell.Object(p.Key()) == nil {
			t.Errorf("page %s is not there", p.Key())
		}
	}
}

func firstOf(s *manifest.State) *manifest.Chunk {
	for c := range s.Chunks(1) {
		return c
	}
	return nil
}

// TestMissingOrDamagedPageIsCorrupt: never an empty chunk list, and the page is named.
func TestMissingOrDamagedPageIsCorrupt(t *testing.T) {
	cell := &manifesttest.MemCell{}
	r := big(t, cell, 2000, 1)
	pages := r.State().Pages()
	victim, other := pages[3].Key(), pages[4].Key()
	good := cell.Object(victim)
	damage := map[string][]byte{
		"missing":   nil,
		"truncated": good[:len(good)-1],
		"flipped":   append(append([]byte{}, good[:100]...), append([]byte{good[100] ^ 4}, good[101:]...)...),
		"another":   cell.Object(other),
		"empty":     {},
	}
	for name, body := range damage {
		cell.Put(victim, body)
		_, _, err := manifest.NewRoot(cell, manifesttest.Host(2), nil).Load(t.Context())
		if !errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), victim) {
			t.Errorf("%s: %v", name, err)
		}
		cell.Put(manifest.PinKey([16]byte{}), cell.Object(manifest.RootKey))
		if _, err := manifest.ReadCopy(t.Context(), cell, nil, manifest.PinKey([16]byte{})); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s: copy: %v", name, err)
		}
	}
	cell.Put(victim, good)
	load(t, manifest.NewRoot(cell, manifesttest.Host(2), nil))
}

// TestPageSweptMeanwhileIsReadAgain: a page that is gone because the root moved on while it
// was read is no damage.
func TestPageSweptMeanwhileIsReadAgain(t *testing.T) {
	cell := &manifesttest.MemCell{}
	a := big(t, cell, 2000, 1)
	move := func() {
		for i, p := range a.State().Pages() {
			c := a.State().ChunkOf(1, p.FirstKey)
			if _, err := a.Commit(t.Context(), edit(fmt.Sprint("mark", i), manifest.MarkChunk{Chunk: c.At(), Flags: manifest.ChunkIndivisible})); err != nil {
				t.Error(err)
			}
		}
		still := map[string]bool{}
		for _, p := range a.State().Pages() {
			still[p.Key()] = true
		}
		for _, key := range cell.Keys("meta/page/") {
			if !still[key] {
				cell.Put(key, nil)
			}
		}
	}
	var once sync.Once
	g := &gate{MemCell: cell, before: func(_, key string) {
		if strings.HasPrefix(key, "meta/page/") {
			once.Do(move)
		}
	}}
	if s := load(t, manifest.NewRoot(g, manifesttest.Host(2), nil)); s.Version() != a.State().Version() {
		t.Errorf("version %d, expected %d", s.Version(), a.State().Version())
	}
}

// TestCrashBetweenPagesAndRoot: pages that were written for a root that never came leave
// the old state readable; faults while pages are written are waited out.
func TestCrashBetweenPagesAndRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := &manifesttest.MemCell{}
		a := big(t, cell, 1000, 1)
		before := load(t, a)
		pages := len(cell.Keys("meta/page/"))
		cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
			if q.Verb == "swap" && q.Key == manifest.RootKey {
				return manifesttest.Fault{Kind: manifesttest.LostBefore}
			}
			return manifesttest.Fault{}
		}
		dying := manifest.NewRoot(cell, manifesttest.Host(4), &manifest.RootOptions{Attempts: 3, PageBudget: 1})
		if _, err := dying.Commit(t.Context(), edit("lost", splitOf(before, 1, 2))); !errors.Is(err, errkind.UnknownOutcome) {
			t.Fatalf("got %v", err)
		}
		if n := len(cell.Keys("meta/page/")); n <= pages {
			t.Fatal("the dying commit wrote no page")
		}
		cell.Fault = nil
		after := load(t, manifest.NewRoot(cell, manifesttest.Host(5), nil))
		if manifesttest.Format(before) != manifesttest.Format(after) {
			t.Error("the old state changed")
		}
		for kind := manifesttest.LostBefore; kind <= manifesttest.Throttle; kind++ {
			n := 0
			cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
				if q.Verb == "swap" && strings.HasPrefix(q.Key, "meta/page/") {
					if n++; n%2 == 1 {
						return manifesttest.Fault{Kind: kind, After: 2}
					}
				}
				return manifesttest.Fault{}
			}
			r := manifest.NewRoot(cell, manifesttest.Host(uint64(10+kind)), &manifest.RootOptions{PageBudget: 1})
			load(t, r)
			if _, err := r.Commit(t.Context(), edit(fmt.Sprint(kind), splitOf(r.State(), int(kind), 9))); err != nil {
				t.Fatalf("fault %d: %v", kind, err)
			}
			cell.Fault = nil
			if err := manifest.Validate(load(t, manifest.NewRoot(cell, manifesttest.Host(6), nil))); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestBytesOfACommitAtManyChunks: at 100,000 chunks a commit that touches one of them writes
// at most 128 KB, pages and root together, and most commits write no page at all.
func TestBytesOfACommitAtManyChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 100,000 chunks")
	}
	cell := &manifesttest.MemCell{}
	r := big(t, cell, 100_000, 1)
	h := manifesttest.Host(11)
	by := manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1}
	most, total, withPages := int64(0), int64(0), 0
	const commits = 100
	for i := range commits {
		s := r.State()
		key := h.ID16()
		c := s.ChunkOf(1, append([]byte{0x10}, key[:]...))
		f := manifest.Flush{
			Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: uint64(20 + i)}, Complete: true,
			Chunks: []manifest.FlushedChunk{{At: c.At(), Added: rows(h.ID16, c, by, 1)}},
		}
		before := r.Stats()
		if _, err := r.Commit(t.Context(), edit(fmt.Sprint("flush", i), f)); err != nil {
			t.Fatal(err)
		}
		after := r.Stats()
		n := after.Bytes - before.Bytes
		most, total = max(most, n), total+n
		if after.PagesWritten > before.PagesWritten {
			withPages++
		}
	}
	t.Logf("%d pages; root %d bytes; a commit writes %d bytes on average, %d at most; %d of %d commits wrote pages",
		len(r.State().Pages()), len(cell.Object(manifest.RootKey)), total/commits, most, withPages, commits)
	if most > 128<<10 {
		t.Errorf("a commit wrote %d bytes, at most %d", most, 128<<10)
	}
}
