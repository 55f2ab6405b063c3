package wal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Waits between two attempts to create an object, with jitter: doubling, up to the longest.
const (
	backoffMin = 10 * time.Millisecond
	backoffMax = time.Second
)

// outcome is what is known to be in the bucket after create.
type outcome struct {
	mine bool
	// other is the object that was there, when it is not mine.
	other Header
	// firstSend is Clock.Mono at the very first send.
	firstSend time.Duration
}

// create puts an object where none may be, and returns only when it is known what is there:
// this object or another. Any answer but a sure one means that the object may be there, or
// may still come: the same bytes are sent again. On Conflict the object that is there is
// read, and is mine if it has my nonce.
//
// Errors: UnknownOutcome when ctx ends after a send that may have had an effect; the
// context's cause when it ends and none had; Corrupt when what is there cannot be read.
func create(ctx context.Context, b bucket.Bucket, h host.Host, p place, index uint64, nonce [16]byte, body []byte) (outcome, error) {
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	o := outcome{firstSend: h.Mono()}
	maybe := false // a send may have had an effect
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		_, err := b.Put(ctx, p.key(index), body, bucket.IfAbsent)
		if err == nil {
			o.mine = true
			return o, nil
		}
		if errors.Is(err, errkind.Conflict) {
			var known bool
			if known, err = o.look(ctx, b, p, index, nonce); known {
				return o, err
			}
		} else if !errors.Is(err, errkind.Throttled) {
			maybe = true
		}
		if ctx.Err() != nil || h.Sleep(ctx, h.Jitter(wait)) != nil {
			if maybe {
				return o, fmt.Errorf("%w: %w: last attempt: %w", errkind.UnknownOutcome, context.Cause(ctx), err)
			}
			return o, context.Cause(ctx)
		}
	}
}

// look reads what is at index after a Conflict. known is false when it cannot be told yet:
// the read failed, or the object has gone meanwhile.
func (o *outcome) look(ctx context.Context, b bucket.Bucket, p place, index uint64, nonce [16]byte) (known bool, err error) {
	object, err := b.Get(ctx, p.key(index), bucket.GetOptions{})
	if err != nil {
		return false, err
	}
	o.other, err = decodeHeader(object.Body)
	if err == nil {
		err = p.check(&o.other, index)
	}
	o.mine = err == nil && o.other.Nonce == nonce
	return true, err
}
