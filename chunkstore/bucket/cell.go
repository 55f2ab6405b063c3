package bucket

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
)

// Cell is a bucket seen as registers: each key holds one value that is loaded and swapped
// as a whole. It is all that the manifest's commit loop knows of a store.
//
// Swap is a linearizable compare-and-swap as far as it answers: nil and Conflict are
// certain, Throttled means nothing was done, and whatever else a store says is
// UnknownOutcome, also when the driver had no kind for it.
type Cell struct{ b Bucket }

// NewCell looks at b as registers. The bucket must be one that Probe accepts.
func NewCell(b Bucket) *Cell { return &Cell{b: b} }

// Load returns the value of key and its tag. With known not "", a value that still has this
// tag is not sent again: the error is NotModified. Errors: NotFound, NotModified, others of
// the store as they are.
func (c *Cell) Load(ctx context.Context, key, known string) (body []byte, tag string, err error) {
	o, err := c.b.Get(ctx, key, GetOptions{IfNoneMatch: Tag(known)})
	if err != nil {
		return nil, "", err
	}
	return o.Body, string(o.Tag), nil
}

// Swap stores body when key still has the tag `from`, or does not exist and from is "". It
// returns the new tag. Errors: Conflict, Throttled, UnknownOutcome; a context that ended
// before the call is Throttled together with the context's error.
func (c *Cell) Swap(ctx context.Context, key string, body []byte, from string) (tag string, err error) {
	if ctx.Err() != nil {
		return "", fmt.Errorf("swap %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	cond := IfAbsent
	if from != "" {
		cond = IfMatch(Tag(from))
	}
	t, err := c.b.Put(ctx, key, body, cond)
	switch {
	case err == nil:
		return string(t), nil
	case errors.Is(err, errkind.UnknownOutcome), errors.Is(err, errkind.Throttled),
		errors.Is(err, errkind.Conflict), errors.Is(err, errkind.Invalid):
		return "", err
	case errors.Is(err, errkind.NotFound):
		// Some stores answer 404, others 412 to an If-Match on a missing key.
		return "", fmt.Errorf("swap %s: %w: %w", key, errkind.Conflict, err)
	}
	return "", fmt.Errorf("swap %s: %w: %w", key, errkind.UnknownOutcome, err)
}
