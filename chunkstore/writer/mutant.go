package writer

// Mutant names a rule of the protocol that a build with the tag mutants can switch off.
type Mutant uint32

// The rules, by what happens without them.
const (
	none                 Mutant = iota
	noSeal                      // a takeover reads the WAL of older epochs without ending it
	flushAnyEpoch               // a claim that was superseded goes on, and flushes and moves under the new epoch
	floorIgnored                // a replay takes records below the floors
	zeroPromise                 // a move sets no floor at the destination
	readsInHandoff              // reads go on while the chunk, or the shard, is given away
	conflictIsFenced            // a batch whose first PUT had an unclear answer, and whose second found it there, counts as refused
	appendedAgain               // a batch whose PUT had an unclear answer is appended again at the next index
	leaseFromReply              // the lease is counted from the answer of an append
	readWithoutLease            // reads are answered from memory whenever
	walDeletedEarly             // the WAL is deleted before the flush is committed
	retriesNotFlushed           // flushes leave retry ids to the WAL
	sealsCollected              // the collector deletes seals too: the simulation, which runs it, asks for this one
	promiseReused               // a promise is used again for a later version of the chunk
	noLeaseWait                 // a takeover serves without the wait
	splitUnclipped              // the unflushed rows of a chunk that is cut all go to its first part
	moveUnflushed               // a move leaves what is not in segments behind
	dataVersionKept             // replies tell of no commit that changed several chunks, and of no chunk that came
	manyRestarted               // a write of many that is sent again begins anew
	keyChangeInTwo              // a document that goes to another shard is removed by one commit, and put there by the next
	staleAccepted               // a request is for whatever chunk has the place now, of whatever version
	dropUnflushed               // an owner that is to flush a range before it is dropped does not
	expiredSeen                 // documents are seen after their time
	gcByAge                     // the collector deletes what is old and not referenced, whoever made it: the simulation's part
	pinIgnored                  // the collector goes on without a pin that it cannot read: the simulation's part
	compactedAgainstHead        // a compaction takes the place of what the chunk has at its commit: the compactor asks for this one
	tombstoneDropped            // a compaction leaves deletions out while there are older segments: the compactor asks
	clipLostByMerge             // the references of merged chunks show all of their segments: the manifest asks
	tieIgnored                  // the two halves of a key change within a shard are flushed each for itself
	partElsewhere               // what stays behind when a chunk goes to another location is stored there too
	copiedFirst                 // whether a zone lets a chunk go to another location is seen when its copy is committed
	retriesTell                 // retry entries go to another location with all that they tell
	pageSwept                   // the collector deletes pages elsewhere that the newest copy of the root refers to: the collector asks
	mutants
)

var mutantNames = [mutants]string{
	none: "none", noSeal: "no-seal", flushAnyEpoch: "flush-any-epoch", floorIgnored: "floor-ignored",
	zeroPromise: "zero-promise", readsInHandoff: "reads-in-handoff", conflictIsFenced: "conflict-is-fenced",
	appendedAgain: "appended-again", leaseFromReply: "lease-from-reply", readWithoutLease: "read-without-lease",
	walDeletedEarly: "wal-deleted-early", retriesNotFlushed: "retries-not-flushed", sealsCollected: "seals-collected",
	promiseReused: "promise-reused", noLeaseWait: "no-lease-wait", splitUnclipped: "split-unclipped",
	moveUnflushed: "move-unflushed", dataVersionKept: "data-version-kept", manyRestarted: "many-restarted",
	keyChangeInTwo: "key-change-in-two-commits", staleAccepted: "stale-map-accepted",
	dropUnflushed: "drop-unflushed", expiredSeen: "expired-seen",
	gcByAge: "gc-by-age", pinIgnored: "unreadable-pin-ignored", compactedAgainstHead: "compacted-against-head",
	tombstoneDropped: "tombstone-dropped-early", clipLostByMerge: "clip-lost-by-merge", tieIgnored: "tie-ignored",
	partElsewhere: "located-part-elsewhere", copiedFirst: "located-copied-first", retriesTell: "located-retries-tell", pageSwept: "located-page-swept",
}

// String is the name by which ParseMutant knows it.
func (m Mutant) String() string {
	if m < mutants {
		return mutantNames[m]
	}
	return "unknown"
}

// Mutants are all rules that can be switched off.
func Mutants() []Mutant {
	list := make([]Mutant, 0, mutants-1)
	for m := none + 1; m < mutants; m++ {
		list = append(list, m)
	}
	return list
}
