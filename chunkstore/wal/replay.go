package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Replay reads the objects [from, end) of one shard epoch and calls fn for every record, in
// the order in which they were appended. Objects are fetched several at a time; up to
// eight decoded ones are in memory. pos is exclusive: it covers the record's object, so the
// record is above a floor f exactly when f.Less(pos). Records stay valid for ever.
//
// end comes from Seal. Errors: fn's own; Corrupt, also when an object is missing (it is
// never taken for the end), is a seal, or says that it belongs elsewhere; the bucket's.
func Replay(ctx context.Context, b bucket.Bucket, cluster manifest.ClusterID, shard manifest.ShardID, epoch manifest.Epoch, from, end uint64, fn func(pos manifest.Position, r Record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	q := readQueue{bucket: b, place: place{cluster, shard, epoch}, at: from, end: end}
	defer q.wait()
	defer cancel()
	for index := from; index < end; index++ {
		records, err := q.take(ctx)
		if err != nil {
			return fmt.Errorf("replay wal %s: %w", q.place.key(index), err)
		}
		for _, r := range records {
			if err := fn(manifest.Position{Epoch: epoch, Next: index + 1}, r); err != nil {
				return fmt.Errorf("replay wal %s: %w", q.place.key(index), err)
			}
		}
	}
	return nil
}

// readQueue reads consecutive objects ahead of their consumer, which takes them in order.
type readQueue struct {
	bucket  bucket.Bucket
	place   place
	at, end uint64 // not asked for yet: [at, end)
	pending []chan fetched
}

type fetched struct {
	records []Record
	err     error
}

// take returns the records of the next object, and keeps fanOut more on their way.
func (q *readQueue) take(ctx context.Context) ([]Record, error) {
	for ; len(q.pending) < fanOut && q.at < q.end; q.at++ {
		q.start(ctx, q.at)
	}
	f := <-q.pending[0]
	q.pending = q.pending[1:]
	return f.records, f.err
}

func (q *readQueue) start(ctx context.Context, index uint64) {
	done := make(chan fetched, 1)
	q.pending = append(q.pending, done)
	go func() {
		records, err := fetch(ctx, q.bucket, q.place, index)
		done <- fetched{records, err}
	}()
}

// wait returns when no read is left running.
func (q *readQueue) wait() {
	for _, done := range q.pending {
		<-done
	}
}

func fetch(ctx context.Context, b bucket.Bucket, p place, index uint64) ([]Record, error) {
	object, err := b.Get(ctx, p.key(index), bucket.GetOptions{})
	if errors.Is(err, errkind.NotFound) {
		return nil, corruptf("missing inside the log: %v", err)
	}
	if err != nil {
		return nil, err
	}
	h, records, err := Decode(object.Body)
	if err == nil {
		err = p.check(&h, index)
	}
	if err == nil && h.Kind != KindData {
		err = corruptf("a seal inside the log")
	}
	return records, err
}
