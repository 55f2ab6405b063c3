package faults

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
)

var all = flag.Bool("all", false, "fail at every request of the first start too, of which most are the probe's")

// scenarios are short: setup runs without faults, and each request that follows fails once.
var scenarios = []struct {
	name    string
	setup   func(*life)
	rest    func(*life)
	atLeast int // requests of the rest
}{
	{"first start", nil, func(l *life) { l.start(); l.writeSome(1) }, 20},
	{"writes", sharded, func(l *life) { l.writeSome(2); l.read(false) }, 20},
	{"flush", sharded, func(l *life) { l.flush(); l.read(false) }, 3},
	{"reads of segments", func(l *life) { sharded(l); l.flush(); l.stop() }, func(l *life) { l.start(); l.read(false) }, 6},
	{"planned move", sharded, func(l *life) { l.move(); l.writeSome(2); l.read(false) }, 10},
	{"takeover", func(l *life) { sharded(l); l.kill() }, func(l *life) { l.start(); l.writeSome(2) }, 20},
	{"stop and start", sharded, func(l *life) { l.stop(); l.start(); l.writeSome(2) }, 10},
	{"sweep", func(l *life) { sharded(l); l.flush() }, func(l *life) { time.Sleep(5 * time.Second); l.writeSome(2); l.stop() }, 10},
}

func sharded(l *life) {
	l.start()
	l.shardIt()
	l.writeSome(1)
}

// TestFailAtTheNth has each scenario meet the fault at each of its requests.
func TestFailAtTheNth(t *testing.T) {
	for _, s := range scenarios {
		step := 1
		if s.setup == nil && !*all {
			step = 13
		} else if testing.Short() {
			step = 17
		}
		for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Stuck} {
			t.Run(fmt.Sprintf("%s/%s", s.name, kind), func(t *testing.T) {
				t.Parallel()
				n := 1
				for ; ; n += step {
					reached := false
					synctest.Test(t, func(t *testing.T) {
						l := newLife(t)
						if s.setup != nil {
							s.setup(l)
						}
						from := l.fault.Calls()
						l.fault.SetPlan(faultbucket.FailAt(from+n, faultbucket.Fault{Kind: kind}))
						s.rest(l)
						reached = l.fault.Calls() >= from+n
						l.recover()
					})
					if t.Failed() {
						t.Fatalf("with a fault at request %d", n)
					}
					if !reached {
						break
					}
				}
				if n <= s.atLeast {
					t.Errorf("less than %d requests, expected %d", n, s.atLeast)
				}
				t.Logf("up to request %d", n-step)
			})
		}
	}
}
