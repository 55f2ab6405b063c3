package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"sort"
	"strings"
	"testing"
)

// essayLines is the least that a package says of itself: its words, the shape of what it
// does, and what happens on a crash do not fit into less.
const essayLines = 3

func TestPackagesHaveEssays(t *testing.T) { report(t, missingEssays(sources(t))) }

func missingEssays(all []*source) (found []string) {
	first := map[string]*source{}   // directory -> its first file
	essays := map[string][]string{} // directory -> where its package comments are
	for _, s := range all {
		if s.test {
			continue
		}
		if first[s.dir()] == nil {
			first[s.dir()] = s
		}
		if s.ast.Doc == nil {
			continue
		}
		where := s.at(s.ast.Doc.Pos())
		essays[s.dir()] = append(essays[s.dir()], where)
		if n := strings.Count(strings.TrimSpace(s.ast.Doc.Text()), "\n") + 1; n < essayLines {
			found = append(found, finding(where, fmt.Sprintf("the package doc has %d lines", n), "say in at least %d its words, the flow, and what happens on a crash", essayLines))
		}
	}
	for dir, s := range first {
		switch with := essays[dir]; len(with) {
		case 1:
		case 0:
			found = append(found, finding(s.at(s.ast.Package), "no file of "+dir+" has a package doc", "write one, in doc.go when it is long"))
		default:
			found = append(found, finding(with[1], "a second package doc of "+dir, "the first is at %s: keep one", with[0]))
		}
	}
	sort.Strings(found)
	return found
}

func TestExportedNamesAreDocumented(t *testing.T) { check(t, undocumented) }

func undocumented(s *source) (found []string) {
	if s.test || s.ast.Name.Name == "main" {
		return nil
	}
	miss := func(pos token.Pos, name string) {
		found = append(found, finding(s.at(pos), name+" has no doc", "add a sentence that says more than the name: shapes, units, errors"))
	}
	for _, d := range s.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
				miss(d.Pos(), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				undocumentedSpec(d, spec, miss)
			}
		}
	}
	return found
}

// undocumentedSpec: a comment above the name or at the end of its line is one. A comment
// above a group speaks for its constants and variables, also those of an enumeration, but
// not for its types.
func undocumentedSpec(d *ast.GenDecl, spec ast.Spec, miss func(token.Pos, string)) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if above := d.Doc != nil && !d.Lparen.IsValid(); spec.Name.IsExported() && !above && spec.Doc == nil && spec.Comment == nil {
			miss(spec.Pos(), spec.Name.Name)
		}
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			if n.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
				miss(n.Pos(), n.Name)
			}
		}
	}
}

// exportedReceiver: functions, and methods of exported types.
func exportedReceiver(d *ast.FuncDecl) bool {
	name := receiver(d)
	return name == "" || ast.IsExported(name)
}

// receiver is the type that a method is of; "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
