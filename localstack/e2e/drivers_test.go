package e2e

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// session is a program of testdata that works through a driver, beside a model in memory.
type session struct {
	name string
	cmd  []string
	env  []string
	file string // what it must find again
}

// sessions are those of the drivers that this machine has.
func sessions(t testing.TB) (list []session) {
	t.Helper()
	dir := t.TempDir()
	if modules := os.Getenv("GRANARY_NODE"); modules != "" {
		list = append(list, session{"node", []string{"node", "testdata/drivers/session.js"}, []string{"NODE_PATH=" + modules}, filepath.Join(dir, "node")})
	} else {
		t.Log("without Node.js: GRANARY_NODE is not set: it names the folder node_modules with the package mongodb")
	}
	if python := os.Getenv("GRANARY_PYMONGO"); python != "" {
		list = append(list, session{"pymongo", []string{python, "testdata/drivers/session.py"}, nil, filepath.Join(dir, "python")})
	} else {
		t.Log("without PyMongo: GRANARY_PYMONGO is not set: it names a Python with the package pymongo")
	}
	if len(list) == 0 {
		need(t, "GRANARY_NODE", "the folder node_modules with the package mongodb")
	}
	return list
}

// run runs one phase; at the line that asks for it, it kills a router and starts another.
func (s session) run(t testing.TB, c *cluster, phase string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.cmd[0], append(s.cmd[1:], c.uri(), phase, s.file)...)
	cmd.Env = append(os.Environ(), s.env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if lines.Text() == "KILL A ROUTER" {
			time.Sleep(100 * time.Millisecond)
			c.routers[0].kill()
			time.Sleep(300 * time.Millisecond)
			c.routers[0].start()
		}
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(said[len(said)-1], "SESSION OK") {
		t.Fatalf("%s, %s: %v\n%s", s.name, phase, err, strings.Join(said, "\n"))
	}
	t.Logf("%s, %s: %s", s.name, phase, said[len(said)-1])
	c.ready()
}

// TestDriversAndOnlyTheBucketIsLeft runs the sessions of Node.js, PyMongo and mongosh against
// two routers and three writers, which die, and a router of which dies under way; then new
// processes, of which only the bucket is known, serve every document.
func TestDriversAndOnlyTheBucketIsLeft(t *testing.T) {
	list := sessions(t)
	store := newStore(t)
	c := startCluster(t, store, 2, 3)
	for _, s := range list {
		s.run(t, c, "work")
	}
	before := foundation(t, c)
	for _, r := range c.roles() {
		r.kill()
		os.Remove(r.log) // the only file of its own
	}
	fsck(t, store)
	c = startCluster(t, store, 2, 3)
	for _, s := range list {
		s.run(t, c, "again")
	}
	if after := vegaCounts(t, c); after != before {
		t.Errorf("mongosh's documents: %s, before %s", after, before)
	}
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, store)
}

// foundation runs mongosh's session, where there is a mongosh, and returns what it left.
func foundation(t testing.TB, c *cluster) string {
	t.Helper()
	if os.Getenv("GRANARY_MONGOSH") == "" || os.Getenv("GRANARY_VEGA") == "" {
		return vegaCounts(t, c)
	}
	out, err := mongosh(t, c.uri(), "--file", "testdata/check.js", "--file", "testdata/foundation.js")
	if err != nil || !strings.Contains(out, "SESSION OK") {
		t.Fatalf("mongosh: %v\n%s", err, out)
	}
	return vegaCounts(t, c)
}

// vegaCounts counts what mongosh's session leaves.
func vegaCounts(t testing.TB, c *cluster) string {
	t.Helper()
	var counts []string
	for _, name := range []string{"movies", "zips"} {
		n, err := c.client().Database("vega").Collection(name).CountDocuments(context.Background(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, strconv.FormatInt(n, 10))
	}
	return strings.Join(counts, " ")
}
