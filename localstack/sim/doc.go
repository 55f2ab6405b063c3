// Package sim runs whole clusters of the real code on simulated time, stores and networks,
// one step at a time, from a seed.
//
//	clients --> routers --> writers --> store        chaos: crashes, pauses, moves,
//	   |           |           |          |          takeovers, collections
//	   |           |           |          |     collectors, compactors, sweepers, pins
//	   +-----------+-----------+----------+---> bus: one step at a time
//
// Every contact of a process with its world is a step (Bus): a request applied by the
// store, an answer seen, a call taken, a timer that fired. The scheduler waits until every
// goroutine of the bubble is blocked, draws one waiting step from the seed, runs it, and
// begins again, so a seed shows the same run every time. Requests are lost before their
// effect and after it, applied late and applied twice; clocks are wrong by hours and run
// fast or slow; processes are killed between any two steps, or stopped for a while and
// woken as the zombies that leases and seals are for.
//
// Three things judge a run. Every new root is held against all invariants and against the
// root before it, before anyone sees it, and every deletion against the root, its pins and newest
// copy, and the floors, before it happens. In the end fsck reads every row. And what clients
// were told must be linearizable per document; operations without an answer count when
// their id is found in any log object that was ever written, and did not happen otherwise.
// After the last fault everything must come back, and where balancers run every chunk must come
// to where zones, drains and the policy want it.
//
// Two collections have judges of their own. The documents of one (moving) change their shard
// key all the time, and whoever reads or counts all of them finds each once. Those of another
// (dated) are inserted once, expire, and go by dropRange: each must be seen as long as nothing
// can have taken it, and must not be seen once something has, by every clock that there is; and
// nobody sees half of a range that is dropped.
//
// In some seeds one or two shards have buckets of their own, and chunks that move to and fro are
// copied. A part of each collection belongs to a zone that may be in those buckets alone: every
// object that is written anywhere else is read at once, and must have no key and no document of it.
//
// A simulation is worth what it finds. With the build tag mutants, one rule of the protocol
// at a time is switched off, and some seed must notice.
//
// The package is for tests; nothing in it is an interface.
package sim
