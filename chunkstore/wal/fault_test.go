package wal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// bubble runs f in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// faulty is a store in memory whose n-th request meets the fault; a driver's own deadline
// of 10 s ends what is stuck.
func faulty(t *testing.T, n int, f faultbucket.Fault) (*faultbucket.Bucket, bucket.Bucket) {
	h := testHost(77)
	fb := faultbucket.New(membucket.New(), h, faultbucket.FailAt(n, f))
	t.Cleanup(func() { check(t, fb.Close()) })
	return fb, layer.Deadline(fb, h, 10*time.Second)
}

// Whatever happens to the PUT (before its effect, after it, late, twice, refused, stuck),
// Append ends in success with exactly one object, and FirstSend is the first send.
func TestAppendSurvivesEveryFaultOfItsPut(t *testing.T) {
	t.Parallel()
	for kind := faultbucket.None; kind.String() != "invalid"; kind++ {
		for n := 1; n <= 3; n++ {
			bubble(t, fmt.Sprintf("%s at %d", kind, n), func(t *testing.T) {
				fb, b := faulty(t, n, faultbucket.Fault{Kind: kind, Delay: 3 * time.Second})
				h := testHost(1)
				l := newLog(b, h, 0)
				for i := range 2 {
					start := h.Mono()
					res, err := l.Append(t.Context(), insert(t, i))
					check(t, err)
					if res.FirstSend != start {
						t.Errorf("first send %v, started at %v", res.FirstSend, start)
					}
				}
				fb.Wait()
				end, err := seal(t.Context(), b, h, 0)
				check(t, err)
				diff(t, end, uint64(2))
				diff(t, seqs(t, b, 0, end), []int{0, 1})
			})
		}
	}
}

// A storm of lost answers is sat out with bounded waits; the object is stored once.
func TestAppendRetriesUntilTheStoreHeals(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		h := testHost(1)
		fb := faultbucket.New(membucket.New(), h, faultbucket.Rules(h, faultbucket.Rule{To: 40, Fault: faultbucket.Fault{Kind: faultbucket.After}}))
		l := newLog(fb, h, 0)
		_, err := l.Append(t.Context(), insert(t, 1))
		check(t, err)
		if d := h.Mono(); d > 40*backoffMax || fb.Calls() < 40 {
			t.Errorf("%d requests in %v", fb.Calls(), d)
		}
		diff(t, seqs(t, fb, 0, 1), []int{1})
	})
}

// When the context ends after a send, the outcome is unknown and the log is dead, because
// the object may still come: here it comes late, before or after the successor's seal.
func TestUnknownOutcomeEndsTheLog(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{2 * time.Second, time.Minute} {
		bubble(t, late.String(), func(t *testing.T) {
			h := testHost(1)
			fault := faultbucket.Fault{Kind: faultbucket.Late, Delay: late}
			fb := faultbucket.New(membucket.New(), h, func(c faultbucket.Call) faultbucket.Fault {
				if c.N == 2 {
					return fault
				}
				if c.N > 2 && c.Verb == layer.Put && h.Mono() < 10*time.Second && c.Size > headerSize {
					return faultbucket.Fault{Kind: faultbucket.Before}
				}
				return faultbucket.Fault{}
			})
			l := newLog(fb, h, 0)
			_, err := l.Append(t.Context(), insert(t, 0))
			check(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = l.Append(ctx, insert(t, 1))
			wantKind(t, err, errkind.UnknownOutcome)
			wantKind(t, err, context.DeadlineExceeded)
			wantKind(t, l.Err(), errkind.UnknownOutcome)
			_, err = l.Append(t.Context(), insert(t, 2))
			wantKind(t, err, errkind.UnknownOutcome)
			check(t, h.Sleep(t.Context(), 5*time.Second))
			end, err := seal(t.Context(), fb, h, 0)
			check(t, err)
			fb.Wait()
			if want := []int{0, 1}[:end]; late > 10*time.Second && end != 1 || late < 5*time.Second && end != 2 {
				t.Errorf("sealed at %d, want %v", end, want)
			}
			diff(t, seqs(t, fb, 0, end), []int{0, 1}[:end])
			again, err := seal(t.Context(), fb, h, 0)
			check(t, err)
			diff(t, again, end)
		})
	}
}

// A log stays usable when nothing can have happened: the context ended before the send, or
// every send was refused.
func TestLogSurvivesWhatHadNoEffect(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		h := testHost(1)
		fb := faultbucket.New(membucket.New(), h, faultbucket.Rules(h, faultbucket.Rule{Fault: faultbucket.Fault{Kind: faultbucket.Throttle}}))
		l := newLog(fb, h, 0)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("no time left"))
		defer cancel()
		for range 2 { // refused until the context ends; then not sent at all
			_, err := l.Append(ctx, insert(t, 0))
			if err == nil || !strings.Contains(err.Error(), "no time left") || errors.Is(err, errkind.UnknownOutcome) {
				t.Errorf("error %v", err)
			}
			check(t, l.Err())
		}
		fb.SetPlan(nil)
		_, err := l.Append(t.Context(), insert(t, 1))
		check(t, err)
		diff(t, seqs(t, fb, 0, 1), []int{1})
	})
}

// A seal at the index fences the log for good, and nothing of the batch is stored.
func TestSealFences(t *testing.T) {
	t.Parallel()
	mem := membucket.New()
	l := newLog(mem, testHost(1), 0)
	_, err := l.Append(t.Context(), insert(t, 0))
	check(t, err)
	end, err := seal(t.Context(), mem, testHost(2), 0)
	check(t, err)
	diff(t, end, uint64(1))
	for range 2 {
		_, err = l.Append(t.Context(), insert(t, 1))
		wantKind(t, err, errkind.Fenced)
		wantKind(t, l.Err(), errkind.Fenced)
	}
	diff(t, seqs(t, mem, 0, end), []int{0})
}

// An own object whose answer was lost counts as appended also when the seal is already
// behind it; the first send, not the re-send, is what it proves.
func TestOwnObjectBeforeTheSealIsAppended(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		h := testHost(1)
		fb := faultbucket.New(membucket.New(), h, faultbucket.FailAt(1, faultbucket.Fault{Kind: faultbucket.After}))
		l := newLog(fb, h, 0)
		fb.SetPlan(func(c faultbucket.Call) faultbucket.Fault {
			if c.N == 1 {
				return faultbucket.Fault{Kind: faultbucket.After}
			}
			return faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Minute} // the re-send
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			res, err := l.Append(t.Context(), insert(t, 0))
			check(t, err)
			diff(t, res.FirstSend, time.Duration(0))
		})
		check(t, h.Sleep(t.Context(), 20*time.Second))
		fb.SetPlan(nil)
		end, err := seal(t.Context(), fb, testHost(2), 0)
		check(t, err)
		diff(t, end, uint64(1))
		wg.Wait()
		_, err = l.Append(t.Context(), insert(t, 1))
		wantKind(t, err, errkind.Fenced)
	})
}

// Somebody else's batch at the own index, or an unreadable object, is Corrupt and final.
func TestForeignObjectAtTheIndexIsCorrupt(t *testing.T) {
	t.Parallel()
	key := manifest.WALKey(shard, epoch, 0)
	for name, plant := range map[string]func(b bucket.Bucket) error{
		"another log's batch": func(b bucket.Bucket) error {
			_, err := newLog(b, testHost(9), 0).Append(t.Context(), insert(t, 7))
			return err
		},
		"no object of ours": func(b bucket.Bucket) error {
			_, err := b.Put(t.Context(), key, []byte("hello"), bucket.IfAbsent)
			return err
		},
		"another shard's batch": func(b bucket.Bucket) error {
			h := place{cluster, "shard02", epoch}.header(KindData, 0)
			_, err := b.Put(t.Context(), key, appendObject(nil, &h, []byte("x")), bucket.IfAbsent)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := membucket.New()
			check(t, plant(mem))
			l := newLog(mem, testHost(1), 0)
			for range 2 {
				_, err := l.Append(t.Context(), insert(t, 1))
				wantKind(t, err, errkind.Corrupt)
			}
			if name != "another log's batch" {
				_, err := seal(t.Context(), mem, testHost(2), 0)
				wantKind(t, err, errkind.Corrupt)
			}
		})
	}
}

// An object that has gone between the Conflict and the look (GC may delete it) is created
// again.
func TestObjectThatWentMeanwhileIsSentAgain(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		b := &vanishing{Bucket: membucket.New()}
		_, err := newLog(b, testHost(9), 0).Append(t.Context(), insert(t, 7))
		check(t, err)
		_, err = newLog(b, testHost(1), 0).Append(t.Context(), insert(t, 1))
		check(t, err)
		diff(t, seqs(t, b.Bucket, 0, 1), []int{1})
	})
}

// vanishing deletes what it is asked for.
type vanishing struct{ bucket.Bucket }

func (v *vanishing) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if err := v.Delete(ctx, key); err != nil {
		return bucket.Object{}, err
	}
	return v.Bucket.Get(ctx, key, o)
}

// With any one request of a whole life (appends, takeover, replay) spoiled in any way, every
// acknowledged batch is replayed, in order, and nothing that was not sent.
func TestEveryAcknowledgedBatchSurvivesAFaultAnywhere(t *testing.T) {
	t.Parallel()
	for kind := faultbucket.None + 1; kind.String() != "invalid"; kind++ {
		bubble(t, kind.String(), func(t *testing.T) {
			for n := 1; life(t, n, kind) >= n; n++ {
			}
		})
	}
}

// life returns how many requests it made.
func life(t *testing.T, n int, kind faultbucket.Kind) int {
	fb, b := faulty(t, n, faultbucket.Fault{Kind: kind, Delay: 3 * time.Second, Pick: 12345})
	h := testHost(uint64(n))
	l := newLog(b, h, 0)
	acked := 0
	for i := range 5 {
		ctx, cancel := h.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := l.Append(ctx, insert(t, i))
		cancel()
		if err != nil {
			wantKind(t, err, errkind.UnknownOutcome)
			break
		}
		acked++
	}
	var end uint64
	retry(t, func() (err error) { end, err = seal(t.Context(), b, h, 0); return err })
	fb.Wait()
	var got []int
	retry(t, func() error {
		got = nil
		return Replay(t.Context(), b, cluster, shard, epoch, 0, end, func(_ manifest.Position, r Record) error {
			got = append(got, int(r.Seq))
			return nil
		})
	})
	if len(got) < acked || len(got) > acked+1 {
		t.Errorf("%v at %d: %d batches acknowledged, %v replayed", kind, n, acked, got)
	}
	for i, seq := range got {
		if seq != i {
			t.Errorf("%v at %d: %v replayed", kind, n, got)
		}
	}
	return fb.Calls()
}

// retry calls f up to twice: each plan spoils one request only.
func retry(t *testing.T, f func() error) {
	t.Helper()
	if f() != nil {
		check(t, f())
	}
}
