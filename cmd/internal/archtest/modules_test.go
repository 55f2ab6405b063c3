package archtest

import (
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// moduleTable says in which files and directories foreign packages may be used: those at or
// below prefix. What has no row may be used in tests only, which may use all that deps.txt
// names.
var moduleTable = []moduleRow{
	{"github.com/anishathalye/porcupine", []string{"localstack/history"}, "the model and its checker are one thing"},
	{"github.com/aws/aws-sdk-go-v2", []string{"chunkstore/bucket/s3bucket"}, "a store's client is known to its driver only"},
	{"github.com/cespare/xxhash/v2", []string{"chunkstore/segment", "chunkstore/writer", "router"}, "one hash for filters, latches and lanes"},
	{"github.com/klauspost/compress", []string{"manifest/frame.go", "chunkstore/segment/codec.go"}, "compression belongs to formats; the log uses the segment's codec"},
	{"github.com/minio/minio-go/v7", []string{"chunkstore/bucket/miniobucket"}, "a store's client is known to its driver only"},
	{"github.com/prometheus/client_golang", []string{"cmd/granary"}, "roles give numbers, the binary publishes them"},
	{"github.com/tidwall/btree", []string{"chunkstore/bucket/membucket", "chunkstore/writer"}, "ordered maps are for what is in memory"},
	{"github.com/urfave/cli/v3", []string{"cmd/granary"}, "flags are read in one place"},
	{"go.mongodb.org/mongo-driver/v2/bson", []string{"manifest", "chunkstore", "router", "localstack"}, "documents are BSON everywhere; the driver's client is a test peer"},
	{"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore", []string{"manifest", "chunkstore", "router"}, "documents are built and cut without reflection"},
	{"golang.org/x/sync", []string{"localstack"}, "roles run side by side where they are put together"},
}

type moduleRow struct {
	prefix string
	places []string
	why    string
}

const moduleFile = "modules_test.go"

func moduleRowOf(p string) *moduleRow {
	for i := range moduleTable {
		if within(p, moduleTable[i].prefix) {
			return &moduleTable[i]
		}
	}
	return nil
}

func wrongModule(s *source, p string) string {
	if !s.product() {
		return ""
	}
	r := moduleRowOf(p)
	switch {
	case r == nil:
		return "no row of moduleTable (" + moduleFile + ") lets the product use it: do without, or add a row with its reason"
	case s.anyOf(r.places):
		return ""
	}
	return fmt.Sprintf("only %s may (%s), because %s", strings.Join(r.places, ", "), rowAt(moduleFile, r.prefix), r.why)
}

func TestModuleTableIsUsed(t *testing.T) { report(t, unusedModules(moduleTable, sources(t))) }

func unusedModules(rows []moduleRow, all []*source) (found []string) {
	for _, r := range rows {
		if r.why == "" {
			found = append(found, finding(rowAt(moduleFile, r.prefix), "the row of "+r.prefix+" has no reason", "give one"))
		}
		for _, place := range r.places {
			used := slices.ContainsFunc(all, func(s *source) bool {
				return s.product() && within(s.path, place) &&
					slices.ContainsFunc(s.imports(), func(i imported) bool { return within(i.path, r.prefix) })
			})
			if !used {
				found = append(found, finding(rowAt(moduleFile, r.prefix), place+" does not use "+r.prefix, "delete the place from the row"))
			}
		}
	}
	return found
}

// standardTable bans packages of the standard library where they would mean a wrong turn.
var standardTable = []struct {
	dir    string
	banned []string
	except []string
	why    string
}{
	{"manifest", outside, []string{"manifest/manifesttest"}, "the truth does no I/O"},
	{"chunkstore/document", outside, nil, "meaning does no I/O"},
	{"chunkstore/segment", outside, nil, "fetching is handed in"},
}

// outside is everything by which a package reaches out of its process.
var outside = []string{"os", "net", "net/http", "syscall", "os/exec"}

func wrongStandard(s *source, p string) string {
	if s.test {
		return ""
	}
	if p == "testing" && !s.testPackage() {
		return "only tests and packages named ...test know of testing"
	}
	if last := path.Base(s.dir()); (last == "plan" || last == "policy") && (p == "context" || p == "os" || p == "time") {
		return "plans are values in, values out: no context, clock or I/O"
	}
	for _, r := range standardTable {
		if within(s.dir(), r.dir) && !s.anyOf(r.except) && slices.Contains(r.banned, p) {
			return r.why + ": hand in what you need of it"
		}
	}
	return ""
}

// lean are packages that must start fast and stay small, whatever they import in the end:
// a router is a function's cold start, and the writer comes with it.
var lean = []string{"router", "router/wire", "router/command", "chunkstore/writer"}

// heavy is what they must not pull in.
var heavy = []string{"github.com/prometheus", "github.com/urfave/cli", "github.com/parquet-go/parquet-go", "github.com/apache/arrow-go", "github.com/apache/arrow", "github.com/aws", "github.com/minio"}

// TestLeanPackagesStayLean asks the go command for everything that the lean packages are
// built of. The binary uses two of the heavy ones, which shows that the question works.
func TestLeanPackagesStayLean(t *testing.T) {
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = top
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps ./...: %v", err)
	}
	graph := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		graph[f[0]] = f[1:]
	}
	for _, pkg := range lean {
		if _, ok := graph[modulePath+"/"+pkg]; !ok {
			t.Error(finding(rowAt(moduleFile, pkg), "there is no package "+pkg, "take it out of lean"))
		}
		for _, h := range heavy {
			if chain := reaches(graph, modulePath+"/"+pkg, h); chain != nil {
				t.Error(finding(importOf(sources(t), chain), "makes "+pkg+" depend on "+h, "break the chain %s", strings.Join(chain, " -> ")))
			}
		}
	}
	for _, h := range heavy[:2] {
		if reaches(graph, modulePath+"/cmd/granary", h) == nil {
			t.Error(finding(rowAt(moduleFile, "github.com/prometheus"), "cmd/granary does not depend on "+h, "look whether this test still sees anything"))
		}
	}
}

// reaches is a shortest way from a package to one at or below prefix; nil when there is none.
func reaches(graph map[string][]string, from, prefix string) []string {
	came := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		if within(p, prefix) {
			var chain []string
			for ; p != ""; p = came[p] {
				chain = append(chain, p)
			}
			slices.Reverse(chain)
			return chain
		}
		for _, next := range graph[p] {
			if _, seen := came[next]; !seen {
				came[next] = p
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// importOf is where the last package of ours in a chain imports the next one.
func importOf(all []*source, chain []string) string {
	where := at("go.mod", 1)
	for i := 0; i+1 < len(chain) && within(chain[i], modulePath); i++ {
		for _, s := range all {
			for _, imp := range s.imports() {
				if !s.test && modulePath+"/"+s.dir() == chain[i] && imp.path == chain[i+1] {
					where = imp.at
				}
			}
		}
	}
	return where
}
