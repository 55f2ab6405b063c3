package admission

import (
	"context"
	"time"
)

const (
	// pulseEvery is the time between two measurements.
	pulseEvery = 10 * time.Millisecond
	// lagWeight is the weight of one measurement in the lag: one long pause of the process
	// is not yet a load.
	lagWeight = 1.0 / 4
	// shrinkMost is the most that one measurement takes off the limit, growBy what it adds
	// when there is no lag: fast down, slowly up.
	shrinkMost = 1.0 / 4
	growBy     = 1.0 / 64
)

// Run moves the limit until ctx ends. While few requests are under way it sleeps.
func (g *Gate) Run(ctx context.Context) error {
	for g.set.Lag != nil {
		select {
		case <-g.busy:
		case <-ctx.Done():
			return nil
		}
		_ = g.set.Lag() // of the time in which nobody looked
		for again := true; again; {
			if g.host.Sleep(ctx, pulseEvery) != nil {
				return nil
			}
			again = g.pulse(g.set.Lag())
		}
	}
	return nil
}

// pulse takes one measurement of the lag; false when there is nothing to watch: few are under
// way, and the limit is Most again.
func (g *Gate) pulse(lag time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lag += (float64(lag) - g.lag) * lagWeight
	most, least, lagMax := float64(g.set.Most), float64(g.set.Least), float64(g.set.LagMax)
	switch {
	case g.lag > lagMax:
		now := min(g.limit, float64(g.inside))
		g.limit = max(now*max(lagMax/g.lag, 1-shrinkMost), least)
	case g.lag < lagMax/2:
		g.limit = min(g.limit+max(g.limit*growBy, 1), most)
	}
	g.admit()
	return g.limit < most || g.inside > g.set.Least
}
