// Package segment is the file codec: immutable, compressed, checksummed files of sorted
// rows, built in memory and read through ranged GETs.
//
// A chunk's data is a list of references to segments, in the root. A segment holds the rows
// of one or of many chunks, of one or of many collections; a reference says which part of it
// is the chunk's (the clip) and where its tail is.
//
//	header   magic, version, the segment's random name
//	blocks   rows sorted by (collection, key ascending, seq descending), 64 KiB before compression
//	retries  what was answered to retryable writes; when there are few, they are in the tail
//	tail     index of retries | filter | index of blocks | meta | footer
//
// What reading costs, in requests, when nothing is cached:
//
//	Open    one GET: exactly the tail, whose place is in the reference
//	Get     none for most keys that are not there (the filter), else one block
//	Batch   as Get, each block once for all keys, adjacent ones together up to 1 MiB
//	Scan    one block, then reads that double up to 1 MiB; with a Prefetch up to 4 MiB, of
//	        which the next are under way while the present one is decoded
//
// A row is a put or a tombstone with its seq. Several versions of a key may be there, the
// newest first. What a document means is not this package's business: it is bytes that say
// their own length. Rows of a scan alias the decoded block, which is never changed, so they
// stay valid for as long as somebody holds them.
//
// # When something is wrong
//
// Every byte of a file is under a checksum that also covers the segment's name and the
// place in the file, and is verified before anything is decompressed. So a flipped bit, a
// missing end, a block of another file or of another place in the same file is an error of
// kind Corrupt when it is read: never a wrong row, never an empty answer. The checksum
// proves that the bytes are those that were written, not that they make sense, so lengths
// and offsets are checked all the same, sizes are bounded before memory is allocated, and a
// panic of a decompressor is an error. A file of a newer format is Invalid, with the version
// named. Verify does all of this for a whole file.
//
// # On a crash
//
// Nothing is half written: a file is uploaded in one PUT, under a name that was never used
// before, and is no part of the database until a commit references it. A file whose writer
// died before the commit is an orphan that GC deletes.
//
// The names here may change; only the format (FORMAT.md) is kept.
package segment
