// Package repair gets data back when objects of a cluster are lost: a root, a page of a chunk
// list, an object of a log, a segment.
//
// # What a root is rebuilt from
//
// The root is one object, and everything hangs on it. Once a minute, and whenever a collection
// is made or altered, a commit leaves a copy of it (meta/history), and GC keeps, besides what the root needs, what the newest copy needs:
//
//	copy, at most a minute old      segments that it refers to, also those dropped since
//	logs above the copy's floors    all that was acknowledged since, flushed or not
//
// So the copy and the logs together are what the lost root said of documents, whatever was
// split, merged or moved since: a record names its collection and key, and the copy says which
// chunk that is. Where the chunk went to another shard after the copy was made, its owner of
// then would not replay what the owner after it logged; such chunks are folded: the newest
// version of each row, from all logs, goes into a segment of theirs.
//
// What is not in a log is as it was when the copy was made: which collections there are and
// what their settings are, and documents whose shard key was changed to another shard's. Records
// of collections that the copy does not know are counted, and given up only by who says so.
// Shards with a bucket of their own are repaired in it: their pages and logs are read there, their
// epochs sealed there, and what is folded for a chunk goes to where its shard is.
// Without any copy, not even a snapshot's, nothing says what the segments are: a backup does.
//
// # In which order
//
//	survey    read what there is; a dry run ends here
//	fence     seal every epoch of every log, and some that nobody may ever have begun: no
//	          process that still believes to hold a shard can acknowledge anything from here on
//	fold      upload segments for the chunks that no takeover would bring back
//	publish   the new root, on condition that nothing has changed: far ahead of the lost one in
//	          version, epochs and ids, its shards held by the repair
//	takeover  by any writer, as after a crash: it replays the sealed logs, and waits until the
//	          leases of whoever served before have run out
//
// A repair that dies on the way has sealed logs and left segments that nothing refers to; the
// next one begins again and finds the seals. Two at a time both seal, and one publishes.
//
// # What is given up
//
// A hole in a log is acknowledged writes that are lost; a segment that is gone is rows that are
// lost. Nothing is served around either until somebody accepts it (Options.AcceptLoss), and the
// report names the documents. What was logged behind a hole is folded, not lost with it. A
// segment's reference is removed from its chunks, and older versions of its rows, where others
// have them, are seen again.
//
// The package may change with any release.
package repair
