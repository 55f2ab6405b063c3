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
//   - every pin can be read, with the segments that only it keeps, and so can the copies of the
//     root that a repair would begin with;
//   - objects that nobody refers to (orphans) are counted: they cost money, not data.
//
// It only reads. A problem names the rule, the object, and the documents that are at stake, as
// ranges of the shard key, so that a person knows what is gone and what is not. Nothing that is
// missing is taken for empty, the root least of all.
//
// Run is the whole check, as fast as it can. Scrub reads every byte too, in small steps: paced by
// its bucket, and resumed at a Mark by another process after the one before was killed.
//
// A running cluster may be checked. The root that a check begins with is old by its end: a
// takeover begins a new epoch, a flush moves a floor, and GC deletes what is below it. So
// nothing that looks wrong is reported before a fresh root has been read, and shows it
// wrong as well.
package fsck
