//go:build mutants

package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/mutant"
)

var switched atomic.Uint32

// mutated is what a broken rule remembers where the right one has nothing to remember.
var mutated struct {
	sync.Mutex
	promises map[string]manifest.Position
	logs     map[*wal.Log]*wal.Log
}

// SetMutant switches one rule off, for the whole program, and the one before on again; 0
// switches none off.
func SetMutant(m Mutant) {
	mutated.Lock()
	defer mutated.Unlock()
	mutated.promises, mutated.logs = make(map[string]manifest.Position), make(map[*wal.Log]*wal.Log)
	switched.Store(uint32(m))
	mutant.Set(m.String())
}

// SwitchedOff is the rule that is switched off, 0 for none: for those that are broken outside
// this package.
func SwitchedOff() Mutant { return Mutant(switched.Load()) }

func broken(m Mutant) bool { return SwitchedOff() == m }

func (s *shard) appendWAL(ctx context.Context, log *wal.Log, b *wal.Batch) (wal.AppendResult, error) {
	switch {
	case broken(leaseFromReply):
		res, err := log.Append(ctx, b)
		res.FirstSend = s.w.host.Mono()
		return res, err
	case broken(appendedAgain):
		return s.appendAgain(ctx, log, b)
	}
	return log.Append(ctx, b)
}

// appendAgain gives up after the first unclear answer and takes the next index.
func (s *shard) appendAgain(ctx context.Context, log *wal.Log, b *wal.Batch) (wal.AppendResult, error) {
	for {
		mutated.Lock()
		if next := mutated.logs[log]; next != nil {
			log = next
			mutated.Unlock()
			continue
		}
		mutated.Unlock()
		once, cancel := context.WithCancel(ctx)
		giveUp.Store(&cancel)
		res, err := log.Append(once, b)
		giveUp.Store(nil)
		cancel()
		if err == nil || !errors.Is(err, errkind.UnknownOutcome) || ctx.Err() != nil {
			return res, err
		}
		mutated.Lock()
		mutated.logs[log] = wal.NewLog(s.walBucket(), s.writing, s.cluster, s.id, s.epoch, log.Position().Next+1)
		mutated.Unlock()
	}
}

var giveUp atomic.Pointer[context.CancelFunc]

// unclear is a bucket whose unclear answers to appends are not resolved as they should be.
type unclear struct {
	bucket.Bucket
	s    *shard
	mu   sync.Mutex
	sent map[string]bool // had an unclear answer
}

func (s *shard) walBucket() bucket.Bucket {
	if broken(appendedAgain) || broken(conflictIsFenced) {
		return &unclear{Bucket: s.bucket, s: s, sent: make(map[string]bool)}
	}
	return s.bucket
}

func (u *unclear) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	tag, err := u.Bucket.Put(ctx, key, body, c)
	if err != nil && !errors.Is(err, errkind.Conflict) && !errors.Is(err, errkind.Throttled) {
		u.mu.Lock()
		u.sent[key] = true
		u.mu.Unlock()
		if f := giveUp.Load(); f != nil && broken(appendedAgain) {
			(*f)()
		}
	}
	return tag, err
}

// Get shows a seal in place of the own object.
func (u *unclear) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	u.mu.Lock()
	sent := u.sent[key]
	u.mu.Unlock()
	if !sent || !broken(conflictIsFenced) {
		return u.Bucket.Get(ctx, key, o)
	}
	_, e, index, _ := manifest.ParseWALKey(key)
	scratch := membucket.New()
	if _, _, err := wal.Seal(ctx, scratch, u.s.w.host, u.s.cluster, u.s.id, e, index, e+1); err != nil {
		return bucket.Object{}, err
	}
	return scratch.Get(ctx, key, o)
}

func (s *shard) seal(ctx context.Context, e manifest.Epoch, from uint64) (end uint64, seen time.Duration, err error) {
	if !broken(noSeal) {
		return wal.Seal(ctx, s.bucket, s.w.actor("%s %d seals %d", s.id, s.epoch, e), s.cluster, s.id, e, from, s.epoch)
	}
	for end = from; ; end++ {
		_, err := s.bucket.Head(ctx, manifest.WALKey(s.id, e, end))
		if errors.Is(err, errkind.NotFound) {
			return end, s.w.host.Mono(), nil
		}
		if err != nil {
			return 0, 0, err
		}
	}
}

func (s *shard) commitEpoch() manifest.Epoch {
	if now := s.w.root.State().Shard(s.id); broken(flushAnyEpoch) && now != nil {
		return now.Epoch
	}
	return s.epoch
}

// deleteWAL deletes the log between the floor and a position that is not the floor yet.
func (s *shard) deleteWAL(ctx context.Context, pos manifest.Position) {
	from := s.w.root.State().Shard(s.id).Floor
	if from.Epoch != pos.Epoch {
		from.Next = 0
	}
	for i := from.Next; i < pos.Next; i++ {
		_ = s.bucket.Delete(ctx, manifest.WALKey(s.id, pos.Epoch, i))
	}
}

// commitDeparture takes a document away from its chunk, under a token of its own, before
// anybody puts it into the other.
func (s *shard) commitDeparture(ctx context.Context, k *crossing, token manifest.Token) error {
	if len(k.chunks) < 2 {
		return nil
	}
	token.Batch += " departs"
	err := s.commitAs(ctx, s.w.asked, false, manifest.Batch{Token: token, Chunks: k.chunks[1:]})
	k.chunks = k.chunks[:1]
	return err
}

func mutatePromise(r rpc.PromiseReply, c manifest.ChunkID, to manifest.ShardID) rpc.PromiseReply {
	switch {
	case broken(zeroPromise):
		r.Position = manifest.Position{Epoch: r.Epoch}
	case broken(promiseReused):
		mutated.Lock()
		defer mutated.Unlock()
		key := fmt.Sprint(c, to, r.Epoch)
		if p, ok := mutated.promises[key]; ok {
			r.Position = p
		}
		mutated.promises[key] = r.Position
	}
	return r
}
