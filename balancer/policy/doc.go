// Package policy decides which chunks should be on other shards: values in, values out.
//
// # The rules, the first that applies first
//
//	drain   chunks of a shard that is to be emptied go to the shards that have least
//	zone    chunks of a zone's range go to shards of the zone
//	size    no shard has three times the chunk size more of a collection than another
//	load    no shard is asked half as much again as the average
//	count   of chunks below 1 % of the chunk size no shard has two more than another
//
// The size of a chunk is what it has in segments and what its owner says it has in memory: what
// was inserted lately is no less there because it is not flushed.
//
// Only shards that somebody holds, and that are not to be emptied, take chunks. Size, load
// and count look at the chunks of a collection by zone, each among the shards of that zone;
// chunks outside of any may be anywhere. With the policy "chunks" the rule of old takes the
// place of the last three: no shard has more than 8 chunks above the average, and the chunk
// that changed last goes.
//
// Small chunks (count) are dealt out in key order, as one deals cards, so that neighbours are
// on different shards: what was cut ahead of a growing key is written by all. Once the
// numbers are right nothing is dealt again. Small neighbours on one shard that will be merged
// by themselves are left alone until they are one.
//
// # Why it ends
//
// Make plays its actions on a copy as it goes. drain and zone move a chunk at most once, to
// a shard that may keep it. size moves a chunk only when that makes the two shards more
// alike, and only chunks that count does not look at; so the sum of squares of the sizes
// falls with each. count acts only on numbers that differ by two or more, and no other rule
// changes them afterwards. load moves a chunk only where size and count stay content, and
// only when the busier shard stays no less busy than the other becomes. So whoever carries
// out what Make says, and asks again, comes to an end (TestPlansComeToAnEnd).
//
// # What is not done
//
// A reason to move and a permission to move are two things: first the actions are found,
// then those are dropped that settings forbid (stopped, window, a switch of the collection,
// a wait after a failure). What was dropped, and why, is the collection's sentence. Only a
// window does not hold a drain back: somebody asked for it by name, and it copies nothing.
//
// The package may change with any release.
package policy
