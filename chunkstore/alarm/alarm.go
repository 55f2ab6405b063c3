// Package alarm remembers what a process found that should never be: bytes that are not what was
// written (errkind.Corrupt), which nobody repairs by trying again. Whoever ends an error hands it
// to the process's Bell: the command that answers a client with it, the call that answers another
// process, the loop that logs it and goes on.
//
//	found --> Bell --> log, at most once a minute
//	               --> granary_corrupt_errors_total
//	               --> the answer to granary status
//
// A Bell is memory only: a new process finds it again, or it is no more. The package may change
// with any release.
package alarm

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Bell is one process's. A nil one hears nothing. Safe for concurrent use.
type Bell struct {
	clock host.Clock
	log   *slog.Logger

	mu     sync.Mutex // held for a few instructions only
	count  int64
	last   string
	at     time.Duration // of the last, Mono
	silent time.Duration // Mono until when nothing is logged
}

// New makes a Bell that nothing has rung.
func New(clock host.Clock, log *slog.Logger) *Bell {
	return &Bell{clock: clock, log: log}
}

const (
	// logEvery is the time between two lines in the log.
	logEvery = time.Minute
	// lastMax bounds the text that is remembered, in bytes.
	lastMax = 1 << 10
)

// Hear takes any error, and rings when it is Corrupt.
func (b *Bell) Hear(err error) {
	if b == nil || !errors.Is(err, errkind.Corrupt) {
		return
	}
	now := b.clock.Mono()
	text := err.Error()
	b.mu.Lock()
	b.count++
	b.last, b.at = strings.ToValidUTF8(text[:min(len(text), lastMax)], ""), now
	count, tell := b.count, now >= b.silent
	if tell {
		b.silent = now + logEvery
	}
	b.mu.Unlock()
	if tell {
		b.log.Error("stored bytes are not what was written: run granary fsck", "times", count, "last", text)
	}
}

// Found is what a Bell has heard.
type Found struct {
	Count int64
	// Last is the text of the last error, and Ago how long ago that was; without Count nothing.
	Last string
	Ago  time.Duration
}

// Found is what was heard so far.
func (b *Bell) Found() Found {
	if b == nil {
		return Found{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == 0 {
		return Found{}
	}
	return Found{Count: b.count, Last: b.last, Ago: b.clock.Mono() - b.at}
}
