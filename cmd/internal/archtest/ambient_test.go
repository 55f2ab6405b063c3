package archtest

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

// ambient are the functions that read or wait on this machine's clock and dice. They are
// handed in (manifest/host) everywhere else, so that a simulation can give each node its own
// and one seed gives one run.
var ambient = map[string][]string{
	"time":    {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"context": {"WithTimeout", "WithDeadline", "WithTimeoutCause", "WithDeadlineCause"},

	"go.mongodb.org/mongo-driver/v2/bson": {"NewObjectID", "NewObjectIDFromTimestamp"},
}

// dice are packages of which every function is ambient.
var dice = []string{"math/rand", "math/rand/v2", "crypto/rand", "hash/maphash"}

// allowance lets a place use some names, each place for its reason.
type allowance struct {
	place string // a file or a directory
	names string // "package.Name", or "" for all
	why   string
}

// mayBeAmbient are the places that may read the real clock and dice.
var mayBeAmbient = []allowance{
	{"manifest/host", "", "is where the real ones are wrapped"},
	{"localstack/sim", "", "is the simulated machine: its time is virtual, its chance comes from the seed"},
}

// mayUseSystem may choose the real machine for a whole process.
var mayUseSystem = []allowance{
	{"cmd", "host.System", "the binary runs on the real machine"},
}

const ambientFile = "ambient_test.go"

func TestClockAndRandomnessAreHandedIn(t *testing.T) { check(t, readsAmbient) }

func readsAmbient(s *source) (found []string) {
	for _, u := range ambientUses(s) {
		list, do := mayBeAmbient, "take it from the host.Host that is handed in (manifest/host)"
		if u.name == systemName {
			list, do = mayUseSystem, "it is chosen under cmd and in tests only: take a host.Host"
		}
		if !slices.ContainsFunc(list, func(a allowance) bool { return a.covers(s, u.name) }) {
			found = append(found, finding(u.at, "uses "+u.name, "%s", do))
		}
	}
	return found
}

func (a allowance) covers(s *source, name string) bool {
	return within(s.path, a.place) && (a.names == "" || a.names == name)
}

const systemName = "host.System"

type use struct{ name, at string }

// ambientUses are the ambient names that the product's file mentions.
func ambientUses(s *source) (uses []use) {
	if !s.product() {
		return nil
	}
	paths := map[string]string{}
	for _, i := range s.imports() {
		paths[i.name] = i.path
		if slices.Contains(dice, i.path) {
			uses = append(uses, use{i.path, i.at})
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		p, f := paths[x.Name], sel.Sel.Name
		switch {
		case slices.Contains(ambient[p], f):
			uses = append(uses, use{p + "." + f, s.at(n.Pos())})
		case p == modulePath+"/manifest/host" && f == "System":
			uses = append(uses, use{systemName, s.at(n.Pos())})
		}
		return true
	})
	return uses
}

// Nothing happens before main: no registration, no hidden order.
func TestNoInitFunctions(t *testing.T) { check(t, hasInit) }

func hasInit(s *source) (found []string) {
	for _, d := range s.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" && !s.test {
			found = append(found, finding(s.at(f.Pos()), "an init function", "hand in what it sets up"))
		}
	}
	return found
}

// mayBeUnsafe are the files that may import unsafe.
var mayBeUnsafe = []allowance{
	{"chunkstore/bucket/dirbucket/nameless_linux.go", "unsafe", "linkat(2) is not in package syscall"},
	{"chunkstore/writer/row.go", "unsafe", "keys are strings over bytes that never change, without a copy"},
}

func TestUnsafeIsRare(t *testing.T) { check(t, isUnsafe) }

func isUnsafe(s *source) (found []string) {
	for _, u := range unsafeUses(s) {
		if !slices.ContainsFunc(mayBeUnsafe, func(a allowance) bool { return a.covers(s, u.name) }) {
			found = append(found, finding(u.at, "imports unsafe", "do without, or give the reason in mayBeUnsafe (%s)", ambientFile))
		}
	}
	return found
}

func unsafeUses(s *source) (uses []use) {
	for _, i := range s.imports() {
		if i.path == "unsafe" {
			uses = append(uses, use{i.path, i.at})
		}
	}
	return uses
}

// An allowance that nobody needs any more is a door left open.
func TestAllowancesAreUsed(t *testing.T) {
	report(t, unusedAllowances(slices.Concat(mayBeAmbient, mayUseSystem), sources(t), ambientUses))
	report(t, unusedAllowances(mayBeUnsafe, sources(t), unsafeUses))
}

func unusedAllowances(list []allowance, all []*source, uses func(*source) []use) (found []string) {
	for _, a := range list {
		where := rowAt(ambientFile, a.place)
		if a.why == "" {
			found = append(found, finding(where, "the row of "+a.place+" has no reason", "give one"))
		}
		needed := slices.ContainsFunc(all, func(s *source) bool {
			return slices.ContainsFunc(uses(s), func(u use) bool { return a.covers(s, u.name) })
		})
		if !needed {
			what := a.names
			if what == "" {
				what = "anything"
			}
			found = append(found, finding(where, fmt.Sprintf("%s is allowed %s and does not use it", a.place, what), "delete the row"))
		}
	}
	return found
}
