package manifest

import (
	"cmp"
	"context"
	"slices"
)

// pageWrite is a page object to be made before the root that refers to it.
type pageWrite struct {
	cell   Cell
	key    string
	object []byte
}

// spill is s with no more pages in the root than the budget allows: beyond it, the pages
// that were not touched for the longest time, and among those the largest, become objects,
// until half the budget is used. Half, so that not every commit of a large cluster spills.
// Pages of chunks in another location always become objects, there.
// base is the version that the commit of s is planned on.
func (r *Root) spill(s *State, base Version) (*State, []pageWrite, error) {
	inline := s.inlinePages()
	used, elsewhere := 0, false
	for i := range inline {
		p := &inline[i]
		if p.location = s.LocationOf(p.page.chunks[0].Shard); p.location != 0 {
			elsewhere = true
		} else {
			used += p.page.size
		}
	}
	if used <= r.o.PageBudget && !elsewhere {
		return s, nil, nil
	}
	enough := r.o.PageBudget / 2
	if used <= r.o.PageBudget {
		enough = used
	}
	slices.SortFunc(inline, func(a, b placedPage) int {
		return cmp.Or(cmp.Compare(b.location, a.location), cmp.Compare(a.page.id.version, b.page.id.version), cmp.Compare(b.page.size, a.page.size),
			cmp.Compare(a.page.id.number, b.page.id.number))
	})
	next := *s
	next.tables = slices.Clone(s.tables)
	copied := map[CollectionID]bool{}
	var objects []pageWrite
	for _, p := range inline {
		if p.location == 0 && used <= enough {
			break
		}
		t := next.tables[p.table]
		if !copied[t.collection] {
			copied[t.collection] = true
			t = &table{collection: t.collection, pages: slices.Clone(t.pages), count: t.count}
			next.tables[p.table] = t
		}
		stored := *p.page
		stored.stored = &pageObject{base: base, nonce: r.host.Uint64(), location: p.location}
		t.pages[p.at] = &stored
		ref := stored.ref(t.collection)
		object, err := encodePage(s.cluster, ref, stored.chunks)
		if err != nil {
			return nil, nil, err
		}
		cell, err := cellOf(r.cell, r.o.Places, s, p.location)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, pageWrite{cell, ref.Key(), object})
		if p.location == 0 {
			used -= p.page.size
		}
	}
	return &next, objects, nil
}

// placedPage is a page, where it stands, and where its chunks are.
type placedPage struct {
	page      *page
	table, at int
	location  LocationID
}

// inlinePages are the pages that ride in the root.
func (s *State) inlinePages() []placedPage {
	var found []placedPage
	for i, t := range s.tables {
		for k, p := range t.pages {
			if p.stored == nil {
				found = append(found, placedPage{page: p, table: i, at: k})
			}
		}
	}
	return found
}

// writePages makes the objects, all of them before it returns without an error. Nobody
// refers to them yet: if the root's swap never lands, GC sweeps them.
func (r *Root) writePages(ctx context.Context, objects []pageWrite) error {
	return parallel(len(objects), func(i int) error { return r.putPage(ctx, objects[i]) })
}
