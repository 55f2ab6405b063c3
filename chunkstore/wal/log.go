package wal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Log appends to the WAL of one shard epoch: one PUT in flight. Append is not for
// concurrent use, the other methods are.
type Log struct {
	bucket bucket.Bucket
	host   host.Host
	place  place

	busy atomic.Bool   // in Append
	next atomic.Uint64 // index of the next object
	dead atomic.Pointer[error]
	buf  []byte // the object in flight
}

// NewLog continues at index next: 0 in a new epoch, otherwise the number of objects that
// are known to be there.
func NewLog(b bucket.Bucket, h host.Host, cluster manifest.ClusterID, shard manifest.ShardID, epoch manifest.Epoch, next uint64) *Log {
	l := &Log{bucket: b, host: h, place: place{cluster, shard, epoch}}
	l.next.Store(next)
	return l
}

// AppendResult is a batch that is known to be durable.
type AppendResult struct {
	// Position is exclusive: it covers this object and all before it.
	Position manifest.Position
	// FirstSend is Clock.Mono at the very first send of the object: the moment from which a
	// lease may be counted. A re-send, or the answer, proves nothing about then.
	FirstSend time.Duration
	// Bytes is the size of the object.
	Bytes int
}

// Append makes the batch durable as the next object, and leaves it as it is. It returns
// only when the outcome is known, or ctx ends.
//
// Errors that end the log, and that every later Append and Err return as well:
//   - Fenced: a successor's seal is at the index. Nothing of the batch is in the log.
//   - UnknownOutcome: ctx ended after a send that may have had an effect. The object may be
//     there, or come later, so nothing may be appended after it: only a takeover can tell.
//   - Corrupt: something else is at the index, or what is there cannot be read. Whether the
//     batch is stored is not known either.
//
// Errors that leave the log as it was: the context's cause when it ended before a send had
// any effect; Invalid for an empty batch.
func (l *Log) Append(ctx context.Context, b *Batch) (AppendResult, error) {
	if !l.busy.CompareAndSwap(false, true) {
		panic("wal: two Appends to one Log at the same time")
	}
	defer l.busy.Store(false)
	if err := l.Err(); err != nil {
		return AppendResult{}, err
	}
	index := l.next.Load()
	res, err := l.append(ctx, b, index)
	if err != nil {
		err = fmt.Errorf("append wal %s: %w", l.place.key(index), err)
		if errors.Is(err, errkind.Fenced) || errors.Is(err, errkind.UnknownOutcome) || errors.Is(err, errkind.Corrupt) {
			l.dead.Store(&err)
		}
	}
	return res, err
}

func (l *Log) append(ctx context.Context, b *Batch, index uint64) (AppendResult, error) {
	if b.n == 0 {
		return AppendResult{}, invalidf("an empty batch")
	}
	h := l.place.header(KindData, index)
	h.Nonce, h.Millis, h.Records = l.host.ID16(), l.host.Wall().UnixMilli(), b.n
	body := appendObject(l.buf[:0], &h, b.buf)
	if l.buf = nil; cap(body) <= keepBytes {
		l.buf = body
	}
	o, err := create(ctx, l.bucket, l.host, l.place, index, h.Nonce, body)
	switch {
	case err != nil:
		return AppendResult{}, err
	case !o.mine && o.other.Kind == KindSeal:
		return AppendResult{}, fmt.Errorf("%w: sealed by epoch %d", errkind.Fenced, o.other.Sealer)
	case !o.mine:
		return AppendResult{}, corruptf("another batch is there, with nonce %x, mine is %x", o.other.Nonce, h.Nonce)
	}
	l.next.Store(index + 1)
	return AppendResult{Position: l.Position(), FirstSend: o.firstSend, Bytes: len(body)}, nil
}

// Position is the end, exclusive, of what is known to be in the log.
func (l *Log) Position() manifest.Position {
	return manifest.Position{Epoch: l.place.epoch, Next: l.next.Load()}
}

// Err is why the log accepts no more batches, or nil.
func (l *Log) Err() error {
	if p := l.dead.Load(); p != nil {
		return *p
	}
	return nil
}
