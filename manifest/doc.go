// Package manifest is the truth of a cluster: which shards, collections and chunks there
// are, who owns what, and which segments hold the rows. It all lives in one object of the
// bucket, the root, and plays the part of MongoDB's config servers.
//
// # Words
//
// The root is meta/root, the only object that is ever overwritten: each time as a whole, by
// compare-and-swap. A State is what it says at one Version, an immutable value in memory. An
// Edit is a small delta with preconditions on what its planner saw; Apply makes the next
// State from it, or refuses: Conflict when a precondition does not hold (look again, plan
// again), Invalid when the Edit could never be right. A Commit is an Edit that became part
// of the root. A Root is one process's view of it, with the loop that commits.
//
//	planner           Root.Commit                            bucket
//	  |  Edit  ------> |  state, tag: the newest seen          |
//	  |                |  next = Apply(state, edit)            |
//	  |                |  PUT meta/root, if its tag is <tag> ->|
//	  |                |     done? answered.                   |
//	  |                |     anything else is UNKNOWN: GET  -->|
//	  |                |       my Op is in it: it was done     |
//	  |                |       another tag: it never will be;  |
//	  |                |         Apply on the new state, again |
//	  |                |       the same tag: send the same     |
//	  |  State <------ |         bytes again                   |
//
// Nothing is locked, and nobody writes a state that it planned on an older one. Whoever
// holds a shard is in the root as well: an epoch that grows with each claim is the
// precondition of all that its holder commits.
//
// # What is where
//
// Small lists (shards, collections, records, jobs, tokens, pins, history) are in the root.
// The chunks of a collection, which may be a hundred thousand, are in pages of up to 128. A
// page that was touched lately rides in the root; the others are immutable objects of their
// own, meta/page/<base version>/<nonce>, that the root names by key range. A small cluster
// is one object. FORMAT.md has both byte by byte; decisions/ has the reasons.
//
// # Invariants
//
//   - Versions, epochs, floors, chunk versions and seqs never go back. Ids are never reused.
//   - The chunks of a collection cover the key space without gap or overlap.
//   - A reference to a segment comes in only while its creator is registered: the shard held
//     (or free) at that epoch, the job's entry there. So what GC finds unreferenced, of a
//     creator that is gone, can never be referenced again.
//   - A chunk's floor is lowered by nothing but a change of owner, which sets it to a position
//     that the new owner promised for this very version of the chunk.
//
// Validate and ValidateStep check them; Apply checks what it touched, before anything is
// written; a decoder checks what it read.
//
// # When something dies
//
// A process that dies before its PUT leaves at most pages that nothing refers to; GC sweeps
// them. One that dies after it leaves a PUT that may still land: it lands on the very tag
// that it was made for, or never. The next process reads the root and goes on from there;
// there is nothing to recover. A root or page that is damaged or missing is Corrupt, by
// name, and never an empty list.
package manifest
