package query

import (
	"runtime"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/admission"
)

// loan is what one cursor has of the memory that all sorts of a process share. It goes back
// when the cursor is at its end or, since nobody has to close one, when the collector finds
// the cursor gone: its memory is there until then.
type loan struct {
	from *admission.Account
	n    atomic.Int64
}

const (
	// loanFree is what every cursor may hold uncounted, loanStep what it borrows at once.
	loanFree = 64 << 10
	loanStep = 256 << 10
)

func newLoan(c *Cursor, from *admission.Account) *loan {
	l := &loan{from: from}
	if from != nil {
		runtime.AddCleanup(c, (*loan).release, l)
	}
	return l
}

// cover borrows until used bytes are covered. Errors: admission.Overloaded.
func (l *loan) cover(used int64) error {
	if l == nil || l.from == nil {
		return nil
	}
	for used > l.n.Load()+loanFree {
		if !l.from.Reserve(loanStep) {
			return l.from.Refusal(loanStep)
		}
		l.n.Add(loanStep)
	}
	return nil
}

func (l *loan) release() {
	if l != nil {
		l.from.Add(-l.n.Swap(0))
	}
}
