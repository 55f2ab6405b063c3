package archtest

import (
	"regexp"
	"strings"
	"testing"
)

// form is what every finding looks like: file:line, what is wrong, what to do.
var form = regexp.MustCompile(`^[\w./-]+:[1-9]\d*: [^:]+.*: .+`)

// expect fails unless there is one finding with the text, in the right form; "" wants none.
func expect(t *testing.T, name string, found []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(found) > 0:
		t.Errorf("%s: %q, want none", name, found)
	case want != "" && (len(found) != 1 || !strings.Contains(found[0], want)):
		t.Errorf("%s: %q, want one with %q", name, found, want)
	case want != "" && !form.MatchString(found[0]):
		t.Errorf("%s: %q is not file:line: what is wrong: what to do", name, found[0])
	}
}

func file(t *testing.T, name, text string) *source {
	t.Helper()
	s, err := parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const own = modulePath + "/"

// Every rule about one file finds what it is there for, in a small source that breaks it,
// and nothing in one that does not.
func TestRulesBite(t *testing.T) {
	for _, c := range []struct {
		name string
		rule func(*source) []string
		file string
		text string
		want string // part of the one finding; "": none
	}{
		{"upwards", wrongImports, "manifest/x.go", `package manifest; import "` + own + `chunkstore/bucket"`, "because the truth depends on nothing"},
		{"downwards", wrongImports, "router/x.go", `package router; import "` + own + `manifest"`, ""},
		{"sideways", wrongImports, "router/x.go", `package router; import "` + own + `compactor"`, "its row (router, cmd/internal/archtest/imports_test.go:"},
		{"a driver", wrongImports, "router/x.go", `package router; import "` + own + `chunkstore/bucket/dirbucket"`, "no concrete bucket"},
		{"a driver in a test", wrongImports, "router/x_test.go", `package router; import "` + own + `chunkstore/bucket/membucket"`, ""},
		{"no row", wrongImports, "other/x.go", `package other; import "` + own + `manifest"`, "no row"},
		{"its own external test", wrongImports, "manifest/shardkey/x_test.go", `package shardkey_test; import "` + own + `manifest/shardkey"`, ""},
		{"with a dot", wrongImports, "router/x.go", `package router; import . "time"`, "x.go:1: imports time with a dot"},
		{"with a dot in a test", wrongImports, "router/x_test.go", `package router; import . "time"`, "with a dot"},

		{"an SDK", wrongImports, "router/x.go", `package router; import _ "github.com/aws/aws-sdk-go-v2/service/s3"`, "only chunkstore/bucket/s3bucket may"},
		{"the client", wrongImports, "router/x.go", `package router; import _ "go.mongodb.org/mongo-driver/v2/mongo"`, "no row of moduleTable"},
		{"the client in a test", wrongImports, "localstack/e2e/x_test.go", `package e2e; import _ "go.mongodb.org/mongo-driver/v2/mongo"`, ""},
		{"its bson", wrongImports, "router/x.go", `package router; import _ "go.mongodb.org/mongo-driver/v2/bson"`, ""},
		{"metrics in a role", wrongImports, "router/x.go", `package router; import _ "github.com/prometheus/client_golang/prometheus"`, "only cmd/granary may"},
		{"compression in a codec", wrongImports, "manifest/frame.go", `package manifest; import _ "github.com/klauspost/compress/zstd"`, ""},
		{"compression elsewhere", wrongImports, "manifest/root.go", `package manifest; import _ "github.com/klauspost/compress/zstd"`, "belongs to formats"},

		{"I/O in the truth", wrongImports, "manifest/x.go", `package manifest; import "os"`, "no I/O"},
		{"a plan with a context", wrongImports, "router/plan/x.go", `package plan; import "context"`, "values in"},
		{"testing in the product", wrongImports, "router/x.go", `package router; import "testing"`, "named ...test"},

		{"now", readsAmbient, "router/x.go", `package router; import "time"; var _ = time.Now()`, "x.go:1: uses time.Now"},
		{"now under another name", readsAmbient, "router/x.go", `package router; import clock "time"; var _ = clock.Now()`, "time.Now"},
		{"now as a value", readsAmbient, "router/x.go", `package router; import "time"; var now = time.Now`, "time.Now"},
		{"a duration", readsAmbient, "router/x.go", `package router; import "time"; var _ = time.Second`, ""},
		{"a timeout", readsAmbient, "router/x.go", `package router; import "context"; var _ = context.WithTimeout`, "context.WithTimeout"},
		{"dice", readsAmbient, "router/x.go", `package router; import "math/rand/v2"`, "math/rand/v2"},
		{"an id of its own", readsAmbient, "router/x.go", `package router; import "go.mongodb.org/mongo-driver/v2/bson"; var _ = bson.NewObjectID()`, "NewObjectID"},
		{"now in a test", readsAmbient, "router/x_test.go", `package router; import "time"; var _ = time.Now()`, ""},
		{"the real machine", readsAmbient, "router/x.go", `package router; import "` + own + `manifest/host"; var _ = host.System()`, "host.System"},
		{"the real machine in main", readsAmbient, "cmd/granary/x.go", `package main; import "` + own + `manifest/host"; var _ = host.System()`, ""},
		{"init", hasInit, "router/x.go", `package router; func init() {}`, "init function"},
		{"unsafe", isUnsafe, "router/x.go", `package router; import "unsafe"`, "unsafe"},

		{"no doc", undocumented, "router/x.go", "package router\nfunc F() {}", "x.go:2: F has no doc"},
		{"no doc of a method", undocumented, "router/x.go", "package router\nfunc (t *T[K]) F() {}", "F has no doc"},
		{"a method of a hidden type", undocumented, "router/x.go", "package router\nfunc (t *t) F() {}", ""},
		{"no doc of a type", undocumented, "router/x.go", "package router\ntype T int", "T has no doc"},
		{"a type in a group with a doc", undocumented, "router/x.go", "package router\n// These.\ntype (\nT int\n)", "T has no doc"},
		{"no doc of a variable", undocumented, "router/x.go", "package router\nvar V int", "V has no doc"},
		{"an enumeration", undocumented, "router/x.go", "package router\nconst (\nA K = iota // the first\nB\n)", "x.go:4: B has no doc"},
		{"an enumeration under one doc", undocumented, "router/x.go", "package router\n// The kinds.\nconst (\nA K = iota\nB\n)", ""},

		{"a manager", wrongNames, "router/x.go", "package router\ntype chunkManager int", "chunkManager"},
		{"an util file", wrongNames, "router/util.go", "package router", "file name util"},
		{"an util package", wrongNames, "utils/x.go", "package utils", "package name utils"},
		{"an info", wrongNames, "router/x.go", "package router\ntype chunkInfo int", "chunkInfo"},
		{"a service in the middle", wrongNames, "router/x.go", "package router\ntype ServiceList int", "ServiceList"},
		{"a function", wrongNames, "router/x.go", "package router\nfunc NewManager() {}", "x.go:2: the exported name NewManager"},
		{"a method", wrongNames, "router/x.go", "package router\nfunc (t T) ParseUtil2() {}", "ParseUtil2"},
		{"a field", wrongNames, "router/x.go", "package router\ntype T struct{ BucketImpl int }", "BucketImpl"},
		{"a constant", wrongNames, "router/x.go", "package router\nconst HelperMax = 1", "HelperMax"},
		{"a longer word", wrongNames, "router/x.go", "package router\nfunc Implements() {}\nfunc Utility() {}", ""},
		{"a test's sentence", wrongNames, "router/x_test.go", "package router\nfunc TestManager() {}", ""},

		{"a long function", longFunctions.functions, "router/x.go", "package router\nfunc (t *T) F() {" + strings.Repeat("\n", 90) + "}", "router/x.go T.F has 91 lines"},
		{"a shorter one", longFunctions.functions, "router/x.go", "package router\nfunc F() {" + strings.Repeat("\n", 89) + "}", ""},
		{"a long test", longFunctions.functions, "router/x_test.go", "package router\nfunc F() {" + strings.Repeat("\n", 90) + "}", ""},
	} {
		expect(t, c.name, c.rule(file(t, c.file, c.text)), c.want)
	}
}

func TestEssaysAreMissed(t *testing.T) {
	essay := "// Package a\n// says\n// something.\n"
	for _, c := range []struct{ name, x, y, want string }{
		{"none", "package a", "package a", "a/x.go:1: no file of a has a package doc"},
		{"short", "// Package a.\npackage a", "package a", "the package doc has 1 lines"},
		{"two", essay + "package a", essay + "package a", "a/y.go:1: a second package doc"},
		{"one", essay + "package a", "package a", ""},
	} {
		expect(t, c.name, missingEssays([]*source{file(t, "a/x.go", c.x), file(t, "a/y.go", c.y)}), c.want)
	}
}

func TestRatchetsOnlyShrink(t *testing.T) {
	long := file(t, "a/x.go", "package a\n"+strings.Repeat("\n", 599))
	allow := func(lines int) ratchet { return ratchet{"a/x.go": {lines, "a reason"}} }
	expect(t, "long", ratchet{}.files(long), "second noun")
	expect(t, "grown", allow(550).files(long), "its allowance is 550")
	expect(t, "as allowed", allow(600).files(long), "")
	expect(t, "shrunk", allow(650).files(long), "lower it to 600")
	expect(t, "allowed for nothing", allow(550).files(file(t, "a/x.go", "package a")), "delete the row")
	expect(t, "of nothing", allow(550).unused(map[string]bool{}), "there is no such thing")
	expect(t, "without a reason", ratchet{"a/x.go": {lines: 1}}.unused(map[string]bool{"a/x.go": true}), "no reason")
}

func TestTablesAreUsed(t *testing.T) {
	all := []*source{file(t, "a/x.go", `package a; import _ "example.com/m/pkg"; import _ "unsafe"`), file(t, "b/c/x.go", "package c")}
	rows := func(r row) table { return table{{"a", []string{"b/..."}, "a reason"}, r} }
	expect(t, "all used", unusedRows(rows(row{"b", []string{"a"}, "a reason"}), all), "")
	expect(t, "a row of nothing", unusedRows(rows(row{"d", nil, "a reason"}), all), "is about no package")
	expect(t, "a word of nothing", unusedRows(rows(row{"b", []string{"d"}, "a reason"}), all), "the row of b allows d")
	expect(t, "a tree of nothing", unusedRows(rows(row{"b", []string{"d/..."}, "a reason"}), all), "the row of b allows d/...")
	expect(t, "no reason", unusedRows(rows(row{"b", nil, ""}), all), "no reason")
	expect(t, "roles", roleMeetings(table{{"router/plan", []string{"balancer/..."}, "a reason"}}), "roles meet only")

	modules := func(places ...string) []moduleRow { return []moduleRow{{"example.com/m", places, "a reason"}} }
	expect(t, "a used module", unusedModules(modules("a"), all), "")
	expect(t, "an unused place", unusedModules(modules("a", "b/c"), all), "b/c does not use example.com/m")

	expect(t, "a used allowance", unusedAllowances([]allowance{{"a", "unsafe", "a reason"}}, all, unsafeUses), "")
	expect(t, "an unused allowance", unusedAllowances([]allowance{{"b", "unsafe", "a reason"}}, all, unsafeUses), "does not use it")
	expect(t, "an allowance without a reason", unusedAllowances([]allowance{{"a", "", ""}}, all, unsafeUses), "no reason")
}

func TestChainsOfImportsAreFound(t *testing.T) {
	graph := map[string][]string{own + "a": {own + "b", "fmt"}, own + "b": {"example.com/m/pkg"}}
	chain := reaches(graph, own+"a", "example.com/m")
	if got := strings.Join(chain, " "); got != own+"a "+own+"b example.com/m/pkg" {
		t.Errorf("chain %q", got)
	}
	if chain := reaches(graph, own+"a", "example.com/other"); chain != nil {
		t.Errorf("chain %q to what is not there", chain)
	}
	all := []*source{file(t, "a/x.go", "package a\nimport _ \""+own+"b\""), file(t, "b/x.go", "package b\n\nimport _ \"example.com/m/pkg\"")}
	if where := importOf(all, chain); where != "b/x.go:3" {
		t.Errorf("imported at %s", where)
	}
}

func TestWrongDependenciesAreFound(t *testing.T) {
	uses := []*source{file(t, "a/x.go", `package a; import _ "example.com/m/pkg"; import "fmt"`)}
	const mod = "module x\n\ngo 1.26.0\n\nrequire example.com/m v1.0.0\n\nrequire (\n\texample.com/n v1.0.0 // indirect\n)\n"
	const good = "# a comment\nexample.com/m it does what we need\n"
	for _, c := range []struct{ name, mod, text, want string }{
		{"as it should be", mod, good, ""},
		{"no line", mod, "", "a/x.go:1: imports example.com/m, which has no line"},
		{"no reason", mod, "example.com/m good", "deps.txt:1: no reason"},
		{"twice", mod, good + good, "deps.txt:4: a second line"},
		{"stale", mod, good + "example.com/n it does that too", "deps.txt:3: a line for example.com/n"},
		{"required by nobody", strings.ReplaceAll(mod, " // indirect", ""), good, "go.mod:8: requires example.com/n"},
		{"not tidy", strings.ReplaceAll(mod, "m v1.0.0", "m v1.0.0 // indirect"), good, "go.mod:5: calls example.com/m indirect"},
	} {
		expect(t, c.name, wrongDeps(uses, requirements(c.mod), c.text), c.want)
	}
}

func TestWrongTextIsFound(t *testing.T) {
	for text, want := range map[string]string{
		"// TO" + "DO: later":           "finish it",
		"cd /wo" + "rk/main":            "one machine",
		"X=${D:-/ro" + "ot/go}":         "one machine",
		"see design/" + "style.md":      "do not have",
		"as shared/" + "design has it":  "do not have",
		"fixes iss" + "ue #12":          "what it is about",
		"the workload, a rooted tree":   "",
		"framework/x, ${ROOT}/work/x":   "",
		"https://example.com/a/work/b.": "",
	} {
		expect(t, text, wrongText("x.md", "first\n"+text+"\n"), want)
		if found := wrongText("x.md", "first\n"+text+"\n"); want != "" && !strings.HasPrefix(found[0], "x.md:2: ") {
			t.Errorf("%q is said to be at %q", text, found)
		}
	}
}
