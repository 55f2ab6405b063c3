package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// commitLoop makes batches durable, one PUT at a time, until the shard ends. It adds no
// wait: a batch is whatever came while the one before was in flight. So a fast store gets
// many small objects and a slow one few large ones.
func (s *shard) commitLoop(ctx context.Context, log *wal.Log) {
	var encoded wal.Batch
	for {
		select {
		case <-s.kick:
		case <-s.ended:
			return
		}
		for b := s.take(); b != nil; b = s.take() {
			if err := s.commit(ctx, log, &encoded, b); err != nil {
				s.w.log.Warn("shard lost", "shard", s.id, "epoch", s.epoch, "cause", err)
				s.end(err)
				return
			}
		}
	}
}

// commit stores one batch. Any error ends the shard: of a batch whose outcome is unknown a
// successor may find the rows or not, and nothing may be built on either.
func (s *shard) commit(ctx context.Context, log *wal.Log, encoded *wal.Batch, b *batch) error {
	encoded.Reset()
	for i := range b.records {
		if err := encoded.Add(b.records[i]); err != nil {
			return fmt.Errorf("append wal of shard %s epoch %d: %w", s.id, s.epoch, err)
		}
	}
	res, err := s.appendWAL(ctx, log, encoded)
	if err != nil {
		return fmt.Errorf("append wal of shard %s epoch %d: %w", s.id, s.epoch, err)
	}
	s.mu.Lock()
	if s.endErr == nil {
		s.lease.prove(res.FirstSend)
		s.touched = s.w.host.Mono()
		s.lastAck = s.touched
		s.counts.Batches++
		s.counts.Records += int64(len(b.records))
		s.settle(b, res.Position, res.Bytes)
	}
	s.mu.Unlock()
	spare := b.leftovers()
	s.mu.Lock()
	s.spare = spare
	s.mu.Unlock()
	return nil
}

// stored waits until a batch is durable. Errors: UnknownOutcome when that is not known, or
// was not known in time.
func (s *shard) stored(ctx context.Context, b *batch) error {
	if b == nil {
		return nil
	}
	s.wake()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
	}
	select {
	case <-b.done:
		return b.err
	default:
		return fmt.Errorf("write to shard %s: %w: %w", s.id, errkind.UnknownOutcome, context.Cause(ctx))
	}
}

// drained waits until everything appended so far is durable.
func (s *shard) drained(ctx context.Context) error {
	s.mu.Lock()
	b := s.flight
	if len(s.open.records) > 0 {
		b = s.open
	}
	s.mu.Unlock()
	return s.stored(ctx, b)
}

// tally counts the WAL objects above the shard's floor: what a takeover would replay.
type tally struct {
	objects []logged
	bytes   int64
	stamp   *stamp // of the object being replayed
}

type logged struct {
	pos   manifest.Position // covers the object
	bytes int64
}

func (t *tally) add(pos manifest.Position, bytes int64) {
	t.objects = append(t.objects, logged{pos, bytes})
	t.bytes += bytes
}

// drop forgets the objects that the floor covers.
func (t *tally) drop(floor manifest.Position) {
	n := 0
	for n < len(t.objects) && !floor.Less(t.objects[n].pos) {
		t.bytes -= t.objects[n].bytes
		n++
	}
	t.objects = append(t.objects[:0:0], t.objects[n:]...)
}

// retryLater waits before another attempt at something that failed with cause; attempt
// counts from 0. It returns an error when there is no point, or no time.
func retryLater(ctx context.Context, h host.Host, attempt int, cause error) error {
	if ctx.Err() != nil || attempt+1 >= attemptsMax ||
		errors.Is(cause, errkind.Corrupt) || errors.Is(cause, errkind.Invalid) || errors.Is(cause, errkind.NotFound) {
		return cause
	}
	if err := h.Sleep(ctx, h.Jitter(min(backoffMin<<attempt, backoffMax))); err != nil {
		return cause
	}
	return nil
}

const (
	attemptsMax = 6
	backoffMin  = 20 * time.Millisecond
	backoffMax  = 2 * time.Second
)
