// Package errkind names the few kinds of error of the whole system, one reaction each.
//
// A kind says what the caller does next, not what went wrong: the text around it says
// that. Match with errors.Is; wrap once per layer with verb, subject and cause:
//
//	fmt.Errorf("append wal %s: %w", key, errkind.Fenced)
//
// The package imports nothing, so that every layer, and a foreign bucket driver, can use it.
package errkind

import "errors"

var (
	// NotFound: the object or name does not exist. Never means "empty".
	NotFound = errors.New("not found")
	// NotModified: a conditional read found the version that the caller already has.
	NotModified = errors.New("not modified")
	// Conflict: a precondition did not hold, and nothing was changed. Reload, plan again.
	Conflict = errors.New("conflict")
	// Throttled: refused before any effect, for now. Try again later, with jitter.
	Throttled = errors.New("throttled")
	// UnknownOutcome: the effect may or may not have happened, or may still happen.
	// Resolve it by reading; never report it as success or failure, never clean up.
	UnknownOutcome = errors.New("outcome unknown")
	// Fenced: another holder took over. Stop at once.
	Fenced = errors.New("fenced")
	// StaleVersion: the request was planned on an older chunk map. Refresh, retry.
	StaleVersion = errors.New("stale version")
	// SnapshotUnavailable: the version that was asked for is no longer readable.
	SnapshotUnavailable = errors.New("snapshot unavailable")
	// Corrupt: stored bytes are not what was written. Never retried; raises the alarm.
	Corrupt = errors.New("corrupt")
	// Invalid: the caller's fault. The text names rule, field, and what to type next.
	Invalid = errors.New("invalid")
)
