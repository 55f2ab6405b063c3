// Package manifesttest holds what tests of the root, and of everything that stands on it,
// share: states and edits written as text, scenarios that are run against them, random
// edits, and a cell in memory that loses, delays and refuses requests.
//
// # Edits as text
//
// A line is a change: its name, then words, each a plain value or name=value. Chunks are
// named c<id>, as the state at hand has them (c7v2 says another version). What a change
// adds to a chunk stands in braces behind it:
//
//	claim a epoch=0 holder=p1
//	create db.users chunks=a,m,b
//	flush a epoch=1 snap=1,4 complete c1{seg=01 keys=d..k seq=1..3 rows=3 delta=3}
//	split c1 at=g
//	move c2 from=a@1 to=b@1 promise=1,0
//
// Keys are plain text, and the bound m is {k: "m"} to users. A segment is named by two hex
// digits; its creator is the shard that commits, or by=d.a.1, by=j.05.
//
// # Scenarios
//
// A file in testdata is a list of blocks: a command with its lines, "----", and what comes
// out: the lines of the state that went and came, or the error. Run compares, and rewrites
// the file with -update, so that a change of behaviour is a diff to review. After every
// edit that succeeds it checks Validate, ValidateStep and a round trip through the codec.
//
// This package is for tests only; it may change at any time.
package manifesttest
