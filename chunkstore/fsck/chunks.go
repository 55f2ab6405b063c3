package fsck

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// cacheBytes is memory for decoded blocks: a shared segment is read chunk by chunk.
const cacheBytes = 16 << 20

// rowProblemsMax bounds the problems that the rows of one chunk make: a chunk with a wrong
// key is wrong in every row.
const rowProblemsMax = 10

// chunkCheck is the state of one walk over all chunks.
type chunkCheck struct {
	*Checker
	state  *manifest.State
	report *Report
	cache  *segment.Cache
	store  *reader.Store
	// views are all references to a segment, ordered by collection and clip; a deep check
	// reads each segment once, and holds its rows against all of them.
	views map[manifest.SegmentID][]*view
	// read is what came of that.
	read map[manifest.SegmentID]error
}

// view is one reference of one chunk.
type view struct {
	chunk *manifest.Chunk
	ref   manifest.SegmentRef
	wrong string // a row that the reference does not bound
}

// newChunkCheck gathers the references of all chunks.
func newChunkCheck(c *Checker, state *manifest.State, r *Report) (w *chunkCheck, chunks int) {
	w = &chunkCheck{
		Checker: c, state: state, report: r, cache: segment.NewCache(cacheBytes),
		views: map[manifest.SegmentID][]*view{}, read: map[manifest.SegmentID]error{},
	}
	w.store = reader.NewStore(c.Open, w.cache)
	for chunk := range state.AllChunks() {
		chunks++
		for _, ref := range chunk.Refs {
			w.views[ref.Segment] = append(w.views[ref.Segment], &view{chunk: chunk, ref: ref})
		}
	}
	for _, views := range w.views {
		slices.SortFunc(views, (*view).compare)
	}
	return w, chunks
}

// checkChunks opens or reads every reference of every chunk.
func (c *Checker) checkChunks(ctx context.Context, state *manifest.State, r *Report) error {
	w, total := newChunkCheck(c, state, r)
	r.Collections = len(state.Collections())
	for chunk := range state.AllChunks() {
		if err := w.chunk(ctx, chunk); err != nil {
			return err
		}
		r.Chunks++
		if c.Progress != nil {
			c.Progress(r.Chunks, total)
		}
	}
	return nil
}

func (v *view) compare(o *view) int {
	return cmp.Or(cmp.Compare(v.chunk.Collection, o.chunk.Collection), bytes.Compare(v.ref.Clip.Min, o.ref.Clip.Min))
}

// Segments opens, or in a deep check reads, the segments that a state refers to, whether it is
// the root or a copy of one, and says which are lost or damaged: a problem for each chunk and
// segment. Errors: those that say nothing about a segment.
func (c *Checker) Segments(ctx context.Context, state *manifest.State) ([]Problem, error) {
	w, _ := newChunkCheck(c, state, &Report{})
	for chunk := range state.AllChunks() {
		for _, ref := range chunk.Refs {
			err := w.segment(ctx, ref)
			switch {
			case err == nil:
			case !about(err):
				return nil, fmt.Errorf("fsck: %s: %w", ref.Segment, err)
			default:
				w.lost(chunk, ref, err)
			}
		}
	}
	return w.report.Problems, nil
}

// chunk checks the references of a chunk, and its rows when all of them can be read.
func (w *chunkCheck) chunk(ctx context.Context, chunk *manifest.Chunk) error {
	whole := true
	for _, ref := range chunk.Refs {
		err := w.segment(ctx, ref)
		if err == nil {
			continue
		}
		whole = false
		if err := w.blame(ctx, chunk, ref, err); err != nil {
			return err
		}
	}
	if !w.Deep {
		return nil
	}
	for _, ref := range chunk.Refs {
		for _, v := range w.views[ref.Segment] {
			if v.chunk == chunk {
				w.unbounded(v)
			}
		}
	}
	if !whole {
		return nil
	}
	return w.rows(ctx, chunk)
}

// unbounded reports, once, what a view was found not to bound.
func (w *chunkCheck) unbounded(v *view) {
	if v.wrong != "" {
		w.report.add(Problem{Rule: RuleBounds, Object: v.ref.Segment.Key(), Chunk: Name(w.state, v.chunk), AtStake: w.stake(v.chunk), Detail: v.wrong})
		v.wrong = ""
	}
}

// segment opens a segment by a reference, and in a deep check reads all of it, once.
func (w *chunkCheck) segment(ctx context.Context, ref manifest.SegmentRef) error {
	fetch := w.fetch(ref)
	if _, err := segment.Open(ctx, fetch, ref, w.cache); err != nil {
		return err
	}
	err, seen := w.read[ref.Segment]
	if seen {
		return err
	}
	w.report.Segments++
	w.report.Bytes += int64(ref.Size)
	if w.Deep {
		views := w.views[ref.Segment]
		err = segment.Verify(ctx, fetch, ref, func(row segment.Row) error {
			viewOf(views, &row).bound(&row)
			return nil
		})
	}
	w.read[ref.Segment] = err
	return err
}

// viewOf is the reference whose clip a row is in; nil when no chunk has it any more.
func viewOf(views []*view, row *segment.Row) *view {
	i := sort.Search(len(views), func(i int) bool {
		v := views[i]
		return v.chunk.Collection > row.Collection ||
			v.chunk.Collection == row.Collection && bytes.Compare(v.ref.Clip.Min, row.Key) > 0
	})
	if i == 0 || views[i-1].chunk.Collection != row.Collection || !views[i-1].ref.Clip.Contains(row.Key) {
		return nil
	}
	return views[i-1]
}

// bound notes a row that the reference does not bound: readers would pass it over.
func (v *view) bound(row *segment.Row) {
	if v == nil || v.wrong != "" {
		return
	}
	r := &v.ref
	bounded := len(r.MinKey) > 0 || len(r.MaxKey) > 0
	switch {
	case bounded && (bytes.Compare(row.Key, r.MinKey) < 0 || bytes.Compare(row.Key, r.MaxKey) > 0):
		v.wrong = fmt.Sprintf("row %x is outside of keys %x to %x", row.Key, r.MinKey, r.MaxKey)
	case r.FixedSeq == 0 && (row.Seq < r.MinSeq || row.Seq > r.MaxSeq):
		v.wrong = fmt.Sprintf("row %x has seq %d, outside of %d to %d", row.Key, row.Seq, r.MinSeq, r.MaxSeq)
	}
}

func (c *Checker) fetch(ref manifest.SegmentRef) segment.Fetch {
	return func(ctx context.Context, off, length int64) ([]byte, error) {
		b, err := c.Open(ref.Location)
		if err != nil {
			return nil, err
		}
		o, err := b.Get(ctx, ref.Segment.Key(), bucket.GetOptions{Offset: off, Length: length, Fresh: segment.Fresh(ctx)})
		return o.Body, err
	}
}

// blame turns what went wrong with a segment into a problem, unless the chunk has left it
// meanwhile. Errors that say nothing about the object end the check.
func (w *chunkCheck) blame(ctx context.Context, chunk *manifest.Chunk, ref manifest.SegmentRef, err error) error {
	if !about(err) {
		return fmt.Errorf("fsck: %s: %w", ref.Segment, err)
	}
	now, loadErr := w.load(ctx)
	if loadErr != nil {
		return loadErr
	}
	still := now.ChunkAt(chunk.At())
	if still == nil || !slices.ContainsFunc(still.Refs, func(r manifest.SegmentRef) bool { return r.Segment == ref.Segment }) {
		return nil
	}
	w.lost(chunk, ref, err)
	return nil
}

// lost reports a segment that is missing or damaged.
func (w *chunkCheck) lost(chunk *manifest.Chunk, ref manifest.SegmentRef, err error) {
	rule := RuleSegment
	if errors.Is(err, errkind.NotFound) {
		rule = RuleExists
	}
	w.report.add(Problem{Rule: rule, Object: ref.Segment.Key(), Chunk: Name(w.state, chunk), AtStake: w.stake(chunk), Detail: err.Error()})
}

// stake is one chunk as what a problem concerns.
func (w *chunkCheck) stake(chunk *manifest.Chunk) []KeyRange {
	return []KeyRange{RangeOf(w.state, chunk)}
}

// about reports whether an error speaks of the object, not of the way to it.
func about(err error) bool {
	return errors.Is(err, errkind.NotFound) || errors.Is(err, errkind.Corrupt)
}

// rows reads a chunk as a reader would and checks every live row.
func (w *chunkCheck) rows(ctx context.Context, chunk *manifest.Chunk) error {
	coll := w.state.Collection(chunk.Collection)
	it := w.store.Scan(ctx, reader.View{Chunk: chunk}, shardkey.Range{}, false)
	var rows, wrong int64
	for it.Next(ctx) {
		rows++
		row := it.Row()
		problem := wrongRow(coll, chunk, &row)
		if problem == "" {
			continue
		}
		if wrong++; wrong <= rowProblemsMax {
			w.report.add(Problem{Rule: RuleRow, Chunk: Name(w.state, chunk), AtStake: w.stake(chunk), Detail: fmt.Sprintf("row %x: %s", row.Key, problem)})
		}
	}
	if wrong > rowProblemsMax {
		w.report.add(Problem{Rule: RuleRow, Chunk: Name(w.state, chunk), AtStake: w.stake(chunk), Detail: fmt.Sprintf("%d more rows", wrong-rowProblemsMax)})
	}
	w.report.Rows += rows
	if err := it.Err(); err != nil {
		if about(err) {
			return w.gone(ctx, chunk, err)
		}
		return fmt.Errorf("fsck: scan %s: %w", Name(w.state, chunk), err)
	}
	if !chunk.RowsEstimated && rows != chunk.Rows {
		w.report.add(Problem{Rule: RuleCount, Chunk: Name(w.state, chunk), AtStake: w.stake(chunk), Detail: fmt.Sprintf("the root says %d live rows, the segments hold %d", chunk.Rows, rows)})
	}
	return nil
}

// gone judges a scan that failed although all segments could be read before: a compaction
// may have replaced them, or a reference is at odds with its segment.
func (w *chunkCheck) gone(ctx context.Context, chunk *manifest.Chunk, err error) error {
	now, loadErr := w.load(ctx)
	if loadErr != nil {
		return loadErr
	}
	same := func(a, b manifest.SegmentRef) bool { return a.Segment == b.Segment }
	if still := now.ChunkAt(chunk.At()); still != nil && slices.EqualFunc(still.Refs, chunk.Refs, same) {
		w.report.add(Problem{Rule: RuleSegment, Chunk: Name(w.state, chunk), AtStake: w.stake(chunk), Detail: err.Error()})
	}
	return nil
}

// wrongRow is what is wrong with a live row of a chunk; "" when nothing is.
func wrongRow(coll *manifest.Collection, chunk *manifest.Chunk, row *segment.Row) string {
	if err := document.Validate(row.Doc, document.Limits{}); err != nil {
		return err.Error()
	}
	key, err := coll.Key.AppendKey(nil, row.Doc)
	switch {
	case err != nil:
		return err.Error()
	case !bytes.Equal(key, row.Key):
		return fmt.Sprintf("the document's key is %x", key)
	case !chunk.Range.Contains(key):
		return "outside its chunk"
	}
	return ""
}
