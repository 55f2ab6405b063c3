package router

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// abandonedAfter is how long nothing is heard of a resharding before it counts as abandoned. Who
// carries it out again then watches it for as long as it takes to be sure (reshard.Settings).
const abandonedAfter = 45 * time.Second

// Silence is since when nothing was heard of reshardings elsewhere. Its zero value has heard
// nothing. Not safe for concurrent use.
type Silence struct {
	since map[manifest.JobID]heard
}

// lately is how old a look at the root may be that is good enough to hear of others by.
const lately = 15 * time.Second

// heard is a record as it was when it was last seen to change, on the monotonic clock.
type heard struct {
	body string
	at   time.Duration
}

// Abandoned are the commands (NewCollection.Again) of reshardings whose processes seem to be
// dead: they can be carried out again, and are told once. It is to be asked now and then, with
// the same Silence, and costs a conditional GET of the root where nothing else in this process has
// looked at it lately.
func (r *Router) Abandoned(ctx context.Context, silence *Silence) (commands []bson.Raw, err error) {
	now, present := r.host.Mono(), make(map[manifest.JobID]heard)
	s := r.root.State()
	if s == nil || now-r.root.Answered() > lately {
		if s, err = r.State(ctx, 0); err != nil {
			return nil, err
		}
	}
	for _, rec := range s.Records(manifest.RecordReshard) {
		job := rec.ReshardJob()
		if _, stands := s.Job(job); !stands || r.here(rec.ID) != nil {
			continue
		}
		h, known := silence.since[job]
		if !known || h.body != string(rec.Body) {
			h = heard{body: string(rec.Body), at: now}
		}
		if now-h.at >= abandonedAfter {
			if again := againOf(s, rec); again != nil {
				commands = append(commands, again)
			}
			h.at = now // if that fails, again later
		}
		present[job] = h
	}
	silence.since = present
	return commands, nil
}

// againOf is the command that a record says to carry out again; nil: none, or its collection was
// dropped since, and another may have the name.
func againOf(s *manifest.State, rec manifest.Record) bson.Raw {
	seen, err := reshard.Recorded(rec.ID, rec.Body)
	if err != nil {
		return nil
	}
	if c := s.Collection(seen.Collection); c == nil || c.Namespace() != rec.ID {
		return nil
	}
	return seen.Again
}
