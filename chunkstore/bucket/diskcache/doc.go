// Package diskcache keeps what was read of immutable objects in files on this machine: a
// bucket before a bucket, behind the cache in memory and before the store that costs money
// and milliseconds.
//
// It keeps ranges of objects under seg/ and meta/page/, whose names are never used for other
// bytes. Everything else passes through, and nothing is ever only here: the directory can be
// deleted at any time.
//
//	DIR/cache-00/lock                      held by the process that uses the slot
//	DIR/cache-00/3f/3f..e1-0-1f00.w1       a whole object: address, offset and length in hex
//	DIR/cache-00/3f/3f..e1-8000-20000.r1   a range of one
//	DIR/cache-00/3f/tmp-..                 being written
//
// The address is a hash of the store's URL and the object's key; the file repeats both, its
// range, and a checksum of each 32 KiB (see file.go). A file is believed only as far as it
// was verified for this read, so that bits that flipped, files that were cut, swapped,
// copied from the cache of another cluster or left half written by a power cut are misses:
// the file is removed and counted, and the bytes come from the store. What was wrong already
// when it came from there cannot be found here: who finds it asks again with Fresh, and all
// that is kept of the object goes.
//
// # Reads
//
// A Get is answered from the files that cover its range. Where these cover its beginning or
// its end only, one GET asks the store for what is between. What came from the store is
// written to a file in the background, by one goroutine with a queue that is bounded in
// bytes; what does not fit into the queue is not kept.
//
// # Budget
//
// The files of a slot take at most a budget of bytes, and are at most entriesMax. The one
// that was written first goes first, unless it was read since: then it goes round once more.
// After a restart, the names alone rebuild the index; the order is then that of the files'
// times.
//
// # Several processes
//
// A process takes the first slot of the directory that nobody holds, by a lock on a file in
// it, and has it alone: processes side by side do not share files, and each has the budget
// for itself. The slot that a process left is taken, with what is in it, by the next one that
// starts. Right answers do not depend on the lock: files appear under their names complete,
// by rename, equal names hold equal bytes, and every read verifies, so that two processes in
// one slot (someone deleted the lock file) only miss more often.
//
// # What goes wrong
//
// No error of the disk reaches a caller. A write that fails (disk full, read-only, directory
// deleted) is given up and none is tried for a while; a read that fails is a miss. Files that
// this package did not make are neither read nor deleted. On a crash, files that are being
// written stay under their temporary names, until the slot is opened again.
//
// The package may change with any release.
package diskcache
