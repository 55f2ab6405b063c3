package manifest

import "slices"

// Pages are filled to three quarters, so that the next split does not cut them again.
const (
	pageChunksFill = PageChunksMax * 3 / 4
	pageBytesFill  = pageBytesMax * 3 / 4
)

// measure fills in what a page says about its chunks.
func (p *page) measure() {
	p.size, p.floors = 64, 0
	for _, c := range p.chunks {
		p.size += chunkSize(c)
		if c.OwnFloor != (Position{}) {
			p.floors++
		}
	}
}

// chunkSize estimates the encoded bytes of c from above, with its lower bound only: a page
// holds the bound between two chunks once.
func chunkSize(c *Chunk) int {
	n := 64 + len(c.Indivisible.Value) + len(c.Range.Min) + len(c.MinBSON) + len(c.Shard)
	for i := range c.Refs {
		r := &c.Refs[i]
		n += 96 + len(r.MinKey) + len(r.MaxKey) + len(r.Clip.Min) + len(r.Clip.Max)
	}
	return n
}

// reshape cuts the written pages that grew beyond the limits or have chunks of several
// locations, and joins small ones with a neighbour.
func (t *table) reshape(s *State) {
	var pages []*page
	for _, p := range t.apart(s) {
		switch n := len(pages); {
		case n > 0 && together(s, pages[n-1], p) && joinable(pages[n-1], p):
			pages[n-1] = &page{chunks: slices.Concat(pages[n-1].chunks, p.chunks)}
			pages[n-1].measure()
		case p.written():
			pages = append(pages, cut(p)...)
		default:
			pages = append(pages, p)
		}
	}
	t.pages = pages
}

// apart are the pages of t, each written one in as many parts as it has runs of chunks in one
// location.
func (t *table) apart(s *State) []*page {
	if !s.Spread() {
		return t.pages
	}
	var pages []*page
	for _, p := range t.pages {
		from := 0
		for i := 1; p.written() && i < len(p.chunks); i++ {
			if s.LocationOf(p.chunks[i].Shard) != s.LocationOf(p.chunks[i-1].Shard) {
				pages = append(pages, &page{chunks: slices.Clone(p.chunks[from:i])})
				from = i
			}
		}
		if from > 0 {
			p = &page{chunks: slices.Clone(p.chunks[from:])}
		}
		pages = append(pages, p)
	}
	return pages
}

// together tells whether the chunks of two pages are in one location.
func together(s *State, a, b *page) bool {
	return s.LocationOf(a.chunks[0].Shard) == s.LocationOf(b.chunks[0].Shard)
}

// written tells whether the builder at work made p.
func (p *page) written() bool { return p.id == pageID{} }

// joinable tells whether two neighbours, one of them written anyway, are better one page.
func joinable(a, b *page) bool {
	if !a.written() && !b.written() {
		return false
	}
	if b.written() {
		b.measure()
	}
	small := func(p *page) bool { return len(p.chunks) < PageChunksMax/4 && p.size < pageBytesMax/4 }
	return (small(a) || small(b)) &&
		len(a.chunks)+len(b.chunks) <= pageChunksFill && a.size+b.size <= pageBytesFill
}

// cut divides a page beyond the limits into pages that are evenly filled.
func cut(p *page) []*page {
	p.measure()
	if len(p.chunks) <= PageChunksMax && (p.size <= pageBytesMax || len(p.chunks) == 1) {
		return []*page{p}
	}
	pieces := max(ceil(len(p.chunks), pageChunksFill), ceil(p.size, pageBytesFill))
	chunksEach, bytesEach := ceil(len(p.chunks), pieces), ceil(p.size, pieces)
	var pages []*page
	from, bytes := 0, 0
	for i, c := range p.chunks {
		size := chunkSize(c)
		if i > from && (i-from >= chunksEach || bytes >= bytesEach || bytes+size > pageBytesMax-64) {
			pages = append(pages, &page{chunks: slices.Clone(p.chunks[from:i])})
			from, bytes = i, 0
		}
		bytes += size
	}
	pages = append(pages, &page{chunks: slices.Clone(p.chunks[from:])})
	for _, p := range pages {
		p.measure()
	}
	return pages
}

func ceil(n, by int) int { return (n + by - 1) / by }
