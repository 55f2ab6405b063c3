package command

import (
	"fmt"
	"maps"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// skipMany is from where on a skip is worth a hint.
const skipMany = 100

// hints say what is often meant otherwise than it is written. r is nil when nothing was
// carried out.
func (p *planned) hints(r *ran) (hints []string) {
	if r == nil || r.returned == 0 && r.matched == 0 {
		hints = exactHints(p.query.Filter)
	}
	if p.query.Skip >= skipMany {
		field, op := p.Collection.Key.Fields[0].Path, "$gt"
		if e, err := orEmptyDoc(p.query.Sort).IndexErr(0); err == nil {
			if field = e.Key(); e.Value().AsInt64() < 0 {
				op = "$lt"
			}
		}
		hints = append(hints, fmt.Sprintf("the %d skipped documents are read and thrown away for every page: "+
			"sort, and continue behind the last one that was seen, { %q: { %s: <its value> } }", p.query.Skip, field, op))
	}
	return hints
}

// exactHints are about equalities with whole sub-documents.
func exactHints(filter bson.Raw) (hints []string) {
	if len(filter) <= 5 {
		return nil
	}
	f, err := document.ParseFilter(filter)
	if err != nil {
		return nil
	}
	equal := document.FilterEqualities(f)
	for _, path := range slices.Sorted(maps.Keys(equal)) {
		d, isDoc := equal[path].DocumentOK()
		if !isDoc || len(d) <= 5 {
			continue
		}
		e, _ := d.IndexErr(0)
		hints = append(hints, fmt.Sprintf("sub-document equality is exact: %q is equal only to a document with exactly the fields of %v, in this order; "+
			"a condition on one field of it, %q, is no equality on %q", path, d, path+"."+e.Key(), path))
	}
	return hints
}

func orEmptyDoc(d bson.Raw) bson.Raw {
	if d == nil {
		return bson.Raw{5, 0, 0, 0, 0}
	}
	return d
}
