package manifest_test

import (
	"errors"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// switched is a collection of two chunks, one with a floor of its own, as a pin of it shows it
// and after it got another key.
func switched(t *testing.T) (pinned, now *manifest.State) {
	t.Helper()
	pinned = manifesttest.New(t, "a", "b")
	for _, edit := range []string{
		"create db.c chunks=a,p,a", "claim a epoch=0 holder=p1",
		"flush a epoch=1 snap=1,3 complete c1{seg=01 keys=a..f seq=1..3 rows=3 size=30 delta=3 bytes=60}",
		"flush a epoch=1 snap=1,9 c2{seg=02 keys=q..r seq=1..5 rows=2 size=30 delta=2 bytes=60}",
		"register 05 builds=2", "pin 09",
	} {
		pinned = manifesttest.Apply(t, pinned, edit)
	}
	now = manifesttest.Apply(t, pinned, "reshape db.c owners=a@1 job=05 of=0 data={seg=11 keys=h..k seq=5..5 rows=5 size=30 delta=5 bytes=60} chunks=b\nexpel 05")
	return pinned, now
}

// undone is the change that takes it back.
func undone(pinned, now *manifest.State) manifest.ReshapeCollection {
	old, c := pinned.CollectionByName("db", "c"), now.CollectionByName("db", "c")
	r := &manifest.Restored{Pin: pinned.Pins()[0].ID, ID: old.ID, Job: manifest.JobID{7}}
	x := manifest.ReshapeCollection{Collection: *c, Restored: r}
	x.Collection.Key = old.Key
	for k := range now.Chunks(c.ID) {
		x.At, r.From = append(x.At, k.At()), append(r.From, k.Refs)
	}
	for k := range pinned.Chunks(old.ID) {
		r.Chunks = append(r.Chunks, k)
	}
	return x
}

func apply(s *manifest.State, changes ...manifest.Change) (*manifest.State, error) {
	next, err := manifest.Apply(s, manifest.Edit{Op: manifest.OpID{byte(s.Version())}, Changes: changes}, [16]byte{byte(s.Version())})
	if err == nil {
		err = manifest.ValidateStep(s, next)
	}
	return next, err
}

// TestACollectionIsPutBack restores one from its pin: ids of chunks are new, everything else is
// as it was, the floors too, and what it was meanwhile is garbage.
func TestACollectionIsPutBack(t *testing.T) {
	t.Parallel()
	pinned, now := switched(t)
	x := undone(pinned, now)
	old := pinned.CollectionByName("db", "c")
	next, err := apply(now, x, manifest.DropPin{ID: x.Restored.Pin})
	if err != nil {
		t.Fatal(err)
	}
	if err := manifest.Validate(next); err != nil {
		t.Fatal(err)
	}
	c := next.CollectionByName("db", "c")
	if c.ID != old.ID || next.NumChunks(c.ID) != 2 || !next.ChunkOf(c.ID, nil).OwnFloor.Less(next.ChunkOf(c.ID, []byte("q")).OwnFloor) {
		t.Errorf("collection %d:\n%s", c.ID, manifesttest.Format(next))
	}
	for k := range pinned.Chunks(old.ID) {
		n := next.ChunkOf(c.ID, k.Range.Min)
		if n.ID < now.ChunkOf(now.CollectionByName("db", "c").ID, nil).ID || n.Shard != k.Shard || n.MaxSeq != k.MaxSeq || n.Rows != k.Rows ||
			len(n.Refs) != 1 || n.Refs[0].Segment != k.Refs[0].Segment || next.EffectiveFloor(n) != pinned.EffectiveFloor(k) {
			t.Errorf("%+v, was %+v", n, k)
		}
	}
	dropped := next.Dropped()
	if last := dropped[len(dropped)-1].Segment; last.Creator.Kind != manifest.CreatorJob {
		t.Errorf("what it was meanwhile is not garbage: %v", dropped)
	}
}

// TestACollectionIsPutBackOnlyAsPlanned: a floor that its shard has passed by now is no floor of
// its own; each precondition is asked.
func TestACollectionIsPutBackOnlyAsPlanned(t *testing.T) {
	t.Parallel()
	pinned, now := switched(t)
	later := manifesttest.Apply(t, now, "flush a epoch=1 snap=1,12 complete")
	next, err := apply(later, undone(pinned, later), manifest.DropPin{ID: pinned.Pins()[0].ID})
	if err != nil || next.ChunkOf(1, []byte("q")).OwnFloor != (manifest.Position{}) || manifest.Validate(next) != nil {
		t.Errorf("%v\n%s", err, manifesttest.Format(next))
	}
	for what, c := range map[string]struct {
		edit string
		kind error
		mess func(*manifest.ReshapeCollection)
	}{
		"no pin":        {"unpin 09", errkind.Conflict, nil},
		"a row more":    {"direct b c3{seg=31 keys=h..i seq=6..6 rows=1 size=3 delta=1 bytes=2} epoch=0 maxseq=5", errkind.Conflict, nil},
		"another owner": {"claim b epoch=0 holder=p2", errkind.Conflict, nil},
		"its shard gone": {"", errkind.Conflict, func(x *manifest.ReshapeCollection) {
			k := *x.Restored.Chunks[0]
			k.Shard = "z"
			x.Restored.Chunks[0] = &k
		}},
		"an id to come":    {"", errkind.Invalid, func(x *manifest.ReshapeCollection) { x.Restored.ID = 77 }},
		"unknown retries":  {"", errkind.Conflict, func(x *manifest.ReshapeCollection) { x.Restored.Retries = x.Restored.From[0] }},
		"another version":  {"split c3 at=k", errkind.Conflict, nil},
		"not all its keys": {"", errkind.Invalid, func(x *manifest.ReshapeCollection) { x.Restored.Chunks = x.Restored.Chunks[:1] }},
	} {
		x, s := undone(pinned, now), now
		if c.edit != "" {
			s = manifesttest.Apply(t, now, c.edit)
		}
		if c.mess != nil {
			c.mess(&x)
		}
		if _, err := apply(s, x); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTheWayBackIsKeptInTheOptions: what is written is read, and users do not see it.
func TestTheWayBackIsKeptInTheOptions(t *testing.T) {
	t.Parallel()
	u := manifest.Undo{Pin: [16]byte{1, 2}, Version: 7, Until: 1000, MaxSeq: 12, DataVersion: 3}
	given := manifest.WithRequireShardKey(nil, true)
	c := manifest.Collection{Options: given}
	if _, ok := c.Undo(); ok {
		t.Error("a way back from the start")
	}
	with := c.WithUndo(manifest.Undo{Version: 1})
	with = with.WithUndo(u)
	marked := with.WithReshaping([16]byte{9})
	if got, ok := marked.Undo(); !ok || got != u {
		t.Errorf("%+v, %t", got, ok)
	}
	if string(marked.UserOptions()) != string(given) {
		t.Errorf("users see %v", marked.UserOptions())
	}
	if plain := with.WithoutUndo(); string(plain.Options) != string(given) {
		t.Errorf("without: %v", plain.Options)
	}
}
