package wal

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// fanOut bounds the requests that Seal and Replay have in flight.
const fanOut = 8

// Seal ends the WAL of an older epoch of the shard: it creates a seal at the first free
// index at or above from, where from is the shard's floor (0 in epochs above the floor's).
// From then on nothing can be appended. Done again, by whomever, it finds the same end.
//
// end is the index of the seal: [from, end) are the data objects to replay. observed is
// Clock.Mono when the seal was known to be there: a lease of the sealed epoch is waited out
// from then. sealer is the epoch on whose behalf this is done, for people.
//
// Errors: Corrupt when an object in the way is not what it must be; UnknownOutcome or the
// context's cause when ctx ends: call again.
func Seal(ctx context.Context, b bucket.Bucket, h host.Host, cluster manifest.ClusterID, shard manifest.ShardID, epoch manifest.Epoch, from uint64, sealer manifest.Epoch) (end uint64, observed time.Duration, err error) {
	s := sealing{bucket: b, host: h, place: place{cluster, shard, epoch}, sealer: sealer}
	if end, err = s.seal(ctx, from); err != nil {
		return 0, 0, fmt.Errorf("seal wal of shard %s epoch %d from %d: %w", shard, epoch, from, err)
	}
	return end, h.Mono(), nil
}

type sealing struct {
	bucket bucket.Bucket
	host   host.Host
	place  place
	sealer manifest.Epoch
}

// seal is right by creation alone: it tries indexes below which all are taken by data, and
// ends at the first that it took or that holds a seal. Probing only finds a good index to
// try, so what it cannot see does not matter. An owner that is alive and never pauses can
// stay ahead of it, until that owner sees the claim in the root and stops.
func (s *sealing) seal(ctx context.Context, from uint64) (uint64, error) {
	for {
		index := s.probe(ctx, from)
		if index > from { // what probing saw last may be the seal itself
			var o outcome
			if _, err := o.look(ctx, s.bucket, s.place, index-1, [16]byte{}); err != nil || o.other.Kind == KindSeal {
				index-- // tried, it shows what it is
			}
		}
		h := s.place.header(KindSeal, index)
		h.Nonce, h.Millis, h.Sealer = s.host.ID16(), s.host.Wall().UnixMilli(), s.sealer
		o, err := create(ctx, s.bucket, s.host, s.place, index, h.Nonce, appendObject(nil, &h, nil))
		if err != nil {
			return 0, fmt.Errorf("object %d: %w", index, err)
		}
		if o.mine || o.other.Kind == KindSeal {
			return index, nil
		}
		from = index + 1
	}
}

// probe returns the first index from `from` on that was absent when it was asked for, or
// could not be seen. Objects are contiguous, so it asks for several at a time: ever further
// ones until one is absent, then spread ones between the last present and that.
func (s *sealing) probe(ctx context.Context, from uint64) uint64 {
	const unknown = math.MaxUint64
	lo, hi := from, uint64(unknown) // [from, lo) are present, hi is absent
	for step := uint64(1); lo < hi; {
		var ask []uint64
		for i := uint64(1); i <= fanOut; i++ {
			switch {
			case hi == unknown:
				ask = append(ask, from+step-1)
				step *= 2
			case hi-lo > fanOut:
				ask = append(ask, lo+i*(hi-lo)/(fanOut+1))
			case lo+i-1 < hi:
				ask = append(ask, lo+i-1)
			}
		}
		for i, present := range s.heads(ctx, ask) {
			if !present {
				hi = ask[i]
				break
			}
			lo = ask[i] + 1
		}
	}
	return lo
}

// heads asks for all the objects at once, and answers which of them were seen.
func (s *sealing) heads(ctx context.Context, indexes []uint64) []bool {
	seen := make([]bool, len(indexes))
	var wg sync.WaitGroup
	for i, index := range indexes {
		wg.Go(func() {
			_, err := s.bucket.Head(ctx, s.place.key(index))
			seen[i] = err == nil
		})
	}
	wg.Wait()
	return seen
}
