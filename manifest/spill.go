package manifest

import (
	"cmp"
	"context"
	"slices"
)

// pageWrite is a page object to be made before the root that refers to it.
type pageWrite struct {
	key    string
	object []byte
}

// spill is s with no more pages in the root than the budget allows: beyond it, the pages
// that were not touched for the longest time, and among those the largest, become objects,
// until half the budget is used. Half, so that not every commit of a large cluster spills.
// base is the version that the commit of s is planned on.
func (r *Root) spill(s *State, base Version) (*State, []pageWrite, error) {
	inline := s.inlinePages()
	used := 0
	for _, p := range inline {
		used += p.page.size
	}
	if used <= r.o.PageBudget {
		return s, nil, nil
	}
	slices.SortFunc(inline, func(a, b placedPage) int {
		return cmp.Or(cmp.Compare(a.page.id.version, b.page.id.version), cmp.Compare(b.page.size, a.page.size),
			cmp.Compare(a.page.id.number, b.page.id.number))
	})
	next := *s
	next.tables = slices.Clone(s.tables)
	copied := map[CollectionID]bool{}
	var objects []pageWrite
	for _, p := range inline {
		if used <= r.o.PageBudget/2 {
			break
		}
		t := next.tables[p.table]
		if !copied[t.collection] {
			copied[t.collection] = true
			t = &table{collection: t.collection, pages: slices.Clone(t.pages), count: t.count}
			next.tables[p.table] = t
		}
		stored := *p.page
		stored.stored = &pageObject{base: base, nonce: r.host.Uint64()}
		t.pages[p.at] = &stored
		ref := stored.ref(t.collection)
		object, err := encodePage(s.cluster, ref, stored.chunks)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, pageWrite{ref.Key(), object})
		used -= p.page.size
	}
	return &next, objects, nil
}

// placedPage is a page and where it stands.
type placedPage struct {
	page      *page
	table, at int
}

// inlinePages are the pages that ride in the root.
func (s *State) inlinePages() []placedPage {
	var found []placedPage
	for i, t := range s.tables {
		for k, p := range t.pages {
			if p.stored == nil {
				found = append(found, placedPage{p, i, k})
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
