package writer

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// part is what one chunk gives to a flush.
type part struct {
	chunk   *chunk
	info    *manifest.Chunk // as at the freeze
	rows    *memtable       // frozen; may be nil
	retries []segment.RetryEntry
	rule    *expiry.Rule // of the collection; nil: nothing expires
	tied    bool
	added   manifest.Added
}

// builder makes segments of parts, in the order of the parts: many small chunks share one,
// a large chunk fills several.
type builder struct {
	s    *shard
	host host.Host // of who builds
	at   manifest.LocationID
	most int // bytes after which a segment ends and the next begins
	id   manifest.SegmentID
	w    *segment.Writer // nil: none begun
	cuts []section       // one per Cut
	// dates are those of the rows since the last Cut.
	dates expiry.Dates
}

// section is a part whose rows are in the segment that is being built, and their dates.
type section struct {
	*part
	dates manifest.DateBounds
}

// upload builds the parts' segments, stores them where the shard is, and notes in each part
// what it adds.
func (s *shard) upload(ctx context.Context, parts []*part) error {
	return s.uploadAs(ctx, s.working, s.location, parts)
}

// uploadAs is upload by some actor, to where the parts' chunks are or will be.
func (s *shard) uploadAs(ctx context.Context, h host.Host, at manifest.LocationID, parts []*part) error {
	most, back := s.w.borrow(parts)
	defer back()
	b := &builder{s: s, host: h, at: at, most: most}
	for _, p := range parts {
		if err := b.add(ctx, p); err != nil {
			return err
		}
	}
	return b.store(ctx)
}

// add appends one chunk's rows and retry entries.
func (b *builder) add(ctx context.Context, p *part) error {
	b.begin()
	for _, e := range p.retries {
		if err := b.w.AddRetry(e); err != nil {
			return err
		}
	}
	if p.rows.len() > 0 {
		it := p.rows.rows.Iter()
		for it.Next() {
			if b.w.Size() >= b.most {
				if err := b.cut(p); err != nil {
					return err
				}
				if err := b.store(ctx); err != nil {
					return err
				}
				b.begin()
			}
			if err := b.row(p, it.Value()); err != nil {
				return err
			}
		}
	}
	return b.cut(p)
}

func (b *builder) row(p *part, r *row) error {
	if r.live() {
		p.added.RowsDelta++
	}
	if r.existed {
		p.added.RowsDelta--
		p.added.Unsure = p.added.Unsure || p.rule != nil
	}
	b.dates.Add(p.rule, r.doc)
	return b.w.Add(r.row())
}

func (b *builder) begin() {
	if b.w != nil {
		return
	}
	b.id = manifest.SegmentID{
		Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: b.s.id, Epoch: b.s.commitEpoch()},
		Random:  b.host.ID16(),
	}
	b.w = segment.NewWriter(b.id, &segment.WriterOptions{Location: b.at})
}

func (b *builder) cut(p *part) error {
	b.cuts = append(b.cuts, section{p, b.dates.Bounds()})
	b.dates = expiry.Dates{}
	return b.w.Cut(segment.Part{Collection: p.info.Collection, Clip: p.info.Range})
}

// store uploads the segment that was begun. The name is fresh, so that sending the same
// bytes again after an unclear answer is safe.
func (b *builder) store(ctx context.Context) error {
	if b.w == nil {
		return nil
	}
	body, _, err := b.w.Finish()
	if err != nil {
		return err
	}
	refs := b.w.Refs()
	for i, p := range b.cuts {
		ref := refs[i]
		if ref.Rows == 0 && ref.RetryUntil == 0 {
			continue
		}
		ref.Dates = p.dates
		p.added.Refs = append(p.added.Refs, ref)
		p.added.BytesDelta += int64(ref.Bytes)
	}
	b.w, b.cuts = nil, nil
	key := b.id.Key()
	to, err := b.s.w.bucket(b.at)
	if err != nil {
		return fmt.Errorf("store segment %s: %w", key, err)
	}
	for attempt := 0; ; attempt++ {
		_, err := to.Put(ctx, key, body, bucket.Condition{})
		if err == nil {
			b.s.count(func(c *Counts) { c.Segments++; c.SegmentBytes += int64(len(body)) })
			return nil
		}
		if err := retryLater(ctx, b.host, attempt, err); err != nil {
			return fmt.Errorf("store segment %s: %w", key, err)
		}
	}
}
