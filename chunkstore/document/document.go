// Package document is what the bytes of a document mean: which bytes are a document, how
// values order, which documents match a filter, what an update leaves, what a projection
// shows, and what a pipeline makes of a stream of documents. It follows MongoDB 8.0 in
// results, error codes and error texts; routers and writers, and whoever reads a chunk,
// share it, so that a command means the same wherever it is carried out.
//
// # Bytes, not objects
//
// A document stays the bytes it came in. Nothing is decoded into maps or structs: a walk
// over the bytes skips by type and length to the fields that are wanted, and a result is
// appended to a buffer of the caller.
//
//	document   int32 length | element ... | 00
//	element    type byte | name 00 | value; the type, and a length in it, tell its size
//	value      here bson.RawValue: type and bytes; type 0 is "no such field"
//
// # Who may call what
//
// Validate is the only function that takes any bytes. All others require what it accepted,
// and panic or mislead on anything else: whoever reads bytes from a socket validates them
// once, there. Nothing recurses deeper than the nesting of a document, which Validate
// bounds, and everything that makes documents (updates, projections, pipelines) validates
// or bounds what it made.
//
// # Parse, then run
//
// ParseFilter, ParseUpdate, ParseProjection, ParseSort and ParsePipeline each compile a
// specification once. The result is immutable: goroutines share it, and it keeps a reference to
// the bytes it was parsed from, so these must not change while it is in use. Running it
// on a document needs no lock, no clock and no randomness.
//
// Every failure is a *mongoerr.Error with the code and the words of MongoDB where MongoDB
// has them; drivers and people look them up. An operator that is not known is always an
// error, never ignored: a filter that silently loses a condition deletes too much.
//
// The package may change with any release.
package document
