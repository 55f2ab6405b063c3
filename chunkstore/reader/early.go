package reader

import "context"

// Where references follow one another, a scan would wait for each one's tail and first block.
// early opens the next of them before the scan comes there: none before it has come to
// earlyAfter groups, then one group or more, until one, two, four ..., up to parallel
// references are open or being opened.
//
// What it opens is what the scan would have opened: a group that overlaps, together.
type early struct {
	joined  int       // groups that the scan has come to
	opening []*opened // in scan order: the first of those that wait
}

// earlyAfter is how many groups a scan comes to before it opens another ahead of its need.
const earlyAfter = 3

// earlyBlock is what the first block of a reference is taken to have, bytes.
const earlyBlock = 64 << 10

// opened is a reference that is being opened before its time.
type opened struct {
	src    *source
	taken  int64
	cancel context.CancelFunc
	err    error
	done   chan struct{} // closed when src stands on its first row, or err is set
}

// begin opens what is due of the references that wait.
func (e *early) begin(ctx context.Context, it *Iter) {
	if e.joined < earlyAfter {
		return
	}
	goal := min(1<<min(e.joined-earlyAfter, 8), parallel)
	for len(e.opening) < min(goal, len(it.waiting)) && it.wantsMore() {
		rest := it.waiting[len(e.opening):]
		for _, src := range rest[:it.overlapping(rest)] {
			if !e.open(ctx, it, src) {
				return
			}
		}
	}
}

// wantsMore reports whether the caller wants more rows than the open references have.
func (it *Iter) wantsMore() bool {
	if it.want == nil {
		return true
	}
	rows := it.want()
	for _, src := range it.heap {
		if src.ref != nil {
			rows -= int64(src.ref.Rows)
		}
	}
	for _, o := range it.early.opening {
		rows -= int64(o.src.ref.Rows)
	}
	return rows > 0
}

// open begins to open one reference; false when there is no room for it.
func (e *early) open(ctx context.Context, it *Iter, src *source) bool {
	o := &opened{src: src, taken: int64(src.ref.TailLength) + earlyBlock, done: make(chan struct{})}
	if !it.share.Take(o.taken) {
		return false
	}
	ctx, o.cancel = context.WithCancel(ctx)
	e.opening = append(e.opening, o)
	go func() {
		defer close(o.done)
		o.err = src.open(ctx, it)
	}()
	return true
}

// take waits for those of a group that are being opened. Where that failed, the reference is
// left as one that is not open, for the scan to try, and to meet the error if it is still
// there: the reason may be that of another context.
func (e *early) take(it *Iter, group []*source) {
	e.joined++
	for _, src := range group {
		if len(e.opening) > 0 && e.opening[0].src == src {
			e.first(it)
		}
	}
}

// first waits for the first that is being opened.
func (e *early) first(it *Iter) {
	o := e.opening[0]
	<-o.done
	o.cancel()
	it.share.Give(o.taken)
	if o.err != nil {
		o.src.reset()
	}
	e.opening = e.opening[1:]
}

// stop gives up what is being opened; what is open stays so.
func (e *early) stop(it *Iter) {
	for _, o := range e.opening {
		o.cancel()
	}
	for len(e.opening) > 0 {
		e.first(it)
	}
}
