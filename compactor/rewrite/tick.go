package rewrite

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
)

// What passes may ask of the store when nobody says otherwise.
const (
	bytesPerSecond    = 32 << 20
	requestsPerSecond = 100
)

// rate is what passes may ask of the store now: as this Rewriter's Settings say, else those of
// the cluster.
func (r *Rewriter) rate() layer.Rate {
	var bytes, requests int64
	if s := r.Root.State(); s != nil {
		bytes, requests = s.CompactionPace()
	}
	return layer.Rate{
		Bytes:    cmp.Or(r.Settings.BytesPerSecond, bytes, bytesPerSecond),
		Requests: cmp.Or(r.Settings.RequestsPerSecond, requests, requestsPerSecond),
	}
}

// Budget bounds a Tick. Zero fields: no bound.
type Budget struct {
	// Time is how long it may take, Bytes how much it may read, as stored.
	Time  time.Duration
	Bytes uint64
}

// Ticked is what a Tick did.
type Ticked struct {
	// Merges were committed; Bytes were read for these and others, as stored.
	Merges int64
	Bytes  uint64
	// Left: there is more to merge, within such a budget.
	Left bool
	// TooLarge are chunks of which less cannot be merged, and that does not fit into the budget.
	TooLarge int
}

// partingShare is the part of a Tick's time, at most goodbye, in which it ends what it is at.
const partingShare = 4

// Tick merges what there is to merge within a budget, on the newest root, and returns: for a
// process that lives no longer than that. Whatever it is stopped at, the next Tick goes on, in
// this process or in another one: what was committed is done, and a job that its process did
// not end is expelled when it is an hour old, by the clock of whoever looks. (Where these differ
// by more, work is done twice, and nothing is lost.) Errors: as Pass.
func (r *Rewriter) Tick(ctx context.Context, b Budget) (t Ticked, err error) {
	parting := goodbye
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.Duration(math.MaxInt64)
	if b.Time > 0 {
		parting = min(goodbye, b.Time/partingShare)
		end = r.Host.Mono() + b.Time - parting
		working, cancel = r.Host.WithTimeout(ctx, b.Time-parting)
		defer cancel()
	}
	before := r.Counts().Merges
	for more := true; more && err == nil; {
		room := r.room(b, t.Bytes, end)
		if t.Left = room == 0; t.Left {
			break
		}
		if _, _, err = r.Root.Load(working); err != nil {
			break
		}
		var p passed
		p, err = r.pass(working, order{room: room, parting: parting, byWall: true})
		t.Bytes, t.TooLarge, more = t.Bytes+p.bytes, p.tooLarge, p.more
	}
	t.Merges = r.Counts().Merges - before
	if err != nil && working.Err() != nil && ctx.Err() == nil {
		t.Left, err = true, nil // its time is over
	}
	return t, err
}

// room is how many bytes the next pass of a Tick may read.
func (r *Rewriter) room(b Budget, read uint64, end time.Duration) uint64 {
	room := uint64(math.MaxUint64)
	if b.Bytes > 0 {
		room = b.Bytes - min(b.Bytes, read)
	}
	if b.Time > 0 {
		rest := max(end-r.Host.Mono(), 0)
		// What is read is written, too.
		room = min(room, uint64(rest.Seconds()*float64(r.rate().Bytes)/2))
	}
	return room
}
