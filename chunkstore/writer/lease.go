package writer

import (
	"context"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// lease is the time in which the owner may answer reads from memory alone.
//
// It is counted from the last proof that no successor had ended this epoch: the moment of
// the FIRST send of a WAL object that is known to be ours (it was created after that, so no
// seal was there before), or of the send of a root GET that showed our epoch. Counted from
// an answer, or from a send that was repeated, it would reach into the time of a successor
// who waited only as long as he must. A successor waits the lease out after he saw the last
// seal; both count on their own clocks, and he allows for the drift of both.
//
// The lease is the shard's. That a chunk is still the shard's follows from the shard's own
// acts: it stops reads before it sends the commit that gives a chunk away.
type lease struct {
	length time.Duration
	proof  time.Duration // on the monotonic clock
	proved bool
}

// prove counts the lease from t on, if that is later than before.
func (l *lease) prove(t time.Duration) {
	if !l.proved || t > l.proof {
		l.proof, l.proved = t, true
	}
}

// left is what remains at now; 0: nothing.
func (l *lease) left(now time.Duration) time.Duration {
	if !l.proved || now >= l.proof+l.length {
		return 0
	}
	return l.proof + l.length - now
}

// successorWait is how long a successor waits after it saw the last seal, when the holder
// before counted with a lease of that length and each clock errs by at most drift.
func successorWait(length time.Duration, drift float64) time.Duration {
	return time.Duration(float64(length)*(1+drift)/(1-drift)) + 1
}

// proof remembers during one read what was proved for it.
type proof struct {
	level rpc.Level
	// verified: a root GET that was sent after the read came showed our epoch. That is
	// enough for any level: whatever was acknowledged before the GET, we acknowledged.
	verified bool
}

// holds reports whether the read may take its view now. Requires: the mutex.
func (s *shard) holds(p *proof) bool {
	return p.verified || broken(readWithoutLease) ||
		p.level == rpc.Lease && s.lease.left(s.w.host.Mono()) > 0
}

// verify reads the root; reads that need it at the same time share one GET.
func (s *shard) verify(ctx context.Context, p *proof) error {
	var st *manifest.State
	var sent time.Duration
	err := s.w.turns.take(ctx, s.w.turns.join(), func() (err error) {
		st, sent, err = s.w.root.Load(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("prove the lease of shard %s: %w", s.id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return s.endErr
	}
	now := st.Shard(s.id)
	if now == nil || now.Epoch != s.epoch {
		s.counts.Fenced++
		s.endLocked(s.fenced(now))
		return s.endErr
	}
	s.lease.prove(sent)
	p.verified = true
	return nil
}
