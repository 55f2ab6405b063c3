package writer

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// freeAttempts bounds how often the last flush is planned again because a chunk was cut or
// merged meanwhile.
const freeAttempts = 4

// freeAtOnce is how many bytes of unflushed rows are uploaded while requests wait. More are
// flushed first: that costs a commit, and keeps the wait short.
const freeAtOnce = 1 << 20

// errFreed is the end of a shard that was given back: a root shows it free in its own epoch,
// which only its holder's commit can have made.
var errFreed = fmt.Errorf("%w: it was freed", errkind.StaleVersion)

// errRemoved is the end of a shard that was removed from the cluster: it owned nothing, so that
// nothing is left to give back.
var errRemoved = fmt.Errorf("%w: it was removed", errkind.Fenced)

// free is the janitor's job that gives the shard back:
//
//	flush     what is there, while the shard serves; little is left to the end
//	drain     requests wait; what was appended becomes durable
//	upload    the rest
//	commit    rows, floor := end of the WAL, no open epochs, held by nobody
//
// It never comes to the commit after an append whose outcome is unknown: that ended the
// shard, and it is left to a takeover. Reads stop before the commit is sent, since a direct
// commit or a new claim does not wait for our lease.
func (s *shard) free(ctx context.Context) error {
	if s.unflushedBytes() > freeAtOnce {
		if err := s.flush(ctx, false); err != nil && !errors.Is(err, errkind.Conflict) {
			return err
		}
	}
	s.drain()
	for attempt := 0; ; attempt++ {
		err := s.freeOnce(ctx)
		if err == nil {
			return nil
		}
		if s.endedErr() != nil || attempt+1 == freeAttempts || !errors.Is(err, errkind.Conflict) {
			s.undrain()
			return err
		}
	}
}

func (s *shard) unflushedBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

func (s *shard) freeOnce(ctx context.Context) error {
	if err := s.drained(ctx); err != nil {
		return err
	}
	pos, parts, _ := s.freeze(nil)
	defer s.thaw(pos, parts)
	if err := s.endedErr(); err != nil {
		return err
	}
	if err := s.upload(ctx, parts); err != nil {
		return fmt.Errorf("free shard %s: %w", s.id, err)
	}
	err := s.commitEdit(ctx, false, manifest.Free{Shard: s.id, Epoch: s.epoch, Snapshot: pos, Chunks: flushed(parts)})
	if err != nil && !errors.Is(s.endedErr(), errFreed) { // the root is seen before Commit returns, and ends our context
		return fmt.Errorf("free shard %s at %v: %w", s.id, pos, err)
	}
	return nil
}

// drain makes requests wait.
func (s *shard) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil {
		s.phase, s.unserved = Draining, newGate()
	}
}

// undrain lets them go on: the shard was not freed.
func (s *shard) undrain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil {
		s.phase = Serving
		close(s.unserved.opened)
		s.unserved = nil
	}
}
