package balancing

// Verdict tells of one collection whether its chunks are where they should be.
type Verdict struct {
	Namespace string
	// Violation is "" when they are, else MongoDB's word for the first reason why not:
	// draining, zoneViolation, chunksImbalance.
	Violation string
	// Sentence says why, what happens next, or what keeps it from happening.
	Sentence string
}

// Balanced: the chunks are where they should be.
func (v Verdict) Balanced() bool { return v.Violation == "" }
