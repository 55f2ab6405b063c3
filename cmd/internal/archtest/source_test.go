package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

const modulePath = "github.com/granarydb/granary"

// source is one parsed Go file. All files are looked at, whatever their build constraints.
type source struct {
	path  string // relative to the module, with slashes
	lines int
	test  bool // a _test.go file
	fset  *token.FileSet
	ast   *ast.File
}

// dir is the package's directory relative to the module; "." is the root.
func (s *source) dir() string { return path.Dir(s.path) }

// testPackage reports whether the file's package exists for tests only: its name ends in "test".
func (s *source) testPackage() bool { return strings.HasSuffix(s.dir(), "test") }

// product reports whether the file ends up in a program that users run.
func (s *source) product() bool { return !s.test && !s.testPackage() }

// imported is one import of a file.
type imported struct {
	path string
	name string // under which the file knows it
	at   string
}

// imports are the file's imports, in order.
func (s *source) imports() (list []imported) {
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if len(name) == 2 && name[0] == 'v' { // math/rand/v2
			name = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		list = append(list, imported{path: p, name: name, at: s.at(spec.Pos())})
	}
	return list
}

// at is "file:line", with which every finding begins.
func (s *source) at(pos token.Pos) string { return at(s.path, s.fset.Position(pos).Line) }

func at(file string, line int) string { return file + ":" + strconv.Itoa(line) }

func parse(name, text string) (*source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path: name, lines: strings.Count(text, "\n"), fset: fset, ast: f,
		test: strings.HasSuffix(name, "_test.go"),
	}, nil
}

// root is the module's directory.
func root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// textBytesMax: what is larger was not written by hand.
const textBytesMax = 1 << 20

// files calls f for every text file of the module, nested modules, hidden directories and
// data of a run left out.
func files(f func(rel, text string)) error {
	top, err := root()
	if err != nil {
		return err
	}
	return filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != top && foreign(p, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > textBytesMax || d.Name() == ".git" {
			return nil // gone, no text, or where a second work tree says what it belongs to
		}
		text, err := os.ReadFile(p)
		if err != nil || !utf8.Valid(text) {
			return nil
		}
		rel, err := filepath.Rel(top, p)
		f(filepath.ToSlash(rel), string(text))
		return err
	})
}

// foreign directories are not this module's text.
func foreign(dir, name string) bool {
	_, nested := os.Stat(filepath.Join(dir, "go.mod"))
	return nested == nil || name == "node_modules" || name == "granary-data" || strings.HasPrefix(name, ".") && name != ".ci"
}

// load parses all Go files of the module, sorted by path, once.
var load = sync.OnceValues(func() (all []*source, err error) {
	var errs []error
	err = files(func(rel, text string) {
		if !strings.HasSuffix(rel, ".go") || strings.Contains(rel, "testdata/") {
			return
		}
		s, err := parse(rel, text)
		if err != nil {
			errs = append(errs, err)
			return
		}
		all = append(all, s)
	})
	return all, errors.Join(append(errs, err)...)
})

func sources(t testing.TB) []*source {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Error(err)
	}
	return all
}

// within reports whether a file, directory or import path is prefix or below it.
func within(p, prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }

// anyOf reports whether the file is one of the places, which are files and directories.
func (s *source) anyOf(places []string) bool {
	for _, p := range places {
		if within(s.path, p) {
			return true
		}
	}
	return false
}

// check runs a rule on every file and reports what it finds.
func check(t *testing.T, rule func(*source) []string) {
	t.Helper()
	for _, s := range sources(t) {
		report(t, rule(s))
	}
}

func report(t testing.TB, found []string) {
	t.Helper()
	for _, finding := range found {
		t.Error(finding)
	}
}

// rowAt is where a table of this package has the row that begins with a word: "file:line".
func rowAt(file, word string) string {
	rel := "cmd/internal/archtest/" + file
	text, err := os.ReadFile(file)
	if err != nil {
		return at(rel, 1)
	}
	for i, line := range strings.Split(string(text), "\n") {
		if trimmed := strings.TrimLeft(line, "\t{"); strings.HasPrefix(trimmed, strconv.Quote(word)) {
			return at(rel, i+1)
		}
	}
	return at(rel, 1)
}

// finding is one line of a report: where, what is wrong, and what to do.
func finding(at, what, do string, args ...any) string {
	return fmt.Sprintf("%s: %s: %s", at, what, fmt.Sprintf(do, args...))
}
