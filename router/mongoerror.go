package router

import (
	"context"
	"errors"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
)

// MongoError is any error of this package as a client sees it.
func MongoError(err error) *mongoerr.Error {
	var m *mongoerr.Error
	code := mongoerr.InternalError
	switch {
	case errors.As(err, &m):
		return m
	case errors.Is(err, admission.Overloaded):
		return admission.MongoError(err)
	case errors.Is(err, errkind.Corrupt):
		code = mongoerr.DataCorruptionDetected
	case errors.Is(err, errkind.Invalid):
		code = mongoerr.BadValue
	case errors.Is(err, errkind.SnapshotUnavailable):
		code = mongoerr.SnapshotUnavailable
	case errors.Is(err, errkind.UnknownOutcome):
		code = mongoerr.MaxTimeMSExpired
	case errors.Is(err, errkind.Throttled), errors.Is(err, errkind.StaleVersion), errors.Is(err, errkind.Fenced):
		code = mongoerr.ExceededTimeLimit
	case errors.Is(err, context.DeadlineExceeded):
		code = mongoerr.MaxTimeMSExpired
	case errors.Is(err, context.Canceled):
		code = mongoerr.Interrupted
	}
	return mongoerr.New(code, "%v", err)
}

// RetryableWrite labels an error whose write a driver may send again.
const RetryableWrite = "RetryableWriteError"

// unknown is the error of a write that may or may not have been applied, which could not be
// found out in time: a client that can send it again is told to; it then gets the outcome.
func unknown(retry *Retry, cause error) *mongoerr.Error {
	code := mongoerr.MaxTimeMSExpired
	var labels []string
	if retry != nil {
		code, labels = mongoerr.RetryableInternal, []string{RetryableWrite}
	}
	e := mongoerr.New(code, "the outcome of the write is unknown, it may have been applied or may still be: %v", cause)
	e.Labels = labels
	return e
}
