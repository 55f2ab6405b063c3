package gc

import (
	"testing"
	"time"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A job that gives a collection another key and is heard of no more is ended, and what it stored
// goes; one that renews its record is left alone, however long it takes.
func TestSilentReshardingsAreEnded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		alive, dead := manifest.JobID{1}, manifest.JobID{2}
		put := func(ns string, job manifest.JobID, at int) manifest.Change {
			body, err := bson.Marshal(bson.D{{Key: "job", Value: bson.Binary{Data: job[:]}}, {Key: "segments", Value: int64(3)}, {Key: "at", Value: at}})
			w.must(err)
			return manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordReshard, ID: ns, Body: body}}
		}
		commit := func(changes ...manifest.Change) {
			t.Helper()
			_, err := w.root.Commit(t.Context(), manifest.Edit{Op: w.host.ID16(), Changes: changes, Millis: w.host.Wall().UnixMilli()})
			w.must(err)
		}
		next := w.state().NextCollection()
		for i, job := range []manifest.JobID{alive, dead} {
			commit(manifest.RegisterJob{Job: manifest.Job{ID: job, Kind: manifest.JobReshard, StartedMillis: w.host.Wall().UnixMilli(), Detail: manifest.JobDetail(next+manifest.CollectionID(i), "db.c")}},
				put([]string{"db.c", "db.d"}[i], job, 0))
			for n := range int64(2) {
				w.put(manifest.ReshardSegment(job, n).Key())
			}
		}
		s := w.sweeper(w.mem)
		for minute := range 30 {
			commit(put("db.c", alive, minute+1))
			_, err := s.Sweep(t.Context(), false)
			w.must(err)
			_, stands := w.state().Job(dead)
			if want := minute < 10; stands != want {
				t.Fatalf("minute %d: the silent one stands: %t", minute, stands)
			}
			time.Sleep(time.Minute)
		}
		if _, stands := w.state().Job(alive); !stands || len(w.state().Records(manifest.RecordReshard)) != 1 {
			t.Error("the living one was ended, or a record is left")
		}
		commit(manifest.EndResharding(w.state().Records(manifest.RecordReshard)[0])...)
		time.Sleep(Courtesy)
		_, err := s.Sweep(t.Context(), false)
		w.must(err)
		for n := range int64(2) {
			for _, job := range []manifest.JobID{alive, dead} {
				if _, err := w.mem.Head(t.Context(), manifest.ReshardSegment(job, n).Key()); err == nil {
					t.Errorf("segment %d of %x is left", n, job)
				}
			}
		}
	})
}
