package buckettest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// together runs n goroutines that start at the same moment, and waits for them.
func together(n int, f func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func rounds(long int) int {
	if testing.Short() {
		return max(1, long/5)
	}
	return long
}

func raceCreate(s *s) {
	const racers = 64
	for round := range rounds(15) {
		key := fmt.Sprintf("wal/shard01/%020d/%020d", 1, round)
		var won [racers]bucket.Tag
		together(racers, func(i int) {
			tag, err := s.b.Put(s.ctx, key, []byte(strconv.Itoa(i)), bucket.IfAbsent)
			if err == nil {
				won[i] = tag
			} else if !errors.Is(err, errkind.Conflict) {
				s.Errorf("racer %d: %v", i, err)
			}
		})
		winner, winners := 0, 0
		for i, tag := range won {
			if tag != "" {
				winner, winners = i, winners+1
			}
		}
		if winners != 1 {
			s.Fatalf("round %d: %d winners", round, winners)
		}
		s.holds(key, strconv.Itoa(winner), won[winner])
	}
}

// raceSwap: goroutines count together in one object; the end is the number of steps.
func raceSwap(s *s) {
	const counters = 16
	steps := rounds(20)
	s.put("meta/root", "0", bucket.IfAbsent)
	together(counters, func(i int) {
		for done := 0; done < steps; {
			o, err := s.b.Get(s.ctx, "meta/root", bucket.GetOptions{})
			if err != nil {
				s.Errorf("get: %v", err)
				return
			}
			n, err := strconv.Atoi(string(o.Body))
			if err != nil {
				s.Errorf("torn body %q", o.Body)
				return
			}
			_, err = s.b.Put(s.ctx, "meta/root", []byte(strconv.Itoa(n+1)), bucket.IfMatch(o.Tag))
			switch {
			case err == nil:
				done++
			case !errors.Is(err, errkind.Conflict):
				s.Errorf("swap: %v", err)
				return
			}
		}
	})
	if got := string(s.get("meta/root", bucket.GetOptions{}).Body); got != strconv.Itoa(counters*steps) {
		s.Fatalf("counted to %s, want %d", got, counters*steps)
	}
}

// raceDelete: creates, swaps and deletes of one key in a directory that empties again and
// again. A swap must never bring back what was deleted: after each round the object is
// there exactly if the last certain writer says so.
func raceDelete(s *s) {
	for round := range rounds(20) {
		key := fmt.Sprintf("seg/00/d%d/x", round%3)
		tag := s.put(key, "start", bucket.IfAbsent)
		var swapped bool
		together(6, func(i int) {
			switch i {
			case 0:
				if err := s.b.Delete(s.ctx, key); err != nil {
					s.Errorf("delete: %v", err)
				}
			case 1:
				_, err := s.b.Put(s.ctx, key, []byte("swapped"), bucket.IfMatch(tag))
				swapped = err == nil
				if err != nil && !errors.Is(err, errkind.Conflict) && !errors.Is(err, errkind.NotFound) {
					s.Errorf("swap: %v", err)
				}
			default:
				other := fmt.Sprintf("seg/00/d%d/y%d", round%3, i)
				_, err := s.b.Put(s.ctx, other, []byte("y"), bucket.IfAbsent)
				for again := 0; errors.Is(err, errkind.UnknownOutcome) && s.lacks(DeleteRaces) && again < 50; again++ {
					_, err = s.b.Put(s.ctx, other, []byte("y"), bucket.IfAbsent)
				}
				if err != nil {
					s.Errorf("create beside: %v", err)
				}
				if _, err := s.b.Head(s.ctx, other); err != nil {
					s.Errorf("head of a fresh object: %v", err)
				}
				if err := s.b.Delete(s.ctx, other); err != nil {
					s.Errorf("delete beside: %v", err)
				}
			}
		})
		if s.lacks(DeleteRaces) {
			_ = s.b.Delete(s.ctx, key)
		}
		if _, err := s.b.Head(s.ctx, key); !errors.Is(err, errkind.NotFound) {
			s.Fatalf("round %d: after the delete (swap ok=%v): %v", round, swapped, err)
		}
	}
}

// torn: while an object is overwritten, readers see one version whole, or a range of one.
func torn(s *s) {
	const size = 64 << 10
	fill := func(c byte) []byte { return bytes.Repeat([]byte{c}, size) }
	if _, err := s.b.Put(s.ctx, "k", fill('a'), bucket.IfAbsent); err != nil {
		s.Fatal(err)
	}
	var stop atomic.Bool
	together(4, func(i int) {
		if i == 0 {
			defer stop.Store(true)
			for n := range rounds(50) {
				if _, err := s.b.Put(s.ctx, "k", fill(byte('a'+n%26)), bucket.Condition{}); err != nil {
					s.Errorf("put: %v", err)
				}
			}
			return
		}
		for !stop.Load() {
			var o bucket.GetOptions
			if i == 1 {
				o = bucket.GetOptions{Offset: 1000, Length: size - 2000}
			}
			obj, err := s.b.Get(s.ctx, "k", o)
			if err != nil {
				s.Errorf("get: %v", err)
				return
			}
			if n := bytes.Count(obj.Body, obj.Body[:1]); n != len(obj.Body) || obj.Size != size {
				s.Errorf("torn: %d of %d bytes are %q", n, len(obj.Body), obj.Body[0])
				return
			}
		}
	})
}
