// Package fsck holds the root against the objects it speaks of.
//
// The invariants of one root are checked by manifest.Validate; this package checks what
// only the bucket can tell:
//
//   - every referenced segment exists, is whole, and is what its reference says (a deep
//     check reads every row: valid BSON, its own key, inside its chunk and its reference's
//     bounds, counted right);
//   - the log of every shard is, above the shard's floor, a contiguous prefix per epoch
//     that ends in at most one seal and reaches as far as chunks say that it did; epochs
//     that nobody would replay hold no records;
//   - every pin can be read;
//   - objects that nobody refers to (orphans) are counted: they cost money, not data.
//
// It only reads. A problem names the rule, the object, and the key range that is at stake,
// so that a person knows what is gone and what is not.
//
// A running cluster may be checked. The root that a check begins with is old by its end: a
// takeover begins a new epoch, a flush moves a floor, and GC deletes what is below it. So
// nothing that looks wrong is reported before a fresh root has been read, and shows it
// wrong as well.
package fsck
