// Package layer holds decorators of a bucket: each wraps one and is one, adds one property,
// and knows nothing of the others.
//
//	Retry    sends reads and unconditional writes again; never a conditional Put
//	Hedge    asks once more for a read that takes longer than most
//	Limit    bounds how many requests are under way at once
//	Pacer    keeps background work at a rate
//	Metrics  counts requests and bytes by verb and class of key
//	Deadline ends what a store does not answer
//	Cache    keeps bytes of immutable objects in memory, within a budget
//
// They stack in any order that makes sense to the caller. The usual one, outermost first:
//
//	Cache -> Retry -> Hedge -> Limit -> Metrics -> the store
//
// so that a cached read costs nothing, each attempt takes its own slot, and the counts are
// what the store saw (and bills). A crash loses nothing here: no layer holds a write back.
package layer

import "strings"

// Class groups keys by what they hold.
type Class uint8

// The classes, by the first components of the key.
const (
	Root    Class = iota // meta/root
	Page                 // meta/page/
	WAL                  // wal/
	Segment              // seg/
	Other                // everything else
	numClasses
)

// ClassOf tells the class of a key, or of the prefix of a List.
func ClassOf(key string) Class {
	switch {
	case key == "meta/root":
		return Root
	case strings.HasPrefix(key, "meta/page/"):
		return Page
	case strings.HasPrefix(key, "wal/"):
		return WAL
	case strings.HasPrefix(key, "seg/"):
		return Segment
	}
	return Other
}

// String is the word used in metrics: root, page, wal, seg, other.
func (c Class) String() string {
	if c >= numClasses {
		return "invalid"
	}
	return [numClasses]string{"root", "page", "wal", "seg", "other"}[c]
}
