package rewrite

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/mutant"
	"github.com/granarydb/granary/manifest/shardkey"
)

const (
	// putsMax bounds the attempts at storing one segment, with putPause before the second.
	putsMax  = 4
	putPause = 200 * time.Millisecond
	// paceBytes is after how much a merge looks whether it is too fast.
	paceBytes = 1 << 20
)

// merged is a run of references and what is to take its place.
type merged struct {
	job     *plan.Compaction
	outputs []manifest.SegmentRef
	live    int64
	rows    int64 // written
	expired int64 // left out
}

func (m *merged) change(p *pass) manifest.Compact {
	c := manifest.Compact{Job: p.id, Chunk: m.job.Chunk.At(), Inputs: m.job.Inputs(), Outputs: m.outputs, Oldest: m.job.Oldest, Rows: m.live}
	if m.expired > 0 {
		c.Expired, c.Indexes = m.expired, p.state.Collection(m.job.Chunk.Collection).Indexes
	}
	return c
}

// merger writes the outputs of one run.
type merger struct {
	*pass
	*merged
	view  reader.View
	out   *segment.Writer // nil: none begun
	part  tally           // of out
	rule  *expiry.Rule    // by which rows expire
	gone  *expiry.Moment  // by which they can be left out
	dates expiry.Dates    // of out
	debt  int64           // bytes since the last pause
	most  int64           // bytes after which an output ends and the next begins
	retry int64           // until when the inputs say that they have retry entries, if that is not over
}

// merge reads a run and stores its outputs.
func (p *pass) merge(ctx context.Context, job *plan.Compaction) (*merged, error) {
	c := *job.Chunk
	c.Refs = job.Inputs()
	m := &merger{pass: p, merged: &merged{job: job}, view: reader.View{Chunk: &c}}
	if coll := p.state.Collection(c.Collection); coll != nil {
		m.rule = expiry.Of(coll)
		m.gone = m.rule.By(p.Host.Wall().Add(-expiry.Grace).UnixMilli())
	}
	back := m.borrow()
	defer back()
	read := new(reader.Counter)
	ctx = reader.WithCounter(ctx, read)
	defer func() {
		p.count(func(n *Counts) { n.Reads, n.BytesRead = n.Reads+read.Requests(), n.BytesRead+read.Bytes() })
	}()
	if err := m.retries(ctx); err != nil {
		return nil, err
	}
	it := p.store.Scan(ctx, m.view, shardkey.Range{}, false)
	defer it.Rest()
	for it.NextVersion(ctx) {
		if err := m.row(ctx, it.Row()); err != nil {
			return nil, err
		}
	}
	if it.Err() != nil {
		return nil, it.Err()
	}
	if err := m.finish(ctx); err != nil {
		return nil, err
	}
	return m.merged, m.check()
}

// outputLeast is how large an output may always become.
const outputLeast = 4 << 20

// borrow takes memory for one output at a time; back gives it back.
func (m *merger) borrow() (back func()) {
	m.most = int64(m.Settings.SegmentBytes)
	want := min(m.most, int64(m.job.Bytes))
	got := m.Memory.Take(want, outputLeast)
	if got < want {
		m.most = got
	}
	return func() { m.Memory.Add(-got) }
}

// retries begins an output with the retry entries that are in force.
func (m *merger) retries(ctx context.Context) error {
	now := m.Host.Wall().Add(-manifest.ClockError).Unix()
	for _, r := range m.view.Chunk.Refs {
		if r.RetryUntil > now {
			m.retry = max(m.retry, r.RetryUntil)
		}
	}
	if m.retry == 0 {
		return nil
	}
	entries, err := m.store.Retries(ctx, m.view, now)
	if err != nil {
		return err
	}
	m.begin()
	for _, e := range entries {
		if err := m.out.AddRetry(e); err != nil {
			return err
		}
	}
	return nil
}

func (m *merger) row(ctx context.Context, r segment.Row) error {
	m.debt += int64(len(r.Key) + len(r.Doc))
	if m.debt >= paceBytes {
		if err := m.Host.Sleep(ctx, time.Duration(float64(m.debt)/float64(m.rate().Bytes)*float64(time.Second))); err != nil {
			return err
		}
		m.debt = 0
	}
	if r.Delete && mutant.Broken("tombstone-dropped-early") || m.job.Oldest && (r.Delete || m.gone.Expired(r.Doc)) {
		if !r.Delete {
			m.expired++
		}
		return nil
	}
	if m.out != nil && int64(m.out.Size()) >= m.most {
		if err := m.finish(ctx); err != nil {
			return err
		}
	}
	m.begin()
	m.part.add(&r)
	m.dates.Add(m.rule, r.Doc)
	if m.rows++; !r.Delete {
		m.live++
	}
	return m.out.Add(r)
}

func (m *merger) begin() {
	if m.out != nil {
		return
	}
	refs := m.view.Chunk.Refs
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob, Job: m.id}, Random: m.Host.ID16()}
	m.out, m.part = segment.NewWriter(id, &segment.WriterOptions{Location: refs[len(refs)-1].Location}), tally{}
	m.dates = expiry.Dates{}
}

// finish stores the output that was begun.
func (m *merger) finish(ctx context.Context) error {
	if m.out == nil {
		return nil
	}
	c := m.view.Chunk
	if err := m.out.Cut(segment.Part{Collection: c.Collection, Clip: c.Range}); err != nil {
		return err
	}
	body, _, err := m.out.Finish()
	if err != nil {
		return err
	}
	ref := m.out.Refs()[0]
	ref.Dates = m.dates.Bounds()
	m.out = nil
	if err := m.verify(ctx, body, ref); err != nil {
		return err
	}
	if len(m.outputs) == 0 {
		ref.RetryUntil = m.retry // after a cut the last entry may have been the other part's
	}
	if ref.Rows == 0 {
		ref.MinSeq, ref.MaxSeq = c.Refs[0].MinSeq, c.Refs[0].MinSeq
	}
	m.stored = append(m.stored, ref)
	if err := m.put(ctx, ref, body); err != nil {
		return err
	}
	m.warm(ctx, ref, body)
	m.outputs = append(m.outputs, ref)
	return nil
}

// put stores a segment. Its name is fresh, so that sending the same bytes again after an
// unclear answer is safe.
func (m *merger) put(ctx context.Context, ref manifest.SegmentRef, body []byte) error {
	b, err := m.open(ref.Location)
	if err != nil {
		return fmt.Errorf("location %d: %w", ref.Location, err)
	}
	for attempt := range putsMax {
		m.count(func(n *Counts) { n.Writes, n.BytesWritten = n.Writes+1, n.BytesWritten+int64(len(body)) })
		if _, err = b.Put(ctx, ref.Segment.Key(), body, bucket.Condition{}); err == nil {
			return nil
		}
		if attempt+1 < putsMax {
			if err := m.Host.Sleep(ctx, m.Host.Jitter(putPause<<attempt)); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("store segment %s: %w", ref.Segment.Key(), err)
}

// warm puts an output into the cache, so that the first read of it asks nobody.
func (m *merger) warm(ctx context.Context, ref manifest.SegmentRef, body []byte) {
	if m.Cache == nil {
		return
	}
	s, err := segment.Open(ctx, func(_ context.Context, off, length int64) ([]byte, error) {
		return bytes.Clone(body[off:min(off+length, int64(len(body)))]), nil // or the cache would keep all of it alive
	}, ref, m.Cache)
	if err != nil || ref.Size > m.Settings.WarmBytes {
		return
	}
	for it := s.Scan(m.view.Chunk.Collection, shardkey.Range{}, false); it.Next(ctx); {
	}
}
