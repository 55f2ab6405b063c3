package document

import (
	"bytes"
	"math"
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sortStage is $sort. It is stable: documents of equal keys stay in their order.
type sortStage struct {
	sort *Sort
	most int64 // how many documents anybody will ask for; 0: all
}

func parseSortStage(v bson.RawValue) ([]stage, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, mongoerr.New(15973, "the $sort key specification must be an object")
	}
	s, err := ParseSort(v.Value)
	if err == nil && s == nil {
		return nil, mongoerr.New(15976, "$sort stage must have at least one sort key")
	}
	return []stage{&sortStage{sort: s}}, err
}

// mostAfter is how many documents the stages after a $sort ask for: the $limit that follows
// at once, or after a $skip, which counts too.
func mostAfter(stages []stage) int64 {
	skipped := int64(0)
	for _, s := range stages {
		switch s := s.(type) {
		case limitStage:
			if skipped > math.MaxInt64-int64(s) {
				return 0
			}
			return skipped + int64(s)
		case skipStage:
			if skipped > math.MaxInt64-int64(s) {
				return 0
			}
			skipped += int64(s)
		default:
			return 0
		}
	}
	return 0
}

func (s *sortStage) run(r *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		top := NewTop(s.sort, s.most)
		for doc, err := range in {
			if err == nil {
				err = r.hold(top.Add(doc), "$sort")
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		for _, doc := range top.Documents() {
			if !yield(doc, nil) {
				return
			}
		}
	}
}

// Top collects documents and gives them back sorted; with a limit it keeps only the first
// ones, so that its memory does not grow with the input.
type Top struct {
	sort *Sort
	most int64
	rows []sortedRow
	key  []byte
	held int
	full bool // rows[most-1] is the greatest that can still be among the first
}

type sortedRow struct{ key, doc []byte }

// NewTop is a Top for this order, of the first most documents, or of all when most is 0.
func NewTop(s *Sort, most int64) *Top {
	if most > 1<<40 { // as good as all, and most+most cannot overflow
		most = 0
	}
	return &Top{sort: s, most: most}
}

// rowOverhead is about what a row costs beside its bytes.
const rowOverhead = 64

// Add takes a copy of a document, and returns how many bytes more the Top holds than
// before, which may be negative.
func (t *Top) Add(doc bson.Raw) int {
	t.key = t.sort.AppendKey(t.key[:0], doc)
	if t.full && bytes.Compare(t.key, t.rows[t.most-1].key) >= 0 {
		return 0
	}
	before := t.held
	both := append(slices.Clone(t.key), doc...)
	n := len(t.key)
	t.rows = append(t.rows, sortedRow{both[:n:n], both[n:]})
	t.held += len(both) + rowOverhead
	if t.most > 0 && int64(len(t.rows)) >= 2*t.most+64 {
		t.cut()
	}
	return t.held - before
}

// cut sorts the rows and lets go of those that cannot be among the first.
func (t *Top) cut() {
	slices.SortStableFunc(t.rows, func(a, b sortedRow) int { return bytes.Compare(a.key, b.key) })
	if t.most == 0 || int64(len(t.rows)) < t.most {
		return
	}
	t.full = true
	for i := t.most; i < int64(len(t.rows)); i++ {
		t.held -= len(t.rows[i].key) + len(t.rows[i].doc) + rowOverhead
		t.rows[i] = sortedRow{}
	}
	t.rows = t.rows[:t.most]
}

// Documents are the documents that were added, sorted, equal ones in the order in which
// they came.
func (t *Top) Documents() []bson.Raw {
	t.cut()
	out := make([]bson.Raw, len(t.rows))
	for i, row := range t.rows {
		out[i] = row.doc
	}
	return out
}
