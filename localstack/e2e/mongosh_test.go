package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mongosh runs a script or an expression and returns what it printed.
func mongosh(t testing.TB, uri string, args ...string) (string, error) {
	t.Helper()
	program := need(t, "GRANARY_MONGOSH", "the mongosh program (npm install mongosh)")
	cmd := exec.Command(program, append([]string{uri, "--quiet"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestMongoshSession inserts two real files' documents, finds, sorts, counts, pages,
// updates and deletes, on a collection of several chunks over three shards; then the same
// documents are there in a second process after kill -9.
func TestMongoshSession(t *testing.T) {
	need(t, "GRANARY_VEGA", "the data folder of the npm package vega-datasets")
	store := "dir:" + t.TempDir()
	p := startLocal(t, store)
	out, err := mongosh(t, p.uri(), "--file", "testdata/check.js", "--file", "testdata/foundation.js")
	if err != nil || !strings.Contains(out, "SESSION OK") {
		t.Fatalf("session: %v\n%s", err, out)
	}
	count := `const d = db.getSiblingDB("vega"); print(d.movies.countDocuments(), d.zips.countDocuments(), d.zips.find().toArray().length)`
	before, err := mongosh(t, p.uri(), "--eval", count)
	if err != nil {
		t.Fatalf("count: %v\n%s", err, before)
	}
	p.kill()
	fsck(t, store)
	p = startLocal(t, store)
	after, err := mongosh(t, p.uri(), "--eval", count)
	if err != nil || after != before {
		t.Fatalf("after kill -9: %v: %q, before %q", err, after, before)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, p.out)
	}
	fsck(t, store)
}

// TestReadmeQueriesRun pastes every js block of the README into mongosh.
func TestReadmeQueriesRun(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```js\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no js block")
	}
	need(t, "GRANARY_MONGOSH", "the mongosh program (npm install mongosh)")
	p := startLocal(t, "mem:")
	for _, b := range blocks {
		out, err := mongosh(t, p.uri()+"shop", "--eval", string(b[1]))
		if err != nil || strings.Contains(out, "Error") {
			t.Errorf("%v\n%s\n%s", err, b[1], out)
		}
	}
}

// runScript has a real mongosh run a script of testdata against a fresh cluster, which must say that
// all of it held, and the store must be clean afterwards.
func runScript(t *testing.T, script, says string, args ...string) string {
	t.Helper()
	need(t, "GRANARY_MONGOSH", "the mongosh program (npm install mongosh)")
	store := "dir:" + t.TempDir()
	p := startLocal(t, store, args...)
	out, err := mongosh(t, p.uri(), "--file", "testdata/check.js", "--file", "testdata/"+script)
	if err != nil || !strings.Contains(out, says) {
		t.Fatalf("%s: %v\n%s\n%s", script, err, out, p.out)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, p.out)
	}
	fsck(t, store)
	return out
}

// TestQueriesAskTheRightShards: equality, ranges, $in, fields outside of the key, sorts, on a
// ranged and on a hashed collection, and what mongosh shows of them.
func TestQueriesAskTheRightShards(t *testing.T) {
	t.Parallel()
	runScript(t, "targeting.js", "TARGETING OK")
}

// TestEveryShardingHelper runs the sh helpers of mongosh: none is unknown to the server. The log
// has the table of them.
func TestEveryShardingHelper(t *testing.T) {
	t.Parallel()
	t.Log(runScript(t, "helpers.js", "HELPERS OK"))
}

// TestKeysOfCollectionsThatHoldDocuments chooses and refines shard keys of populated
// collections, and reads what is said about them.
func TestKeysOfCollectionsThatHoldDocuments(t *testing.T) {
	t.Parallel()
	runScript(t, "keys.js", "KEYS OK")
}

// splitsMax is what 1440 splits by single commands may take. On a machine that does nothing
// else it is less than 5 s.
var splitsMax = flag.Duration("splits", time.Minute, "what 1440 splits by single commands may take")

// TestSnippetsOfIntroductionsRun types what introductions to sharding show: keys of every kind,
// a chunk for each minute of a day, the inbox, the identities.
func TestSnippetsOfIntroductionsRun(t *testing.T) {
	t.Setenv("GRANARY_SPLIT_MS", fmt.Sprint(splitsMax.Milliseconds()))
	t.Log(runScript(t, "snippets.js", "SNIPPETS OK"))
}
