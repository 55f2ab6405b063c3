package manifest_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// places are a cluster's own cell and that of a location.
type places struct{ own, eu *manifesttest.MemCell }

// root is a view of a cluster whose shard eu is elsewhere.
func (p places) root(seed uint64) *manifest.Root {
	return manifest.NewRoot(p.own, manifesttest.Host(seed), &manifest.RootOptions{
		Places: func(l manifest.Location) (manifest.Cell, error) {
			if l.URL != "s3://eu" {
				return nil, fmt.Errorf("unexpected location %v", l)
			}
			return p.eu, nil
		},
	})
}

// located makes a cluster with a zone [e, f) and chunks inside and outside of it. The bounds
// and keys that only the location may have begin with "secret", and so do all keys of rows there.
func located(t *testing.T) (places, *manifest.Root) {
	t.Helper()
	p := places{cluster(t, "a"), &manifesttest.MemCell{}}
	r := p.root(1)
	low, high := manifesttest.Bound("s", false), manifesttest.Bound("t", false)
	for i, c := range []manifest.Change{
		manifest.AddShards{IDs: []manifest.ShardID{"eu"}, URL: "s3://eu"},
		manifest.CreateCollection{
			Collection: manifest.Collection{
				UUID: [16]byte{1}, Database: "db", Name: "c", Sharded: true, Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}},
				Zones: []manifest.ZoneRange{{Zone: "EU", Range: shardkey.Range{Min: low.Key, Max: high.Key}, MinBSON: low.BSON, MaxBSON: high.BSON}},
			},
			Chunks: []manifest.NewChunk{
				{Min: manifesttest.Bound("", false), Max: low, Shard: "a"},
				{Min: low, Max: high, Shard: "eu"},
				{Min: high, Max: manifesttest.Bound("", true), Shard: "a"},
			},
		},
		manifest.Claim{Shard: "a", Holder: "p"}, manifest.Claim{Shard: "eu", Holder: "p"},
	} {
		commitOne(t, r, fmt.Sprint("make", i), c)
	}
	return p, r
}

func commitOne(t *testing.T, r *manifest.Root, op string, changes ...manifest.Change) *manifest.State {
	t.Helper()
	s, err := commit(t.Context(), r, edit(op, changes...))
	if err != nil {
		t.Fatal(op, err)
	}
	return s
}

// flushEU adds a segment to the chunk of a key, with keys from its shard's location.
func flushEU(s *manifest.State, key string, n uint64) manifest.Flush {
	c := s.ChunkOf(1, []byte(key))
	by := manifest.Creator{Kind: manifest.CreatorShard, Shard: c.Shard, Epoch: 1}
	return manifest.Flush{
		Shard: c.Shard, Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: n}, Chunks: []manifest.FlushedChunk{{At: c.At(), Added: manifest.Added{
			Refs: []manifest.SegmentRef{{
				Segment: manifest.SegmentID{Creator: by, Random: [16]byte{byte(n)}}, Location: s.LocationOf(c.Shard), Clip: c.Range,
				MinKey: []byte(key), MaxKey: []byte(key + "x"), MinSeq: c.MaxSeq + 1, MaxSeq: c.MaxSeq + 1, Rows: 1,
			}}, RowsDelta: 1,
		}}},
	}
}

// told fails when an object of the cluster's own bucket has a key that only the location may
// have, packed or not.
func (p places) told(t *testing.T) {
	t.Helper()
	for _, key := range p.own.Keys("") {
		body, err := manifest.Unpacked(p.own.Object(key))
		if err != nil {
			t.Fatal(key, err)
		}
		if bytes.Contains(body, []byte("secret")) {
			i := bytes.Index(body, []byte("secret"))
			t.Errorf("%s tells a key of the location: %q", key, body[max(0, i-80):i+20])
		}
	}
}

// TestKeysOfALocationStayThere: splits, flushes and moves of chunks in another location leave
// no key of theirs in the cluster's own bucket: not in the root, its pages, its history, nor
// its copies. Another process reads all of it back.
func TestKeysOfALocationStayThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := located(t)
		s := r.State()
		s = commitOne(t, r, "split", manifest.Split{Chunk: s.ChunkOf(1, []byte("s")).At(), Points: []manifest.Bound{
			manifesttest.Bound("secret1", false), manifesttest.Bound("secret2", false),
		}})
		s = commitOne(t, r, "merge", manifest.Merge{Left: s.ChunkOf(1, []byte("secret1")).At(), Right: s.ChunkOf(1, []byte("secret2")).At()})
		for i, key := range []string{"secret0", "secret1", "secret3", "d", "u"} {
			s = commitOne(t, r, fmt.Sprint("flush", i), flushEU(s, key, uint64(i+1)))
		}
		if _, err := r.Pin(t.Context(), "kept", 0, 0); err != nil {
			t.Fatal(err)
		}
		p.told(t)
		if len(p.eu.Keys("meta/page/")) == 0 {
			t.Error("the location has no pages")
		}
		other := p.root(2)
		if got := manifesttest.Format(load(t, other)); got != manifesttest.Format(r.State()) {
			t.Errorf("another process reads\n%s\nexpected\n%s", got, manifesttest.Format(r.State()))
		}
		if err := manifest.Validate(other.State()); err != nil {
			t.Error(err)
		}
		kept, err := other.Pinned(t.Context(), s.Version()+1)
		if err != nil || kept.NumChunks(1) != s.NumChunks(1) {
			t.Errorf("the pin shows %v, %v", kept, err)
		}
		for _, page := range other.State().Pages() {
			if page.Location == 0 || len(page.FirstKey) > 0 {
				t.Errorf("page %+v", page)
			}
		}
	})
}

// TestHoldsTellNoKeyOfALocation: a range is held, and so named in the root, only between bounds
// that may be told.
func TestHoldsTellNoKeyOfALocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := located(t)
		hold := func(low, high string) error {
			h := manifest.RangeHold{ID: "h" + low, Collection: 1, Range: shardkey.Range{Min: []byte(low), Max: []byte(high)}}
			_, err := r.Commit(t.Context(), edit("hold"+low+high, manifest.PutRecord{Record: h.Record()}))
			return err
		}
		for _, bounds := range []string{"secret1..secret2", "d..secret1", "secret1..u", "secret1.."} {
			low, high, _ := strings.Cut(bounds, "..")
			if err := hold(low, high); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "another location") {
				t.Errorf("%s: %v", bounds, err)
			}
		}
		for _, bounds := range []string{"s..t", "d..e", "..t", "u.."} {
			low, high, _ := strings.Cut(bounds, "..")
			if err := hold(low, high); err != nil {
				t.Errorf("%s: %v", bounds, err)
			}
		}
		p.told(t)
	})
}

// TestPagesOfALocationSurviveEveryFault: whatever happens to one request for the location, and
// in both ways, the commit comes to an end, tells nothing, and is seen by others.
func TestPagesOfALocationSurviveEveryFault(t *testing.T) {
	for _, kind := range []manifesttest.FaultKind{manifesttest.LostBefore, manifesttest.LostAfter, manifesttest.Late, manifesttest.Throttle} {
		synctest.Test(t, func(t *testing.T) {
			p, r := located(t)
			seen := map[string]bool{}
			p.eu.Fault = func(q manifesttest.Request) manifesttest.Fault {
				if seen[q.Key] {
					return manifesttest.Fault{}
				}
				seen[q.Key] = true
				return manifesttest.Fault{Kind: kind}
			}
			s := r.State()
			for i := range 4 {
				s = commitOne(t, r, fmt.Sprint("flush", i), flushEU(s, "secret1", uint64(i+1)))
			}
			p.told(t)
			if got := load(t, p.root(2)); got.ChunkOf(1, []byte("secret1")).Rows != 4 {
				t.Errorf("another process reads\n%s", manifesttest.Format(got))
			}
		})
	}
}

// TestLocationsMustBeKnown: who cannot open a location cannot read a root with chunks there,
// and says so.
func TestLocationsMustBeKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := located(t)
		for _, open := range []manifest.Places{nil, func(manifest.Location) (manifest.Cell, error) { return nil, errors.New("no route") }} {
			r := manifest.NewRoot(p.own, manifesttest.Host(3), &manifest.RootOptions{Places: open})
			if _, _, err := r.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "location 1, s3://eu") {
				t.Errorf("got %v", err)
			}
		}
	})
}
