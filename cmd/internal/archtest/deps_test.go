package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
)

// Three lists say the same: the modules that the code imports, the direct requirements of
// go.mod, and the lines of deps.txt, "module<space>why the standard library was not enough".
func TestDependenciesHaveReasons(t *testing.T) {
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("deps.txt")
	if err != nil {
		t.Fatal(err)
	}
	report(t, wrongDeps(sources(t), requirements(string(mod)), string(text)))
}

// directMax bounds the direct dependencies: each is code that we answer for.
const directMax = 15

const depsFile = "cmd/internal/archtest/deps.txt"

func wrongDeps(all []*source, required []requirement, text string) (found []string) {
	used := map[string]string{} // module -> where it is imported
	for _, s := range all {
		for _, i := range s.imports() {
			if m := moduleOf(i.path, required); m != "" {
				used[m] = i.at
			}
		}
	}
	for _, r := range required {
		switch where := at("go.mod", r.line); {
		case !r.indirect && used[r.module] == "":
			found = append(found, finding(where, "requires "+r.module+", which nothing imports", "run go mod tidy"))
		case r.indirect && used[r.module] != "":
			found = append(found, finding(where, "calls "+r.module+" indirect, and "+used[r.module]+" imports it", "run go mod tidy"))
		}
	}
	reasons, wrong := readReasons(text, used)
	found = append(found, wrong...)
	for m, where := range used {
		if !reasons[m] {
			found = append(found, finding(where, "imports "+m+", which has no line in "+depsFile, "do without, or add the line with its reason"))
		}
	}
	if len(used) > directMax {
		found = append(found, finding(at("go.mod", 1), fmt.Sprintf("%d direct dependencies", len(used)), "at most %d are wanted: do without one", directMax))
	}
	sort.Strings(found)
	return found
}

// readReasons reads deps.txt: which modules have a line, and what is wrong with the lines.
func readReasons(text string, used map[string]string) (reasons map[string]bool, found []string) {
	reasons = map[string]bool{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		m, why, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case m == "" || m == "#":
			continue
		case reasons[m]:
			found = append(found, finding(at(depsFile, n), "a second line for "+m, "keep one"))
		case len(strings.Fields(why)) < 3:
			found = append(found, finding(at(depsFile, n), "no reason for "+m, "say why the standard library was not enough"))
		case used[m] == "":
			found = append(found, finding(at(depsFile, n), "a line for "+m+", which nothing imports", "delete it"))
		}
		reasons[m] = true
	}
	return reasons, found
}

// moduleOf is the required module that provides a package: the longest that is a prefix.
func moduleOf(p string, required []requirement) (best string) {
	for _, r := range required {
		if within(p, r.module) && len(r.module) > len(best) {
			best = r.module
		}
	}
	return best
}

// requirement is one line of go.mod.
type requirement struct {
	module   string
	indirect bool
	line     int
}

// requirements reads go.mod, which the go command keeps in a simple form.
func requirements(mod string) (list []requirement) {
	in, n := false, 0
	for line := range strings.Lines(mod) {
		n++
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "require" {
			words = words[1:]
			if in = slices.Equal(words, []string{"("}); in {
				continue
			}
		} else if !in {
			continue
		}
		if len(words) < 2 {
			in = in && len(words) == 0
			continue
		}
		list = append(list, requirement{module: words[0], indirect: strings.Contains(line, "// indirect"), line: n})
	}
	return list
}
