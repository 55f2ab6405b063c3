// Package gc deletes what no version of the root that anyone may still read refers to.
//
// Safety is reachability, never age. An object goes only when one root version, and every
// pin, shows it unreferenced, and nobody could refer to it again:
//
//   - a WAL data object that the shard's floor covers: its records are in segments. The seal of
//     an ended epoch is never deleted: a stalled writer that finds it gone would append behind
//     it. The last object of such an epoch is read, unless its size says enough, and goes only
//     when it is data. The logs of removed shards are swept like those of the others.
//   - the copy of a pin that the root names no longer. A pin whose time is over is given up.
//   - a dropped segment: it was referenced once and is not any more; only what is
//     referenced already, or what its creator uploaded and never committed, can be
//     referenced, so it never will be.
//   - an orphan: a segment that nothing refers to and nothing dropped, and whose creator is
//     not registered. What a killed flush, job or direct commit has left behind.
//   - what only a pin referred to that has gone, when it is not on the list of dropped segments:
//     a drop of more than the list holds makes a pin for a while, whose copy tells of the rest.
//
// Pages of chunk lists that no root refers to go as well: in other locations, where every commit
// writes one, by each sweep, and in the cluster's own bucket by the look for orphans.
//
// A job that gave a collection another key, and of which nothing is heard for ten minutes, is
// ended: it keeps dropped segments from being deleted, and it left some of its own.
//
// The newest copy of the root that a commit left (meta/history) is, with the logs above its floors,
// what a lost root is made again from (manifest/decisions/0006). So what it needs stays too: a
// log is collected up to the floor of the copy, and a segment that was dropped after it waits for
// the next. Of the copies the last 100 are kept.
//
// Deciding is pure (Make, and logPlan for the objects of one log); doing (Sweep) may be
// killed between any two deletions, and the next sweep goes on. Two sweeps at once delete
// the same things twice, which is harmless. Dropped segments wait a while as a courtesy to
// readers on an older root; one that comes too late anyway is told SnapshotUnavailable.
//
// A sweep costs what changed: one conditional read of the root, and a listing of the log of
// each shard whose floor moved since the last sweep, which holds one page in memory. Where
// nothing happens, nothing is listed. Only the look for orphans (Sweeper.Orphans) lists all
// segments; it is not needed often.
//
// Whoever wants to know is told of each object why it goes, or does not yet (Sweeper.Report).
//
// Only this package lists and deletes.
package gc
