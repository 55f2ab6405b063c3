package admission

import (
	"context"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest/host"
)

// Settings tune a Gate. Zero fields mean the defaults.
type Settings struct {
	// Name says in errors and figures what is let in; "requests".
	Name string
	// Most is how many may be under way, and Least how many are always let in, however busy
	// the process is; 1024 and 16: more would keep two processors busy for longer than who
	// asks should wait, and fewer would leave them idle while a store takes its time.
	Most, Least int
	// QueueMax bounds those that wait, and WaitMax how long; 256 and 10 ms. Who is refused
	// has waited no longer.
	QueueMax int
	WaitMax  time.Duration
	// Lag measures how long what is ready to run has waited for a processor since it was last
	// asked: RuntimeLag. nil: there is none, and the limit stays Most. LagMax is from where on
	// the limit shrinks; 3 ms.
	Lag    func() time.Duration
	LagMax time.Duration
}

func (s Settings) withDefaults() Settings {
	if s.Name == "" {
		s.Name = "requests"
	}
	if s.Most == 0 {
		s.Most = 1024
	}
	if s.Least == 0 {
		s.Least = min(16, s.Most)
	}
	if s.QueueMax == 0 {
		s.QueueMax = 256
	}
	if s.WaitMax == 0 {
		s.WaitMax = 10 * time.Millisecond
	}
	if s.LagMax == 0 {
		s.LagMax = 3 * time.Millisecond
	}
	return s
}

// Gate bounds the requests that are under way. A nil one lets everybody in. Safe for
// concurrent use.
type Gate struct {
	host host.Host
	set  Settings
	busy chan struct{} // capacity 1: more than Least are under way

	mu      sync.Mutex // held for a few instructions only
	limit   float64    // how many may be under way now
	inside  int
	queue   []*waiting // in order; who gave up is not in it
	usual   float64    // about how long a request is under way, nanoseconds
	lag     float64    // of late, nanoseconds
	refused int64
}

type waiting struct{ in chan struct{} }

// New makes a Gate. Its limit moves while Run runs; without it the limit is Most.
func New(h host.Host, s Settings) *Gate {
	g := &Gate{host: h, set: s.withDefaults(), busy: make(chan struct{}, 1)}
	g.limit = float64(g.set.Most)
	return g
}

// Pass is the proof that a request was let in. It must be given back once. The zero Pass is
// that of a request that is not counted.
type Pass struct {
	since   time.Duration
	counted bool
}

// Enter lets a request in, at once or after a short wait. left is what remains of its own
// deadline; 0: it has none. Errors: Overloaded, the context's cause.
func (g *Gate) Enter(ctx context.Context, left time.Duration) (Pass, error) {
	if g == nil {
		return Pass{}, nil
	}
	now := g.host.Mono()
	g.mu.Lock()
	if g.free() {
		g.enter()
		g.mu.Unlock()
		return Pass{now, true}, nil
	}
	if err := g.hopeless(left); err != nil {
		g.mu.Unlock()
		return Pass{}, err
	}
	w := &waiting{in: make(chan struct{})}
	g.queue = append(g.queue, w)
	g.mu.Unlock()
	if err := g.await(ctx, w); err != nil {
		return Pass{}, err
	}
	return Pass{g.host.Mono(), true}, nil
}

// Full refuses a request that Enter would refuse at once, and is for one that has not arrived
// yet: it takes no place. left is as for Enter. Errors: Overloaded.
func (g *Gate) Full(left time.Duration) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free() {
		return nil
	}
	return g.hopeless(left)
}

// free: there is room, and nobody waits for it. Requires: the mutex.
func (g *Gate) free() bool { return len(g.queue) == 0 && g.inside < int(g.limit) }

// Pass lets a request in that continues what was let in before: it is counted, and never
// refused.
func (g *Gate) Pass() Pass {
	if g == nil {
		return Pass{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.enter()
	return Pass{g.host.Mono(), true}
}

// enter counts one more. Requires: the mutex.
func (g *Gate) enter() {
	if g.inside++; g.inside == g.set.Least+1 {
		select {
		case g.busy <- struct{}{}:
		default:
		}
	}
}

// hopeless is the error for a request whose turn would come too late, as far as the recent
// ones tell. Requires: the mutex.
func (g *Gate) hopeless(left time.Duration) error {
	wait := time.Duration(g.usual * float64(len(g.queue)+1) / max(g.limit, 1))
	if len(g.queue) >= g.set.QueueMax || wait > g.set.WaitMax {
		g.refused++
		return Refuse("%d %s are under way in this process, which is the most that it can do now, and %d wait", g.inside, g.set.Name, len(g.queue))
	}
	if end := wait + time.Duration(g.usual); left > 0 && end > left {
		g.refused++
		return Refuse("%d %s are under way in this process, and this one would take about %v, its time limit is %v",
			g.inside, g.set.Name, end.Round(time.Millisecond), left.Round(time.Millisecond))
	}
	return nil
}

// await waits for the turn, not for long. Who has it when the wait ends takes it.
func (g *Gate) await(ctx context.Context, w *waiting) error {
	short, cancel := g.host.WithTimeout(ctx, g.set.WaitMax)
	defer cancel()
	select {
	case <-w.in:
		return nil
	case <-short.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.queue {
		if other != w {
			continue
		}
		g.queue = append(g.queue[:i], g.queue[i+1:]...)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.refused++
		return Refuse("%d %s are under way in this process, and none ended within %v", g.inside, g.set.Name, g.set.WaitMax)
	}
	return nil
}

// usualWeight is the weight of one request in what is usual.
const usualWeight = 1.0 / 64

// Leave gives a pass back.
func (g *Gate) Leave(p Pass) {
	if g == nil || !p.counted {
		return
	}
	took := float64(g.host.Mono() - p.since)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.usual == 0 {
		g.usual = took
	}
	g.usual += (took - g.usual) * usualWeight
	g.inside--
	g.admit()
}

// admit lets in those whose turn it is. Requires: the mutex.
func (g *Gate) admit() {
	for len(g.queue) > 0 && g.inside < int(g.limit) {
		close(g.queue[0].in)
		g.queue = g.queue[1:]
		g.enter()
	}
}

// Bound tells how many are under way, and the limit of now.
func (g *Gate) Bound() Bound {
	if g == nil {
		return Bound{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return Bound{Name: g.set.Name, Used: int64(g.inside), Limit: int64(g.limit), Waiting: int64(len(g.queue)), Refused: g.refused}
}
