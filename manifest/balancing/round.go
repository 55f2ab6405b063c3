package balancing

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// RoundID is the id of the record of the active balancer.
const RoundID = "round"

// Round is what the active balancer says of itself: once when a round begins that moves
// something, and once when it ends. A balancer that finds nothing to do writes nothing.
type Round struct {
	// Holder is the balancer's random name, and Address where its process is ("" unknown).
	Holder  string `bson:"holder"`
	Address string `bson:"address,omitempty"`
	// Rounds counts the rounds that have begun, of all balancers. InRound: the last one has
	// not ended.
	Rounds  int64 `bson:"rounds"`
	InRound bool  `bson:"inRound"`
	// Started is the balancer's wall clock at the begin of the last round (ms).
	Started Millis `bson:"started"`
	// Failures are the chunks whose last move failed, and that wait.
	Failures []Failure `bson:"failures,omitempty"`
}

// Millis is a time in ms since 1970.
type Millis = bson.DateTime

// FailuresMax bounds Round.Failures: beyond it those that wait least are forgotten.
const FailuresMax = 100

// Failure is a chunk whose last move failed.
type Failure struct {
	Collection manifest.CollectionID `bson:"collection"`
	Chunk      manifest.ChunkID      `bson:"chunk"`
	// Tries failed one after another; the next is not made before Until (ms, wall clock).
	Tries int    `bson:"tries"`
	Until Millis `bson:"until"`
	Cause string `bson:"cause"`
}

// LastRound reads the record. body is nil when there is none, and is what a change of it
// names as seen (PutRecord.IfBody).
func LastRound(st *manifest.State) (r Round, body bson.Raw) {
	rec, ok := st.Record(manifest.RecordBalancer, RoundID)
	if !ok {
		return r, nil
	}
	_ = bson.Unmarshal(rec.Body, &r) // what cannot be read is begun anew
	return r, rec.Body
}

// Put is the change that records r over what was seen; seen nil: over nothing.
func (r Round) Put(seen bson.Raw) (manifest.PutRecord, error) {
	body, err := bson.Marshal(r)
	return manifest.PutRecord{
		Record:   manifest.Record{Kind: manifest.RecordBalancer, ID: RoundID, Body: body},
		IfAbsent: seen == nil, IfBody: seen,
	}, err
}

// Again is when the next try may be made, for people: "15:04:05 UTC".
func (f *Failure) Again() string { return time.UnixMilli(int64(f.Until)).UTC().Format("15:04:05 UTC") }

// WaitMax is the longest wait of a chunk after a failure.
const WaitMax = 10 * time.Minute

// Waits reports whether it is too early for the next try. A wait that is longer than any is of a
// balancer whose clock was ahead of this one's; nobody waits for that.
func (f *Failure) Waits(nowMillis int64) bool {
	return f.Counts(nowMillis) && nowMillis < int64(f.Until)
}

// Counts reports whether the tries are to be remembered: until the last of them is longer ago
// than any wait.
func (f *Failure) Counts(nowMillis int64) bool {
	left := int64(f.Until) - nowMillis
	return max(left, -left) <= WaitMax.Milliseconds()
}

// RoundNote is what the history keeps of a round.
type RoundNote struct {
	Millis int64 // that it took
	// Wanted are the chunks that should have moved, Moved those that did, by Reasons.
	Wanted, Moved int
	Reasons       map[string]int
	Error         string // the last of its moves; "": none failed
}

// Change is the entry, in the words of MongoDB's config.actionlog (their spelling, too).
func (n RoundNote) Change() manifest.Change {
	d := bson.D{
		{Key: "executionTimeMillis", Value: n.Millis}, {Key: "errorOccured", Value: n.Error != ""},
		{Key: "candidateChunks", Value: int32(n.Wanted)}, {Key: "chunksMoved", Value: int32(n.Moved)},
	}
	if n.Error != "" {
		d = append(d, bson.E{Key: "errmsg", Value: n.Error})
	}
	reasons := bson.D{}
	for _, k := range slices.Sorted(maps.Keys(n.Reasons)) {
		reasons = append(reasons, bson.E{Key: k, Value: int32(n.Reasons[k])})
	}
	doc, err := bson.Marshal(append(d, bson.E{Key: "reasons", Value: reasons}))
	if err != nil {
		panic(fmt.Sprintf("balancing: note %v: %v", d, err))
	}
	return manifest.Note{What: "balancer.round", Detail: doc}
}
