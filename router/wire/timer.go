package wire

import (
	"context"
	"sync/atomic"
	"time"
)

// timers are the moments on the host's monotonic clock after which a connection is cut off;
// 0 is never. One loop of the server looks at all of them, which costs less than setting a
// deadline on the socket for every message, and follows the clock that was handed in.
type timers [3]atomic.Int64

type timer int

const (
	waiting timer = iota // for the next message; the first one must be complete by then
	reading              // the next step of a message
	writing              // a reply
)

var timerNames = [...]string{"idle for too long", "message stalls", "client takes no reply"}

func (t *timers) set(which timer, at time.Duration) { t[which].Store(int64(at)) }

// expired names the timer that ran out before now, or nothing.
func (t *timers) expired(now time.Duration) string {
	for i := range t {
		if at := t[i].Load(); at != 0 && time.Duration(at) < now {
			return timerNames[i]
		}
	}
	return ""
}

// reapEvery is how late a timer may be noticed.
const reapEvery = time.Second

// reap cuts off the connections whose time has run out, until ctx ends.
func (s *Server) reap(ctx context.Context) {
	for s.o.Host.Sleep(ctx, reapEvery) == nil {
		now := s.o.Host.Mono()
		for _, c := range s.open() {
			if reason := c.timers.expired(now); reason != "" {
				c.cut(reason)
			}
		}
	}
}
