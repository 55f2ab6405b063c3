package manifest

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"sort"

	"github.com/granarydb/granary/manifest/shardkey"
)

// A chunk table is the chunk list of one collection: a directory of pages, each a short run
// of chunks in key order. Tables and pages never change; an Edit makes new ones and shares
// what it did not touch, so that a change to one chunk of 100,000 copies one page and the
// directory's pointers.
type table struct {
	collection CollectionID
	pages      []*page // in key order, none empty
	count      int     // chunks in all pages
}

// pageID names the content of a page within the cluster for ever: the version whose commit
// made it, and its number among the pages of that commit. Versions are the history of one
// register, so no two contents share an id, whether the page rides in the root or is an
// object of its own.
type pageID struct {
	version Version
	number  uint32
}

// page is an immutable run of chunks.
type page struct {
	id     pageID
	chunks []*Chunk
	// size estimates the encoded bytes, from above.
	size int
	// floors counts the chunks that have an own floor, so that a flush finds them without
	// looking at every chunk.
	floors int
	// stored is where the page is an object; nil while it rides in the root.
	stored *pageObject
}

// pageObject is the place of a page that is an object. It is in the location of its chunks,
// and a page of chunks in another location than the cluster's own bucket always is an object.
type pageObject struct {
	base     Version // of the root that the writing commit was planned on
	nonce    uint64  // of the object's name
	location LocationID
}

// Limits of a page. An Edit leaves no page above them, except a page of one chunk. Larger
// pages make the commits that write one longer, smaller ones make the root longer, which
// names them all: at 100,000 chunks of 1 to 8 references these limits keep both together
// below 128 KB.
const (
	// PageChunksMax is how many chunks a page has, and EncodeChunks takes, at most.
	PageChunksMax = 128
	pageBytesMax  = 96 << 10
)

func (p *page) min() []byte { return p.chunks[0].Range.Min }

// pageOf is the index of the page that contains key; -1 in a table without chunks.
func (t *table) pageOf(key []byte) int {
	return sort.Search(len(t.pages), func(i int) bool {
		return bytes.Compare(t.pages[i].min(), key) > 0
	}) - 1
}

// chunkOf is the index in p of the chunk that contains key; -1 when key lies before p.
func (p *page) chunkOf(key []byte) int {
	return sort.Search(len(p.chunks), func(i int) bool {
		return bytes.Compare(p.chunks[i].Range.Min, key) > 0
	}) - 1
}

func (t *table) all() iter.Seq[*Chunk] {
	return func(yield func(*Chunk) bool) {
		if t == nil {
			return
		}
		for _, p := range t.pages {
			for _, c := range p.chunks {
				if !yield(c) {
					return
				}
			}
		}
	}
}

func (t *table) in(r shardkey.Range) iter.Seq[*Chunk] {
	return func(yield func(*Chunk) bool) {
		if t == nil || r.Empty() || len(t.pages) == 0 {
			return
		}
		at := t.pageOf(r.Min)
		from := t.pages[at].chunkOf(r.Min)
		for _, p := range t.pages[at:] {
			for _, c := range p.chunks[from:] {
				if len(r.Max) > 0 && bytes.Compare(c.Range.Min, r.Max) >= 0 || !yield(c) {
					return
				}
			}
			from = 0
		}
	}
}

func (t *table) find(key []byte) *Chunk {
	if t == nil || len(t.pages) == 0 {
		return nil
	}
	p := t.pages[t.pageOf(key)]
	return p.chunks[p.chunkOf(key)]
}

// table is the chunk table of a collection, or nil.
func (s *State) table(id CollectionID) *table {
	i, ok := slices.BinarySearchFunc(s.tables, id, compareTable)
	if !ok {
		return nil
	}
	return s.tables[i]
}

func compareTable(t *table, id CollectionID) int { return cmp.Compare(t.collection, id) }
