package manifest

import (
	"fmt"
	"slices"
)

// Apply is the state after e: pure, and the only way to a new state. The version grows by
// one; nonce must be fresh. Errors: Conflict when a precondition of e does not hold on s,
// Invalid when e could never be right or the result would break an invariant; the text
// names the change, its subject, and what was found and expected. s is unchanged, whatever
// comes out.
func Apply(s *State, e Edit, nonce [16]byte) (*State, error) {
	return applyAt(s, e, nonce, s.version+1)
}

// applyAt is Apply for one of several Edits that share a commit: all make the same version
// v, each on the result of the one before.
func applyAt(s *State, e Edit, nonce [16]byte, v Version) (*State, error) {
	if e.Op == (OpID{}) {
		return nil, invalid("commit", "edit", "it has no Op: draw one for every Edit")
	}
	if made, ok := s.HasOp(e.Op); ok {
		return nil, conflict("commit edit", fmt.Sprintf("%x", e.Op), "it was committed as version %d already", made)
	}
	b := newBuilder(s, &e, nonce, v)
	for i, c := range e.Changes {
		if c == nil {
			return nil, invalid("commit", "edit", "change %d is nil", i)
		}
		if err := c.apply(b); err != nil {
			return nil, err
		}
	}
	return b.finish(s)
}

// finish closes the books: pages get their shape and names, the bounded lists are cut, and
// what was touched is checked.
func (b *builder) finish(old *State) (*State, error) {
	s := b.s
	s.recent = append(slices.Clip(s.recent), RecentOp{Op: b.edit.Op, Version: s.version})
	if over := len(s.recent) - RecentOps; over > 0 {
		// What is cut was committed at that version: of it and of older ones the list no
		// longer tells.
		s.recentSince = s.recent[over-1].Version
		s.recent = slices.Clone(s.recent[over:])
	}
	if len(b.logged) > 0 {
		s.history = newest(slices.Concat(s.history, b.logged), HistoryEntries)
	}
	s.dropped = newest(s.dropped, DroppedEntries)
	for _, t := range s.tables {
		if b.tables[t.collection] == t {
			t.reshape(b.s)
			b.namePages(t)
		}
	}
	if err := checkTouched(old, s); err != nil {
		return nil, err
	}
	return s, nil
}

// newest is the last n of list.
func newest[T any](list []T, n int) []T {
	if len(list) <= n {
		return list
	}
	return slices.Clone(list[len(list)-n:])
}

// namePages gives the pages that this Edit made their ids.
func (b *builder) namePages(t *table) {
	for _, p := range t.pages {
		if p.id == (pageID{}) {
			p.id = pageID{version: b.s.version, number: b.s.pageNumber}
			b.s.pageNumber++
			p.measure()
		}
	}
}
