package archtest

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

// The words that say what something manages, not what it is: at the end of the name of a
// type, file or package, and as a word of any exported name.
var (
	badEnds  = regexp.MustCompile(`(?i)(manager|helpers?|utils?|service|impl)$|(Info)$`)
	badWords = regexp.MustCompile(`(Manager|Helper|Util|Service|Impl)s?($|[^a-z])`)
)

func TestNamesAreNouns(t *testing.T) { check(t, wrongNames) }

func wrongNames(s *source) (found []string) {
	wrong := func(pos token.Pos, what, name string, re *regexp.Regexp) {
		if bad := re.FindString(name); bad != "" {
			found = append(found, finding(s.at(pos), "the "+what+" name "+name, "%q says what it manages: name what it is", bad))
		}
	}
	wrong(s.ast.Name.Pos(), "package", strings.TrimSuffix(s.ast.Name.Name, "_test"), badEnds)
	wrong(s.ast.Package, "file", strings.TrimSuffix(strings.TrimSuffix(path.Base(s.path), ".go"), "_test"), badEnds)
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			wrong(n.Pos(), "type", n.Name.Name, badEnds)
			if !badEnds.MatchString(n.Name.Name) {
				wrongExported(s, n.Name, wrong)
			}
		case *ast.FuncDecl:
			wrongExported(s, n.Name, wrong)
		case *ast.ValueSpec:
			for _, name := range n.Names {
				wrongExported(s, name, wrong)
			}
		case *ast.Field:
			for _, name := range n.Names {
				wrongExported(s, name, wrong)
			}
		}
		return true
	})
	return found
}

// wrongExported: tests are named by sentences, and Helper is testing.TB's own.
func wrongExported(s *source, name *ast.Ident, wrong func(token.Pos, string, string, *regexp.Regexp)) {
	if name.IsExported() && s.product() && name.Name != "Helper" {
		wrong(name.Pos(), "exported", name.Name, badWords)
	}
}

// badText is what no text of ours has: things left to do, and the place where it was
// written. (The patterns are put together so that this file does not match itself.)
var badText = []struct {
	re  *regexp.Regexp
	why string
}{
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`), "work left to do: finish it"},
	{regexp.MustCompile(`(^|[^\w.}])/(work` + `|root|home/\w+)/`), "a path of one machine: take it from the environment, or a relative one"},
	{regexp.MustCompile(`\bdesign/` + `[a-z-]+\.md\b|\bshared/` + `(design|seeds|samples|hooks)\b`), "a page that readers do not have: say what it says"},
	{regexp.MustCompile(`(?i)\biss` + `ue #?\d`), "a number that readers cannot follow: say what it is about"},
}

func TestNothingIsLeftToDo(t *testing.T) {
	seen := map[string]bool{}
	err := files(func(rel, text string) {
		seen[rel] = true
		report(t, wrongText(rel, text))
	})
	if err != nil {
		t.Error(err)
	}
	for _, must := range []string{"README.md", ".ci/run", "go.mod", "cmd/internal/archtest/deps.txt"} {
		if !seen[must] {
			t.Error(finding(at(must, 1), "was not read", "look whether this test still sees it"))
		}
	}
}

func wrongText(rel, text string) (found []string) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		for _, b := range badText {
			if m := b.re.FindString(line); m != "" {
				found = append(found, finding(at(rel, n), "has "+strings.TrimSpace(m), "%s", b.why))
			}
		}
	}
	return found
}
