//go:build !mutants

package writer

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// broken reports whether a rule of the protocol is switched off. Here none can be: the
// compiler removes the question. A build with the tag mutants can switch off one, so that
// the simulation shows that it would notice.
func broken(Mutant) bool { return false }

func (s *shard) appendWAL(ctx context.Context, log *wal.Log, b *wal.Batch) (wal.AppendResult, error) {
	return log.Append(ctx, b)
}

func (s *shard) walBucket() bucket.Bucket { return s.bucket }

func (s *shard) seal(ctx context.Context, e manifest.Epoch, from uint64) (end uint64, seen time.Duration, err error) {
	return wal.Seal(ctx, s.bucket, s.w.actor("%s %d seals %d", s.id, s.epoch, e), s.cluster, s.id, e, from, s.epoch)
}

func (s *shard) commitEpoch() manifest.Epoch { return s.epoch }

func (s *shard) deleteWAL(context.Context, manifest.Position) {}

func mutatePromise(r rpc.PromiseReply, _ manifest.ChunkID, _ manifest.ShardID) rpc.PromiseReply {
	return r
}

func (s *shard) commitDeparture(context.Context, *crossing, manifest.Token) error { return nil }
