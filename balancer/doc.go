// Package balancer moves chunks to where they should be. What should be where, and why, is
// decided in package policy; here it is done.
//
// # A round
//
//	root, loads --policy.Make--> actions        none: nothing is written, nobody is asked
//	begin   commit: record "round" {holder: me, rounds+1, inRound}
//	move    the owner of each batch is asked to hand it over: its commit, not ours
//	end     commit: record "round" {inRound: false, failures}, and a note in the history
//
// Chunks of one owner for one destination go in one request, small ones by thousands. Before
// each request the root is looked at again: a balancer that was stopped stops here, and
// balancerStop can answer once the record says that the round is over. A chunk whose move
// failed waits, twice as long after each failure; the wait is in the record, so that the next
// balancer keeps it.
//
// # Which one of several
//
// Any process may run a balancer, and each makes the plan. Only the one that the record names
// carries it out. It need not say that it lives: whoever finds work to do, and sees the record
// unchanged for Patience on its own clock, takes the record over by compare-and-swap. While
// there is nothing to do there is nothing to take over, and an idle cluster pays nothing.
//
// Two active balancers at a time do no harm. A move is a commit of the owner of the chunk that
// names the chunk's version and both epochs: of two that were asked for, the second finds
// another version, and nothing happens. The record is for order, not for safety.
//
// # When it dies
//
// Moves under way are the owners'; each happens or does not. The record says inRound until the
// next balancer finds it unchanged, takes over, and ends the round. Nothing else is kept.
//
// # What it costs
//
// A round that moves something is two commits and one for each request, at most two a second.
// An idle balancer reads the root when nobody else in its process did, once a minute in the
// end, and asks owners of its own accord for their loads, which costs no request to the bucket.
//
// The package may change with any release.
package balancer
