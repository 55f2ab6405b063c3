package archtest

import (
	"fmt"
	"path"
	"strings"
	"testing"
)

// row says which packages of this module a directory, and those below it that have no row
// of their own, may import. "x/..." is x and all below it. Every package may import those
// that its row names, and nothing else: truth at the bottom, bytes above it, peers that meet
// only in the bucket, assembly on top. A row comes with its package and goes with it.
type row struct {
	dir string
	may []string
	why string
}

var (
	truth = []string{"manifest", "manifest/errkind", "manifest/host", "manifest/mutant", "manifest/shardkey"}
	port  = []string{"chunkstore/bucket", "manifest/errkind", "manifest/host"}
)

func with(lists ...[]string) (out []string) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// table is a list of rows; the deepest row that a directory is in counts.
type table []row

// importTable is about what a package is built of; its tests may import more (see testMay).
var importTable = table{
	{"manifest/errkind", nil, "every layer, and a foreign driver, can use the kinds"},
	{"manifest/host", nil, "the clock and the dice know nothing of what is done with them"},
	{"manifest/mutant", nil, "a switch that an ordinary build does not have"},
	{"manifest/shardkey", []string{"manifest/errkind"}, "keys are a pure function of documents"},
	{"manifest/manifesttest", truth, "states as text, for tests of the manifest and of roles"},
	{"manifest/balancing", truth, "records of the root that commands write and balancers follow, in types"},
	{"manifest", truth, "the truth depends on nothing above it: a bucket reaches it as a two-method cell"},

	{"chunkstore/bucket", port, "the port knows no driver and no user"},
	{"chunkstore/bucket/open", with(port, []string{"chunkstore/bucket/..."}), "the one place that knows all drivers"},
	{"chunkstore/bucket/buckettest", with(port, []string{"chunkstore/bucket/membucket"}), "bad stores are spoiled memory"},
	{"chunkstore/bucket/faultbucket", with(port, []string{"chunkstore/bucket/layer"}), "shares the verbs with the metrics"},
	{"chunkstore/bucket/dirbucket", port, "a driver knows the port only"},
	{"chunkstore/bucket/membucket", port, "a driver knows the port only"},
	{"chunkstore/bucket/layer", port, "a decorator knows the port only"},
	{"chunkstore/bucket/s3wire", port, "what S3's answers mean, without a client of it"},
	{"chunkstore/bucket/s3bucket", with(port, []string{"chunkstore/bucket/s3wire"}), "a driver: the AWS SDK, and the meaning that it shares"},
	{"chunkstore/bucket/miniobucket", with(port, []string{"chunkstore/bucket/s3wire"}), "a driver: MinIO's client, and the meaning that it shares"},
	{"chunkstore/bucket/s3test", with(port, []string{"chunkstore/bucket/membucket"}), "S3 for tests is memory behind HTTP"},
	{"chunkstore/places", with(truth, port), "opens what the root names, by a function that is handed in"},
	{"chunkstore/mongoerr", nil, "codes are data"},
	{"chunkstore/admission", []string{"manifest/errkind", "manifest/host", "chunkstore/mongoerr"}, "counts requests and bytes, whatever they are"},
	{"chunkstore/alarm", []string{"manifest/errkind", "manifest/host"}, "hears errors, whatever found them"},
	{"chunkstore/document", []string{"chunkstore/document/...", "chunkstore/mongoerr", "manifest/shardkey", "manifest/errkind"}, "what documents mean, without where they are"},
	{"chunkstore/expiry", with(truth, []string{"chunkstore/document/...", "chunkstore/mongoerr"}), "a rule over documents, asked by whoever reads or removes them"},
	{"chunkstore/segment", truth, "a file format: bytes in, bytes out; fetching is handed in"},
	{"chunkstore/wal", with(truth, port, []string{"chunkstore/segment"}), "records share the retry entries with segments"},
	{"chunkstore/reader", with(truth, port, []string{"chunkstore/expiry", "chunkstore/segment"}), "a chunk at one root version"},
	{"chunkstore/reader/query", with(truth, []string{"chunkstore/admission", "chunkstore/reader", "chunkstore/segment", "chunkstore/document/...", "chunkstore/mongoerr", "chunkstore/writer/rpc"}), "answers the rpc's queries over the reader's views, at the owner and at a router"},
	{"chunkstore/writer/rpc", with(truth, []string{"chunkstore/admission", "chunkstore/alarm", "chunkstore/mongoerr"}), "what routers and owners say to one another; no storage"},
	{"chunkstore/writer", with(truth, []string{"chunkstore/..."}), "the shard owner puts the bytes together"},
	{"chunkstore/backup", with(truth, []string{"chunkstore/bucket"}), "copies objects, and looks into none but the root"},
	{"chunkstore/reshard", with(truth, port, []string{"chunkstore/mongoerr", "chunkstore/reader", "chunkstore/segment", "chunkstore/writer"}), "rewrites a collection beside its owners; what becomes of retry entries is the owner's to say"},
	{"chunkstore/audit", with(truth, []string{"chunkstore/..."}), "reads every kind of object, in every location"},
	{"chunkstore/audit/audittest", with(truth, []string{"chunkstore/segment"}), "looks for a word in objects, for tests of what keeps it away"},
	{"chunkstore/repair", with(truth, []string{"chunkstore/..."}), "what fsck finds, it mends: every kind of object"},
	{"chunkstore/fsck", with(truth, []string{"chunkstore/..."}), "looks at every kind of object"},

	{"router/plan", with(truth, []string{"chunkstore/document/..."}), "values in, values out"},
	{"router/wire", []string{"manifest/errkind", "manifest/host", "chunkstore/admission", "chunkstore/mongoerr", "chunkstore/document"}, "a protocol server: commands are handed in"},
	{"router/command", with(truth, []string{"manifest/balancing", "router", "router/plan", "router/wire", "chunkstore/admission", "chunkstore/alarm", "chunkstore/document/...", "chunkstore/expiry", "chunkstore/mongoerr", "chunkstore/reshard", "chunkstore/writer/rpc"}), "a command knows the router, not the stores behind it"},
	{"router/routertest", with(truth, []string{"router", "chunkstore/..."}), "a cluster in a process, for the router's tests"},
	{"router", with(truth, port, []string{"manifest/balancing", "router/plan", "chunkstore/admission", "chunkstore/document/...", "chunkstore/expiry", "chunkstore/mongoerr", "chunkstore/reader/...", "chunkstore/reshard", "chunkstore/writer/rpc"}), "a role: meets others in the manifest and over the writer's client; no concrete bucket"},
	{"compactor", with(truth, port, []string{"compactor/...", "chunkstore/admission", "chunkstore/alarm", "chunkstore/bucket/layer", "chunkstore/reader/...", "chunkstore/segment", "chunkstore/document/...", "chunkstore/expiry", "chunkstore/writer/rpc", "chunkstore/wal", "chunkstore/mongoerr"}), "a role: no other role, no concrete bucket"},
	{"balancer", with(truth, []string{"balancer/policy", "manifest/balancing", "chunkstore/writer/rpc"}), "a role: asks owners, and meets the others in the manifest"},
	{"balancer/policy", with(truth, []string{"manifest/balancing"}), "values in, values out"},

	{"localstack", []string{"manifest/...", "chunkstore/...", "router/...", "compactor/...", "balancer/...", "localstack/..."}, "all roles in one process, and their proving ground"},
	{"cmd", []string{"manifest/...", "chunkstore/...", "router/...", "compactor/...", "balancer/...", "localstack/...", "cmd/..."}, "settings and components meet here"},
}

// testMay is what tests may import beyond their package's row.
var testMay = map[string]string{
	"chunkstore/bucket":           "what is handed in as a function comes from a bucket in tests",
	"chunkstore/bucket/membucket": "the real thing over mocks: the store of most tests",
	"chunkstore/bucket/layer":     "requests are counted in tests",
	"chunkstore/places":           "what is handed in as a function opens locations in tests",
	"chunkstore/bucket/dirbucket": "where memory is measured, the store is on disk",
	"chunkstore/bucket/diskcache": "what a cache got wrong, only who reads the bytes can find",
}

const importFile = "imports_test.go"

func TestImportsFollowTheTable(t *testing.T) { check(t, wrongImports) }

func wrongImports(s *source) (found []string) {
	for _, i := range s.imports() {
		var why string
		switch {
		case within(i.path, modulePath):
			why = wrongOwn(s, strings.TrimPrefix(strings.TrimPrefix(i.path, modulePath), "/"))
		case strings.Contains(strings.Split(i.path, "/")[0], "."):
			why = wrongModule(s, i.path)
		default:
			why = wrongStandard(s, i.path)
		}
		if why != "" {
			found = append(found, finding(i.at, "imports "+i.path, "%s", why))
		}
		if i.name == "." {
			found = append(found, finding(i.at, "imports "+i.path+" with a dot", "import it under its name, so that one sees where names are from"))
		}
	}
	return found
}

func (t table) of(dir string) *row {
	var best *row
	for i := range t {
		if r := &t[i]; within(dir, r.dir) && (best == nil || len(r.dir) > len(best.dir)) {
			best = r
		}
	}
	return best
}

func wrongOwn(s *source, to string) string {
	dir := s.dir()
	if to == dir && s.test {
		return "" // the external test of a package
	}
	r := importTable.of(dir)
	if r == nil {
		return "the package has no row in importTable (" + importFile + "): add one with its reason"
	}
	for _, m := range r.may {
		base, tree := strings.CutSuffix(m, "/...")
		if to == base || tree && within(to, base) {
			return ""
		}
	}
	if s.test && (testMay[to] != "" || strings.HasSuffix(to, "test") || fault(to) || within(dir, "localstack")) {
		return ""
	}
	return fmt.Sprintf("its row (%s, %s) allows %s, because %s; do without, or change the row and its reason",
		r.dir, rowAt(importFile, r.dir), strings.Join(r.may, " "), r.why)
}

// fault: faultbucket is for tests wherever it is imported.
func fault(to string) bool { return path.Base(to) == "faultbucket" }

// Every row is about a package that exists, names packages that exist, and has a reason: a
// row left over is a door left open.
func TestImportTableIsUsed(t *testing.T) { report(t, unusedRows(importTable, sources(t))) }

func unusedRows(rows table, all []*source) (found []string) {
	dirs, used := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		if r := rows.of(s.dir()); r != nil {
			used[r.dir] = true
		}
		if !s.test {
			dirs[s.dir()] = true
		}
	}
	for _, r := range rows {
		where := rowAt(importFile, r.dir)
		if r.why == "" {
			found = append(found, finding(where, "the row of "+r.dir+" has no reason", "give one"))
		}
		if !used[r.dir] {
			found = append(found, finding(where, "the row of "+r.dir+" is about no package", "delete it; a row comes with its package"))
		}
		for _, m := range r.may {
			base, tree := strings.CutSuffix(m, "/...")
			ok := dirs[base]
			for d := range dirs {
				ok = ok || tree && within(d, base)
			}
			if !ok {
				found = append(found, finding(where, "the row of "+r.dir+" allows "+m, "there is no such package: delete the word"))
			}
		}
	}
	return found
}

// Roles never import one another, whatever the table came to say.
func TestRolesMeetOnlyInTheManifest(t *testing.T) { report(t, roleMeetings(importTable)) }

func roleMeetings(rows table) (found []string) {
	roles := []string{"router", "compactor", "balancer"}
	for _, r := range rows {
		for _, role := range roles {
			for _, other := range roles {
				for _, m := range r.may {
					if role != other && within(r.dir, role) && within(strings.TrimSuffix(m, "/..."), other) {
						found = append(found, finding(rowAt(importFile, r.dir), "the row of "+r.dir+" allows "+m, "roles meet only in the manifest"))
					}
				}
			}
		}
	}
	return found
}
