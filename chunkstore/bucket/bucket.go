// Package bucket is the port to object storage: the narrow set of verbs that every store
// must have, and the properties that the protocol rests on.
//
// # What a bucket must guarantee
//
//   - A Put with IfAbsent is atomic: of any number of racers exactly one wins.
//   - A Put with IfMatch is a compare-and-swap: of racers on one tag exactly one wins.
//   - A Get after a Put that succeeded sees that object or a later one (strong reads).
//   - A Get returns one whole object or range, never a mix of two versions of it.
//   - A List after a Put that succeeded contains the key.
//
// Package buckettest checks these, and Probe checks them on first use of a store that a
// user named: a store that lacks one is refused.
//
// # Outcomes
//
// A write that did not happen fails with Conflict (its condition did not hold) or with
// Throttled (refused, full). Everything that may have happened, or may still happen, is
// UnknownOutcome: timeouts, broken connections, 409 and 5xx answers that are not plainly a
// refusal of the store itself. A caller resolves it by reading. Drivers never retry a
// conditional write by themselves.
//
// Tags are opaque. A tag is no checksum, and a Get may return a tag older than its body
// while the key is overwritten: every object of ours carries its own checksum and nonce.
package bucket

import "context"

// Bucket is an S3-compatible bucket, or something that behaves like one. Safe for
// concurrent use. Keys are UTF-8, at most 1024 bytes, components at most 255 bytes, with
// '/' between components; no key is a prefix component of another ("a" and "a/b" never
// both exist). Implementations keep no reference to a body after they return, and callers
// own the slices they get.
type Bucket interface {
	// Get returns an object or a range of it. Errors: NotFound; NotModified when
	// o.IfNoneMatch is the present tag; Invalid when the range starts beyond the end.
	Get(ctx context.Context, key string, o GetOptions) (Object, error)
	// Head returns the size and tag. Errors: NotFound.
	Head(ctx context.Context, key string) (Attrs, error)
	// Put writes a whole object under a condition and returns its new tag.
	// Errors: Conflict, Throttled, UnknownOutcome.
	Put(ctx context.Context, key string, body []byte, c Condition) (Tag, error)
	// Delete removes an object; a missing one is no error.
	Delete(ctx context.Context, key string) error
	// List returns up to max keys (0: the store's page size) with the prefix, in byte
	// order, after the key `after`. more says that another page follows.
	List(ctx context.Context, prefix, after string, max int) (page []Attrs, more bool, err error)
	// String is the store's URL without secrets, for logs.
	String() string
	// Close releases what Open took. No verb is called after it.
	Close() error
}

// Tag identifies one version of one object (an ETag). Opaque; "" is no tag.
type Tag string

// GetOptions narrows a Get. The zero value asks for the whole object.
type GetOptions struct {
	// Offset and Length select a range in bytes; Length 0 means to the end. A range that
	// passes the end is cut there.
	Offset, Length int64
	// IfNoneMatch makes the Get answer NotModified when the object still has this tag.
	IfNoneMatch Tag
	// Fresh: the answer comes from the store, and whatever a cache has of the object goes. It
	// is for who found that an answer cannot be right, as only the reader of the bytes can.
	Fresh bool
}

// Object is what a Get returns: the bytes asked for, and the object's tag and whole size.
type Object struct {
	Body []byte
	Attrs
}

// Attrs describes an object. ModifiedMillis is the store's own time, for people only.
type Attrs struct {
	Key            string
	Size           int64
	Tag            Tag
	ModifiedMillis int64
}

// Condition guards a Put. The zero value is no condition.
type Condition struct {
	ifAbsent bool
	ifMatch  Tag
}

// IfAbsent lets the Put pass only when no object has the key.
var IfAbsent = Condition{ifAbsent: true}

// IfMatch lets the Put pass only when the object has exactly this tag.
func IfMatch(t Tag) Condition { return Condition{ifMatch: t} }

// Absent reports whether the condition is IfAbsent.
func (c Condition) Absent() bool { return c.ifAbsent }

// Match returns the tag of an IfMatch condition, or "".
func (c Condition) Match() Tag { return c.ifMatch }
