package writer

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
)

// job is one piece of the janitor's work: a flush, a move, a free. One at a time, since
// each decides where rows are, and an outcome that is not known yet is part of that.
type job struct {
	run  func(ctx context.Context) error
	done chan struct{}
	err  error // before done is closed
	// urgent: somebody waits. Owned by: the mutex of the shard.
	urgent bool
}

// jobsMax bounds the jobs that wait for the janitor of one shard.
const jobsMax = 64

// workLoop is the janitor: it runs jobs until the shard ends.
func (s *shard) workLoop(ctx context.Context) {
	for {
		select {
		case j := <-s.jobs:
			if j.err = s.endedErr(); j.err == nil {
				j.err = j.run(ctx)
			}
			close(j.done)
		case <-s.ended:
			s.refuseJobs()
			return
		}
	}
}

// refuseJobs answers the jobs that nobody will run.
func (s *shard) refuseJobs() {
	for {
		select {
		case j := <-s.jobs:
			j.err = s.endedErr()
			close(j.done)
		default:
			return
		}
	}
}

// do has the janitor run a job and waits for it. The job goes on when ctx ends first: it
// has a commit to resolve. Errors: the job's; Throttled when too many wait; UnknownOutcome
// when ctx ended first.
func (s *shard) do(ctx context.Context, run func(context.Context) error) error {
	s.mu.Lock()
	j, err := s.queue(run)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.finished(ctx, j)
}

// queue gives a job to the janitor. Requires: the mutex.
func (s *shard) queue(run func(context.Context) error) (*job, error) {
	if s.endErr != nil {
		return nil, s.endErr
	}
	j := &job{run: run, done: make(chan struct{})}
	select {
	case s.jobs <- j:
		return j, nil
	default:
		return nil, fmt.Errorf("shard %s: %w: %d jobs wait", s.id, errkind.Throttled, jobsMax)
	}
}

// finished waits for a job that was queued. One that never began, because the shard ended,
// fails with the reason.
func (s *shard) finished(ctx context.Context, j *job) error {
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
	}
	select {
	case <-j.done:
		return j.err
	default:
		return fmt.Errorf("shard %s: %w: %w", s.id, errkind.UnknownOutcome, context.Cause(ctx))
	}
}
