package places_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// site is buckets by URL.
type site map[string]bucket.Bucket

func (s site) open(_ context.Context, url string) (bucket.Bucket, error) {
	if b := s[url]; b != nil {
		return b, nil
	}
	return nil, errors.New("no route to " + url)
}

// cluster makes one with a shard in mem:eu.
func cluster(t *testing.T, s site) *places.Places {
	t.Helper()
	own := membucket.New()
	if _, err := manifest.Create(t.Context(), bucket.NewCell(own), host.System(), manifest.InitOptions{Shards: []manifest.ShardID{"a"}}); err != nil {
		t.Fatal(err)
	}
	s["own"] = own
	return places.New(own, s.open, host.System(), nil)
}

// A bucket is a location of one cluster only, and never what is a cluster's own.
func TestPrepareRefusesWhatIsAnothers(t *testing.T) {
	t.Parallel()
	s := site{"mem:eu": membucket.New()}
	mine := cluster(t, s)
	for range 2 {
		if err := mine.Prepare(t.Context(), "mem:eu"); err != nil {
			t.Fatal(err)
		}
	}
	other := cluster(t, s)
	for url, why := range map[string]string{"mem:eu": "belongs to another cluster", "own": "own bucket of a cluster", "mem:far": "no route"} {
		err := other.Prepare(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), why) || (url != "mem:far") != errors.Is(err, errkind.Invalid) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if err := places.New(s["own"], nil, host.System(), nil).Prepare(t.Context(), "mem:eu"); !errors.Is(err, errkind.Invalid) {
		t.Errorf("without an opener: %v", err)
	}
}

// A process that finds another bucket under the URL of a location, or none, gets an error and
// writes nothing; once the right one is there, it goes on.
func TestWrongBucketIsNoEmptyStore(t *testing.T) {
	t.Parallel()
	right := membucket.New()
	s := site{"mem:eu": right}
	mine := cluster(t, s)
	if err := mine.Prepare(t.Context(), "mem:eu"); err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Open(1); !errors.Is(err, errkind.Invalid) {
		t.Errorf("a location that no root has: %v", err)
	}
	_, err := mine.Root().Commit(t.Context(), manifest.Edit{Op: manifest.OpID{1}, Changes: []manifest.Change{
		manifest.AddShards{IDs: []manifest.ShardID{"eu"}, URL: "mem:eu"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := mine.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	wrong := membucket.New()
	for _, here := range []bucket.Bucket{wrong, nil} {
		s["mem:eu"] = here
		if here == nil {
			delete(s, "mem:eu")
		}
		_, get := b.Get(t.Context(), "seg/x", bucket.GetOptions{})
		_, put := b.Put(t.Context(), "seg/x", nil, bucket.IfAbsent)
		_, _, list := b.List(t.Context(), "", "", 0)
		if get == nil || errors.Is(get, errkind.NotFound) || !errors.Is(put, errkind.Throttled) || list == nil {
			t.Errorf("got %v, %v, %v", get, put, list)
		}
	}
	if list, _, _ := wrong.List(t.Context(), "", "", 0); len(list) > 0 {
		t.Errorf("the wrong bucket got %v", list)
	}
	s["mem:eu"] = right
	if _, err := b.Put(t.Context(), "seg/x", nil, bucket.IfAbsent); err != nil {
		t.Error(err)
	}
	if own, err := mine.Open(0); err != nil || own != s["own"] {
		t.Errorf("location 0 is %v, %v", own, err)
	}
}
