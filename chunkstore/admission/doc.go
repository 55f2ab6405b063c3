// Package admission keeps a process from taking on more than it can do: who comes while it is
// full is told so at once, instead of waiting in a queue that only grows.
//
// # Two things run out
//
// A Gate bounds requests, for the processor: so many are under way at most, a few more wait in
// order, and everybody else is refused.
//
//	request --> under way < limit ----------------------> in
//	            else: would its turn come within WaitMax,
//	            and its end before its own deadline? ---> waits, then in
//	            else -----------------------------------> Overloaded
//
// The limit moves. While requests are many the gate measures the lag: how long what is ready to
// run waits for a processor, as every request does several times. When it is more than LagMax
// the limit shrinks to what is under way and further, down to Least; when it is gone the limit
// grows again, up to Most. What waits for the store and not for a processor does not count as lag: a slow store
// alone makes nothing smaller.
//
// A Pot bounds memory, in bytes. Accounts share it: messages, bodies, answers, sorts. Each may
// have a part of it only, so that none can take everything from the others. An account is asked
// before the memory is taken. What can be smaller takes a share of what is left (Take), what
// cannot is refused (Reserve).
//
// # What who is refused learns
//
// Errors match Overloaded. Nothing was done, and trying again at once makes things worse: it is
// for the client to wait, not for a process in between.
//
// Both are memory only, and gone with the process. A nil Gate lets everybody in, and a nil
// Account gives everything.
package admission

import (
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
)

// Overloaded: it was refused for want of room, nothing was done, and it should be tried again
// after a pause, by the client. It matches errkind.Throttled too.
var Overloaded error = overloaded{}

type overloaded struct{}

func (overloaded) Error() string { return "overloaded" }
func (overloaded) Unwrap() error { return errkind.Throttled }

// Refuse makes an error that matches Overloaded, and says what is full and what to do.
func Refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format+"; try again after a pause", append([]any{Overloaded}, args...)...)
}

// Bound is one bound and how far it is used, for figures.
type Bound struct {
	Name    string // words with underscores
	Used    int64
	Limit   int64
	Waiting int64 // requests that wait for it
	Refused int64 // so far
}

// The labels of MongoDB for a request that was refused because of load. Drivers that know them
// wait before they send it again, whatever it is, and do so a few times only.
const (
	SystemOverloaded  = "SystemOverloadedError"
	Retryable         = "RetryableError"
	NoWritesPerformed = "NoWritesPerformed"
)

// MongoError is an error that matches Overloaded as a client sees it. The code is one that every
// driver retries a read for, also those that are older than the labels, without taking the
// server for gone: that would make it open all its connections again, just now.
func MongoError(err error) *mongoerr.Error {
	e := mongoerr.New(mongoerr.ExceededTimeLimit, "%v", err)
	e.Labels = []string{SystemOverloaded, Retryable, NoWritesPerformed}
	return e
}
