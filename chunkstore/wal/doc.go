// Package wal is the write-ahead log of a shard: numbered immutable objects, each a batch
// of records, created one after another and never changed.
//
//	wal/<shard>/<epoch>/<index>
//
//	epoch 3:  0 data | 1 data | 2 data | 3 SEAL
//	epoch 4:  0 data | 1 data | ...
//
// One process, the holder of the shard at an epoch, appends: batch n goes to index n, by a
// PUT that only succeeds if nothing is there, and n+1 is not sent before n is known to be
// there. So the objects of an epoch are contiguous, however it ends. A write is
// acknowledged when its object is stored, and not before.
//
// Whoever takes the shard over ends every older epoch with a seal: an object at the first
// free index, created in the same way. Either the old holder's late PUT gets the index or
// the seal does; in the second case the old holder meets the seal and is fenced for ever,
// in the first the batch is part of the log and the seal goes behind it. There is no third
// case, and no clock in it. Seals are never deleted, so this holds also for a PUT that was
// delayed for a year.
//
// What happens on a crash, or when an answer does not come:
//
//   - The appender does not know whether its PUT happened. It sends the same bytes again.
//     If it is told that an object is there, it reads it: its own nonce means that the batch
//     is stored, a seal that it is fenced.
//   - The appender dies, or gives up waiting. The object may still come, so nobody may
//     append after it; the next holder seals, and sees in doing so whether it came.
//   - The sealer dies. The next one seals again, and finds the first one's seal or makes its
//     own at the same index.
//   - An object is missing, damaged, or not the one that belongs there. Replay stops with
//     Corrupt: it never takes it for the end of the log.
//
// Objects below the shard's floor may be deleted: everything in them is in segments.
//
// The names here may change; only the formats (FORMAT.md) are kept.
package wal
