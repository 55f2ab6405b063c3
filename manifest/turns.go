package manifest

import "time"

// turns keeps a process that commits all the time from having the register for itself. Whoever
// has just written the root knows it, and can send the next swap at once; whoever was overtaken
// reads first, and is overtaken again. So a winner stands back now and then, for as long as the
// others need to read and to swap; whoever was overtaken does not wait at all. As long as it never
// lost a race, it does not know whether there are others, and does so seldom. Only the committer
// touches it.
type turns struct {
	wins  int           // swaps won one after the other, without standing back
	won   time.Duration // Mono of the last one
	swap  time.Duration // how long a swap takes, smoothed
	lost  time.Duration // Mono of the last race lost
	raced bool          // lost is set
}

const (
	// aloneWins and racingWins are how many swaps in a row a process wins before it stands back:
	// when it knows of nobody else, and when it does.
	aloneWins, racingWins = 32, 3
	// racingFor is how long it knows.
	racingFor = 10 * time.Second
)

// win notes a swap that was answered now and took so long.
func (t *turns) win(now, took time.Duration) {
	if t.wins > 0 && now-t.won > t.room()+took {
		t.wins = 0 // there was time for others
	}
	t.wins, t.won = t.wins+1, now
	if t.swap == 0 {
		t.swap = took
	}
	t.swap += (took - t.swap) / 8
}

// lose notes a race lost.
func (t *turns) lose(now time.Duration) { t.wins, t.lost, t.raced = 0, now, true }

// room is how long others need to see that they lost, to read and to swap.
func (t *turns) room() time.Duration { return 2 * t.swap }

// standBack is how long to wait before the next swap.
func (t *turns) standBack(now time.Duration) time.Duration {
	most := aloneWins
	if t.raced && now-t.lost < racingFor {
		most = racingWins
	}
	if t.wins < most {
		return 0
	}
	t.wins = 0
	return max(t.won+t.room()-now, 0)
}
