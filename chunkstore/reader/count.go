package reader

import "context"

// Counting unflushed rows one by one against the segments pays while there are few of them:
// at most countFewMin, or one in countFewPart of the chunk's rows.
const (
	countFewMin  = 64
	countFewPart = 16
)

// Count is the exact number of live rows of the view. Where the chunk's own count is exact,
// and nothing in it can be expired, it is taken, and only the unflushed rows are compared with the segments, which for new
// keys are their filters; otherwise all rows are counted. Errors: those of Iter.
func (s *Store) Count(ctx context.Context, v View) (int64, error) {
	if v.CountsRight() {
		if n, ok, err := s.adjust(ctx, v); ok || err != nil {
			return n, err
		}
	}
	var n int64
	it := s.Scan(ctx, v, v.Chunk.Range, false)
	for it.Next(ctx) {
		n++
	}
	return n, it.Err()
}

// adjust is the chunk's own count, corrected by the unflushed rows; not ok when these are
// too many.
func (s *Store) adjust(ctx context.Context, v View) (n int64, ok bool, err error) {
	n = v.Chunk.Rows
	left := countFewMin + n/countFewPart
	it := s.scanMems(ctx, v, v.Chunk.Range, false)
	for ; it.step(ctx); left-- {
		if left == 0 {
			return 0, false, nil
		}
		flushed, found, err := s.find(ctx, v.Chunk, it.row.Key)
		if err != nil {
			return 0, false, err
		}
		if found && !flushed.Delete {
			n--
		}
		if v.live(&it.row) {
			n++
		}
	}
	return n, it.err == nil, it.err
}
