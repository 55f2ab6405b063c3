package archtest

import (
	"fmt"
	"go/ast"
	"testing"
)

// Where to look for the second noun in a file, and for the second verb in a function. Files
// are usually 100 to 300 lines, functions 5 to 40. Tests may list their cases at length.
const (
	fileLinesMax     = 500
	functionLinesMax = 90
)

// ratchet holds what is longer than its limit, each at its present length: the figures go
// down only. Who shortens one writes the new figure here, so that it stays.
type ratchet map[string]struct {
	lines int
	why   string
}

// longFiles are files by path.
var longFiles = ratchet{}

// longFunctions are functions by "path Name" and "path Type.Name".
var longFunctions = ratchet{}

const lengthFile = "lengths_test.go"

func TestFilesAreShort(t *testing.T) {
	check(t, func(s *source) []string { return longFiles.files(s) })
}

func (r ratchet) files(s *source) []string {
	if s.test {
		return nil
	}
	return r.judge(s.path, at(s.path, 1), s.lines, fileLinesMax, "look for the second noun")
}

func TestFunctionsAreShort(t *testing.T) {
	check(t, func(s *source) []string { return longFunctions.functions(s) })
}

func (r ratchet) functions(s *source) (found []string) {
	if s.test {
		return nil
	}
	for _, d := range s.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			found = append(found, r.judge(functionKey(s, f), s.at(f.Pos()), lines, functionLinesMax, "look for the second verb")...)
		}
	}
	return found
}

func functionKey(s *source, f *ast.FuncDecl) string {
	if t := receiver(f); t != "" {
		return s.path + " " + t + "." + f.Name.Name
	}
	return s.path + " " + f.Name.Name
}

func (r ratchet) judge(key, where string, lines, limit int, do string) []string {
	a, has := r[key]
	switch {
	case !has && lines > limit:
		return []string{finding(where, fmt.Sprintf("%s has %d lines", key, lines), "at most %d: %s", limit, do)}
	case has && lines > a.lines:
		return []string{finding(where, fmt.Sprintf("%s has %d lines", key, lines), "its allowance is %d (%s), which never grows: %s", a.lines, a.why, do)}
	case has && lines <= limit:
		return []string{finding(rowAt(lengthFile, key), fmt.Sprintf("%s has %d lines", key, lines), "it needs no allowance any more: delete the row")}
	case has && lines < a.lines:
		return []string{finding(rowAt(lengthFile, key), fmt.Sprintf("%s has %d lines", key, lines), "its allowance is %d: lower it to %d", a.lines, lines)}
	}
	return nil
}

func TestRatchetsAreUsed(t *testing.T) {
	known := map[string]bool{}
	for _, s := range sources(t) {
		known[s.path] = true
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				known[functionKey(s, f)] = true
			}
		}
	}
	report(t, longFiles.unused(known))
	report(t, longFunctions.unused(known))
}

func (r ratchet) unused(known map[string]bool) (found []string) {
	for key, a := range r {
		if !known[key] || a.why == "" {
			found = append(found, finding(rowAt(lengthFile, key), "the allowance of "+key, "there is no such thing, or no reason: delete the row or give one"))
		}
	}
	return found
}
