package writer

import (
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
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

// expired judges documents of a collection at this moment; nil: nothing expires. The moments
// never go back, whatever the wall clock does. Requires: the mutex.
func (s *shard) expired(c manifest.CollectionID) func(bson.Raw) bool {
	rule := s.rules[c].rule
	if rule == nil {
		return nil
	}
	s.judged = max(s.judged, s.w.host.Wall().UnixMilli())
	return rule.By(s.judged)
}

// takesOver notes that an insert takes the place of an expired document, if that is what the
// row has. Requires: the mutex.
func (x *exec) takesOver(in *insertion, r *row) bool {
	expired := x.s.expired(x.r.Collection)
	in.over = expired != nil && expired(r.doc)
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
