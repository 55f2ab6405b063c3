package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// upload stores a segment that nothing refers to, of a creator such as s.a.1; a job is j.05.
func (w *world) upload(creator string, random byte) {
	w.t.Helper()
	c := manifest.Creator{}
	f := strings.Split(creator, ".")
	switch c.Kind = manifest.CreatorKind(f[0][0]); c.Kind {
	case manifest.CreatorJob:
		_, err := fmt.Sscanf(f[1], "%02x", &c.Job[15])
		w.must(err)
	default:
		c.Shard = manifest.ShardID(f[1])
		_, err := fmt.Sscanf(f[2], "%d", &c.Epoch)
		w.must(err)
	}
	w.put(manifest.SegmentID{Creator: c, Random: [16]byte{15: random}}.Key())
}

func (w *world) apply(changes ...manifest.Change) {
	w.t.Helper()
	_, err := w.root.Commit(w.t.Context(), manifest.Edit{Op: w.host.ID16(), Changes: changes, Millis: w.host.Wall().UnixMilli()})
	w.must(err)
}

// orphaned is a world that was swept, with orphans of every kind of creator: 50, 52 54 and 55 can
// go at once, the last of them, of a direct commit to a free shard, when that one's epoch is raised;
// 51 is of the present epoch, 53 of a job at work.
func orphaned(t *testing.T, f func(t *testing.T, w *world)) {
	inWorld(t, func(t *testing.T, w *world) {
		w.apply(manifest.AddShards{IDs: []manifest.ShardID{"b"}})
		w.apply(manifest.ExpelJob{ID: w.state().Jobs()[0].ID}, manifest.RegisterJob{Job: manifest.Job{ID: manifest.JobID{15: 7}, Kind: manifest.JobCompact, Holder: "p7", StartedMillis: w.host.Wall().UnixMilli()}})
		_, err := w.sweeper(w.mem).Sweep(t.Context(), false)
		w.must(err)
		for i, creator := range []string{"s.a.1", "s.a.2", "j.99", "j.07", "s.gone.4", "d.b.0"} {
			w.upload(creator, byte(0x50+i))
		}
		f(t, w)
	})
}

// orphansLeft are those of orphaned that are there.
func (w *world) orphansLeft() (list []string) {
	for _, key := range w.left() {
		if len(key) == 2 && key[0] == '5' {
			list = append(list, key)
		}
	}
	return list
}

// What nothing refers to goes as soon as nobody can commit it any more, and every object has a
// reason; jobs that are abandoned and direct commits that never came do not keep it for ever.
func TestOrphansGoWhenTheirCreatorsAreOver(t *testing.T) {
	orphaned(t, func(t *testing.T, w *world) {
		s := w.sweeper(w.mem)
		why := map[string]string{}
		s.Report = func(v Verdict) {
			id, err := manifest.ParseSegmentKey(v.Key)
			w.must(err)
			why[fmt.Sprintf("%02x", id.Random[15])] = fmt.Sprint(v.Delete, " ", v.Why)
		}
		o, err := s.Orphans(t.Context(), true)
		w.must(err)
		want := map[string]string{
			"50": "true nothing refers to it, and epoch 1 of shard a is over: it is at 2",
			"51": "false nothing refers to it, and epoch 2 of shard a may still commit it",
			"52": "true nothing refers to it, and its job is over",
			"53": "false nothing refers to it, and its job (compact, by p7) may still commit it",
			"54": "true nothing refers to it, and shard gone is not there any more",
			"55": "true nothing refers to it, and whoever made it is not at work any more, or begins again",
		}
		if diff := cmp.Diff(want, why); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		if o.Segments != 9 || o.Found != 6 || o.Deleted != 4 || o.DeletedBytes != 4 || len(w.orphansLeft()) != 6 {
			t.Errorf("dry: %+v, left %v", o, w.orphansLeft())
		}
		o, err = s.Orphans(t.Context(), false)
		w.must(err)
		if o.Deleted != 4 || !slices.Equal(w.orphansLeft(), []string{"51", "53"}) || w.state().Shard("b").Epoch != 1 {
			t.Errorf("%+v, left %v", o, w.orphansLeft())
		}
		time.Sleep(time.Hour)
		o, err = s.Orphans(t.Context(), false)
		w.must(err)
		if o.Deleted != 1 || !slices.Equal(w.orphansLeft(), []string{"51"}) || len(w.state().Jobs()) > 0 {
			t.Errorf("an hour later: %+v, left %v, jobs %v", o, w.orphansLeft(), w.state().Jobs())
		}
		w.commit("claim a epoch=2 holder=p3")
		_, err = s.Orphans(t.Context(), false)
		w.must(err)
		if left := w.orphansLeft(); len(left) > 0 {
			t.Errorf("in the next epoch: %v", left)
		}
	})
}

// hooked does something before a listing is answered.
type hooked struct {
	bucket.Bucket
	before func()
}

func (h *hooked) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if h.before != nil {
		f := h.before
		h.before = nil
		f()
	}
	return h.Bucket.List(ctx, prefix, after, max)
}

// What a creator uploads that began after the root was read first, and what it commits before the
// root is read last, stays.
func TestCreatorsThatBeginMeanwhileKeepTheirs(t *testing.T) {
	orphaned(t, func(t *testing.T, w *world) {
		b := &hooked{Bucket: w.mem, before: func() {
			w.commit("claim a epoch=2 holder=p3", "register 88")
			w.upload("s.a.3", 0x57)
			w.upload("j.88", 0x58)
		}}
		s := w.sweeper(b)
		_, err := s.Orphans(t.Context(), false)
		w.must(err)
		if left := w.orphansLeft(); !slices.Equal(left, []string{"53", "57", "58"}) {
			t.Errorf("left %v", left)
		}
	})
}

// A snapshot keeps what only it refers to, and one that cannot be read stops everything.
func TestOrphansOfASnapshotStay(t *testing.T) {
	orphaned(t, func(t *testing.T, w *world) {
		_, err := w.root.Pin(t.Context(), "monday", 0, w.host.Wall().UnixMilli())
		w.must(err)
		w.apply(manifest.DropCollection{ID: w.state().Collections()[0].ID})
		w.apply(manifest.ForgetDropped{Segments: w.state().Dropped()}) // as if it had never been dropped
		before := w.left()
		_, err = w.sweeper(w.mem).Orphans(t.Context(), false)
		w.must(err)
		for _, key := range before {
			if key[0] != '5' && !slices.Contains(w.left(), key) {
				t.Errorf("%s is gone, and a snapshot has it", key)
			}
		}
		w.upload("s.a.1", 0x50)
		w.must(w.mem.Delete(t.Context(), manifest.PinKey(w.state().Pins()[0].ID)))
		if _, err := w.sweeper(w.mem).Orphans(t.Context(), false); !errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), "nothing is deleted") || !slices.Contains(w.left(), "50") {
			t.Errorf("a pin without its copy: %v, left %v", err, w.left())
		}
	})
}

// Looks are bounded, and together see everything; dropped segments are Sweep's.
func TestLooksForOrphansAreBounded(t *testing.T) {
	orphaned(t, func(t *testing.T, w *world) {
		w.commit("register 08")
		w.commit("compact 08 c1 in=03 oldest out={seg=61 keys=a..d seq=1..5 rows=3}")
		w.upload("j.08", 0x61)
		s := w.sweeper(w.mem)
		s.MaxDeletes = 1
		for n := 1; ; n++ {
			o, err := s.Orphans(t.Context(), false)
			w.must(err)
			if o.Deleted > 1 || n > 4 {
				t.Fatalf("%d: %+v", n, o)
			}
			if !o.Left {
				break
			}
		}
		if left := w.left(); !slices.Contains(left, "03") || !slices.Equal(w.orphansLeft(), []string{"51", "53"}) {
			t.Errorf("left %v", left)
		}
	})
}

// Every request of a look fails once: nothing that is referenced is gone, and the next look ends
// with the same.
func TestALookThatDiesAnywhereGoesOn(t *testing.T) {
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Late, faultbucket.Twice, faultbucket.Throttle} {
		t.Run(kind.String(), func(t *testing.T) {
			for n, done := 1, false; !done; n++ {
				orphaned(t, func(t *testing.T, w *world) {
					time.Sleep(time.Hour)
					b := w.faulty(faultbucket.FailAt(n, faultbucket.Fault{Kind: kind, Delay: time.Minute}))
					s := w.sweeper(b)
					if _, err := s.Orphans(t.Context(), false); err != nil && !errors.Is(err, faultbucket.ErrInjected) {
						t.Errorf("request %d: %v", n, err)
					}
					done = b.Calls() < n
					w.whole()
					b.SetPlan(nil)
					_, err := s.Orphans(t.Context(), false)
					w.must(err)
					b.Wait()
					if left := w.orphansLeft(); !slices.Equal(left, []string{"51"}) {
						t.Errorf("request %d: left %v", n, left)
					}
				})
			}
		})
	}
}
