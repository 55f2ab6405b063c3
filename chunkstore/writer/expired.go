package writer

import (
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
)

// expiring is the rule of a collection in the state that it was made from.
type expiring struct {
	of   *manifest.Collection
	rule *expiry.Rule
}

// learnRules keeps the rules of the absorbed root. A collection that did not change keeps its
// own, and one without indexes costs a look at that. Requires: the mutex.
func (s *shard) learnRules() {
	was := s.rules
	s.rules = nil
	for _, c := range s.state.Collections() {
		if len(c.Indexes) == 0 {
			continue
		}
		e := was[c.ID]
		if e.of != c {
			e = expiring{of: c, rule: expiry.Of(c)}
		}
		if s.rules == nil {
			s.rules = make(map[manifest.CollectionID]expiring)
		}
		s.rules[c.ID] = e
	}
}

// moment judges documents of a collection now; nil: nothing expires. Moments never go back,
// whatever the wall clock does. Requires: the mutex.
func (s *shard) moment(c manifest.CollectionID) *expiry.Moment {
	rule := s.rules[c].rule
	if rule == nil || broken(expiredSeen) {
		return nil
	}
	s.judged = max(s.judged, s.w.host.Wall().UnixMilli())
	return rule.By(s.judged)
}

// ruleOf is when documents of a collection expire; nil: never.
func (s *shard) ruleOf(c manifest.CollectionID) *expiry.Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rules[c].rule
}

// takesOver notes that an insert takes the place of an expired document, if that is what the
// row has. Requires: the mutex.
func (x *exec) takesOver(in *insertion, r *row) bool {
	in.over = x.s.moment(x.r.Collection).Expired(r.doc)
	return in.over
}

// insertOver is how an insert is recorded: over an expired row it replaces what the chunk
// counts already.
func insertOver(expired bool) wal.RecordOp {
	if expired {
		return wal.Replace
	}
	return wal.Insert
}
