// Package faults holds two tests that leave no gap by construction, beside the simulation,
// which tries everything by chance:
//
//	TestMatrix         every kind of fault x every kind of request x every kind of object, on
//	                   a third of those requests all through the life of a cluster
//	TestFailAtTheNth   a scenario again and again: at the n-th time its n-th request fails,
//	                   until it makes fewer requests than n
//
// Both run a whole stack in virtual time. A client keeps account of what each document may
// be: an answered write leaves one possibility, an error leaves two, since it may have
// happened all the same. What is read must be possible at any moment; every operation must
// end, with success or an error that has a name, one second after its time limit at the
// latest; at the end, with no more faults, a new process must find a possible state, and the
// checker nothing to complain about.
//
// The package has tests only.
package faults
