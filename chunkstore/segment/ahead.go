package segment

import (
	"bytes"
	"context"
	"math"
)

// How a scan reads. The first Fetch is one block, the next one up to readAheadMin, and each
// may be twice the one before: up to readAheadMax when the scan waits for it, and up to
// prefetchMax when a Prefetch has room for it. Reads before their need begin in the second
// block, when the scan has passed half of what the next one fetches, and reach at most
// prefetchSpan beyond the present block. So a short scan reads little, a long one makes few requests and does not
// wait, and what was read for nothing is at most a few times what was read for something.
const (
	readAheadMin = 128 << 10
	readAheadMax = 1 << 20
	prefetchMax  = 4 << 20
	prefetchSpan = 3 * prefetchMax
)

// restBytes is what a scan that rests may keep of what it read and did not come to.
const restBytes = 1 << 20

// ahead hands out the blocks of a scan one after another, and reads the next ones before the
// scan comes to them, several with one Fetch.
//
// It counts blocks by their position in the scan, 0 being the first that the scan meets,
// whatever its direction.
//
//	0        next                 planned                n
//	|--------|--[ run ]----[ run ]|----------------------|
//	 passed      read, or   cached between the runs,
//	             in flight  when the scan looked
type ahead struct {
	r       *Reader
	reverse bool
	lo, n   int // the blocks are [lo, lo+n) of the segment

	next    int
	planned int
	runs    []*run
	window  int    // of the next read, bytes
	passed  uint64 // bytes of the blocks handed out

	share   *Prefetch    // nil: read when needed
	want    func() int64 // how many more rows the caller expects to take; nil: all
	present int64        // of these, rows of the present block
}

// run is one Fetch of adjacent blocks.
type run struct {
	from, to int    // positions
	start    uint64 // where data begins in the object
	data     []byte
	err      error
	taken    int64 // of the Prefetch

	done   chan struct{} // closed when data and err are set; nil: they are
	cancel context.CancelFunc
}

// block is the number in the segment of the block at a position.
func (a *ahead) block(pos int) int {
	if a.reverse {
		return a.lo + a.n - 1 - pos
	}
	return a.lo + pos
}

// extent is where the blocks at positions [from, to) are in the object.
func (a *ahead) extent(from, to int) (start, end uint64) {
	i, j := a.block(from), a.block(to-1)
	return a.r.extent(min(i, j), max(i, j)+1)
}

func (a *ahead) size(from, to int) int64 {
	if from >= to {
		return 0
	}
	start, end := a.extent(from, to)
	return int64(end - start)
}

// load returns the next block: cached, from a read that was made for it, or by a Fetch. It
// then begins the reads that are due.
func (a *ahead) load(ctx context.Context) (*block, error) {
	a.present = 0
	b, err := a.take(ctx)
	if err != nil {
		return nil, err
	}
	a.passed += uint64(a.size(a.next, a.next+1))
	a.next++
	a.present = int64(b.rows)
	for len(a.runs) > 0 && a.runs[0].to <= a.next {
		a.drop()
	}
	a.planned = max(a.planned, a.next)
	a.plan(ctx)
	return b, nil
}

func (a *ahead) take(ctx context.Context) (*block, error) {
	pos := a.next
	k := a.r.key(a.block(pos))
	if v, ok := a.r.cache.lookup(k); ok {
		return v.(*block), nil
	}
	if len(a.runs) == 0 || pos < a.runs[0].from {
		if a.window == 0 {
			a.window = readAheadMin
			return a.r.block(ctx, a.block(pos))
		}
		if err := a.readNow(ctx, pos); err != nil {
			return nil, err
		}
	}
	u := a.runs[0]
	if err := a.wait(ctx, u); err != nil {
		return nil, err
	}
	start, end := a.extent(pos, pos+1)
	b, err := a.r.decoded(ctx, a.block(pos), u.data[start-u.start:end-u.start])
	if err == nil {
		a.r.cache.add(k, b)
	}
	return b, err
}

// wait waits for a run. One that was given up with the context under which it began, while
// ctx goes on, is read again.
func (a *ahead) wait(ctx context.Context, u *run) error {
	if u.done == nil {
		return u.err
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		select {
		case <-u.done: // what is there counts, or the outcome would be select's choice
		default:
			return context.Cause(ctx)
		}
	}
	u.cancel()
	u.done = nil
	if u.err != nil && ended(u.err) && ctx.Err() == nil {
		u.data, u.err = a.r.read(ctx, u.start, uint64(a.size(u.from, u.to)))
	}
	return u.err
}

// readNow reads the block at pos and some that follow.
func (a *ahead) readNow(ctx context.Context, pos int) error {
	u := &run{from: pos, to: pos + a.count(pos, a.window)}
	if size := a.size(u.from, u.to); a.share.Take(size) {
		u.taken = size
	} else {
		u.to = pos + a.count(pos, min(a.window, readAheadMax))
	}
	a.grow()
	var end uint64
	u.start, end = a.extent(u.from, u.to)
	if u.data, u.err = a.r.read(ctx, u.start, end-u.start); u.err != nil {
		a.share.Give(u.taken)
		return u.err
	}
	a.runs = append([]*run{u}, a.runs...)
	a.planned = max(a.planned, u.to)
	return nil
}

func (a *ahead) grow() {
	if a.share == nil {
		a.window = min(2*a.window, readAheadMax)
	} else {
		a.window = min(2*a.window, prefetchMax)
	}
}

// count is how many blocks from pos on to read together: those that fit into the window, are
// neither cached nor part of a run, and that the caller will come to; at least one.
func (a *ahead) count(pos, window int) int {
	end := a.n
	if len(a.runs) > 0 && a.runs[0].from > pos {
		end = a.runs[0].from
	}
	rows := a.rowsWanted()
	n := 1
	for ; pos+n < end && a.size(pos, pos+n+1) <= int64(window); n++ {
		if a.rows(a.next, pos+n) >= rows || a.r.cache.has(a.r.key(a.block(pos+n))) {
			break
		}
	}
	return n
}

// rowsWanted is how many rows after the present block the caller expects to take.
func (a *ahead) rowsWanted() int64 {
	if a.want == nil {
		return math.MaxInt64
	}
	return a.want() - a.present
}

// rows is how many rows the blocks at positions [from, to) have.
func (a *ahead) rows(from, to int) (n int64) {
	for pos := from; pos < to; pos++ {
		n += int64(a.r.tail.blocks.rows[a.block(pos)])
	}
	return n
}

// plan begins the reads that are due.
func (a *ahead) plan(ctx context.Context) {
	if a.share == nil || a.next < 2 {
		return
	}
	a.window = max(a.window, readAheadMin)
	for a.passed >= uint64(a.window/2) && a.due() {
		u := &run{from: a.planned, to: a.planned + a.count(a.planned, a.window)}
		u.taken = a.size(u.from, u.to)
		if !a.share.Take(u.taken) {
			return
		}
		a.start(ctx, u)
		a.planned = u.to
		a.grow()
	}
}

// due moves planned to the next block that is to be read; false when there is none within
// reach.
func (a *ahead) due() bool {
	rows := a.rowsWanted()
	for ; a.planned < a.n; a.planned++ {
		if a.size(a.next, a.planned)+int64(a.window) > prefetchSpan {
			return false
		}
		if a.rows(a.next, a.planned) >= rows {
			return false
		}
		if !a.r.cache.has(a.r.key(a.block(a.planned))) {
			return true
		}
	}
	return false
}

// start fetches a run on a goroutine, which drop and rest wait for.
func (a *ahead) start(ctx context.Context, u *run) {
	ctx, u.cancel = context.WithCancel(ctx)
	var end uint64
	u.start, end = a.extent(u.from, u.to)
	u.done = make(chan struct{})
	done := u.done
	go func() {
		defer close(done)
		u.data, u.err = a.r.read(ctx, u.start, end-u.start)
	}()
	a.runs = append(a.runs, u)
}

// drop gives up the first run.
func (a *ahead) drop() {
	u := a.runs[0]
	if u.done != nil {
		u.cancel()
		<-u.done
	}
	a.share.Give(u.taken)
	a.runs[0] = nil
	a.runs = a.runs[1:]
}

// rest gives up what is in flight and what is not needed at once; the scan can go on.
func (a *ahead) rest() {
	keep := a.remainder()
	for len(a.runs) > 0 {
		a.drop()
	}
	a.planned = a.next
	if keep != nil {
		a.runs, a.planned = append(a.runs, keep), keep.to
	}
}

// remainder is a copy of what is left of the present run, nil when that is nothing or a lot.
func (a *ahead) remainder() *run {
	if len(a.runs) == 0 {
		return nil
	}
	u := a.runs[0]
	left := run{from: max(u.from, a.next), to: u.to}
	size := a.size(left.from, left.to)
	if u.done != nil || u.err != nil || left.from > a.next || size == 0 || size > restBytes {
		return nil
	}
	var end uint64
	left.start, end = a.extent(left.from, left.to)
	left.data = bytes.Clone(u.data[left.start-u.start : end-u.start])
	return &left
}
