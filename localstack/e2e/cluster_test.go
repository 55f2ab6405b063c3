package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var clusterLease = flag.Duration("lease", time.Second, "lease of the writers in the tests with several processes")

// role is a place for a process of a cluster: whoever takes it, one after another, listens
// at the same addresses.
type role struct {
	t     testing.TB
	kind  string // "router", "writer"
	name  string // "router1"
	args  []string
	mongo string // of a router
	rpc   string // of a writer
	admin string
	log   string // a file: what all of them said
	// inside is what a process is started by, such as ip netns exec NAME; then its admin
	// address cannot be reached from here.
	inside []string

	cmd  *exec.Cmd
	done chan struct{}
}

// cluster is routers and writers, each a process, on one store.
type cluster struct {
	t       testing.TB
	store   string
	routers []*role
	writers []*role
}

// newCluster makes the roles; start starts them.
func newCluster(t testing.TB, store string, routers, writers int) *cluster {
	t.Helper()
	c := &cluster{t: t, store: store}
	logs := t.TempDir()
	for i := range routers {
		r := &role{t: t, kind: "router", name: fmt.Sprintf("router%d", i+1), mongo: freeAddr(t), admin: freeAddr(t)}
		r.args = []string{"router", "--store", store, "--mongo", r.mongo, "--admin", r.admin}
		c.routers = append(c.routers, r)
	}
	for i := range writers {
		w := &role{t: t, kind: "writer", name: fmt.Sprintf("writer%d", i+1), rpc: freeAddr(t), admin: freeAddr(t)}
		w.args = []string{"writer", "--store", store, "--listen", w.rpc, "--admin", w.admin, "--lease", clusterLease.String()}
		c.writers = append(c.writers, w)
	}
	for _, r := range c.roles() {
		r.log = filepath.Join(logs, r.name)
	}
	t.Cleanup(func() {
		for _, r := range c.roles() {
			r.kill()
			if t.Failed() {
				t.Logf("%s said last:\n%s", r.name, r.said(3000))
			}
		}
	})
	return c
}

// startCluster starts every process, and waits until all shards are served.
func startCluster(t testing.TB, store string, routers, writers int) *cluster {
	t.Helper()
	c := newCluster(t, store, routers, writers)
	for _, r := range c.roles() {
		r.start()
	}
	c.ready()
	return c
}

func (c *cluster) roles() []*role { return append(append([]*role(nil), c.writers...), c.routers...) }

// ready waits for every process that runs.
func (c *cluster) ready() {
	c.t.Helper()
	for _, r := range c.roles() {
		if r.running() {
			r.ready()
		}
	}
}

// uri names all routers.
func (c *cluster) uri() string {
	var at []string
	for _, r := range c.routers {
		at = append(at, r.mongo)
	}
	return "mongodb://" + strings.Join(at, ",") + "/"
}

// client is a driver as applications use it: two addresses, and its defaults.
func (c *cluster) client(routers ...*role) *mongo.Client {
	c.t.Helper()
	uri := c.uri()
	if len(routers) > 0 {
		uri = "mongodb://" + routers[0].mongo + "/?directConnection=true"
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { disconnect(client) })
	return client
}

// shard spreads a collection over four chunks by the names c0 to c7, over all shards.
func (c *cluster) shard(client *mongo.Client, names ...string) {
	c.t.Helper()
	for _, ns := range names {
		err := client.Database("admin").RunCommand(context.Background(), bson.D{
			{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: "c2"}}, bson.D{{Key: "_id", Value: "c4"}}, bson.D{{Key: "_id", Value: "c6"}}}},
		}).Err()
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// clusterStatus is the part of granary status that tests look at.
type clusterStatus struct {
	Shards []struct {
		ID, State, Address string
		Epoch              int
		Chunks             int
	}
	Takeovers []struct{ Shard string }
}

func (c *cluster) status() (s clusterStatus) {
	c.t.Helper()
	out, err := granary(c.t, "status", "--store", c.store, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		c.t.Fatalf("granary status: %v\n%s", err, out)
	}
	return s
}

// holds counts the shards with chunks that the process in a role holds.
func (c *cluster) holds(w *role) (n int) {
	for _, s := range c.status().Shards {
		if s.Address == w.rpc && s.Chunks > 0 {
			n++
		}
	}
	return n
}

func (r *role) start(args ...string) {
	r.t.Helper()
	r.cmd = granary(r.t, slices.Concat(r.args, args)...)
	if len(r.inside) > 0 {
		r.cmd = exec.Command(r.inside[0], slices.Concat(r.inside[1:], r.cmd.Args)...)
	}
	out, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	r.cmd.Stdout, r.cmd.Stderr = out, out
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { defer close(done); _ = cmd.Wait() }(r.cmd, r.done)
}

func (r *role) running() bool {
	if r.cmd == nil {
		return false
	}
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// ready waits until the process says that it is.
func (r *role) ready() {
	r.t.Helper()
	if len(r.inside) > 0 {
		r.saysWithin(60*time.Second, "serves")
		return
	}
	p := &process{admin: r.admin}
	for deadline := time.Now().Add(60 * time.Second); !p.ready(); time.Sleep(5 * time.Millisecond) {
		if !r.running() || time.Now().After(deadline) {
			r.t.Fatalf("%s is not ready, running: %v\n%s", r.name, r.running(), r.said(3000))
		}
	}
}

// said is the end of what the processes in the role printed.
func (r *role) said(max int) string {
	b, _ := os.ReadFile(r.log)
	return string(b[len(b)-min(max, len(b)):])
}

func (r *role) saysWithin(d time.Duration, what string) {
	r.t.Helper()
	for deadline := time.Now().Add(d); !bytes.Contains([]byte(r.said(1<<20)), []byte(what)); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s did not say %q within %v:\n%s", r.name, what, d, r.said(3000))
		}
	}
}

// signal sends a signal; the process must run.
func (r *role) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatalf("%v to %s: %v", s, r.name, err)
	}
}

// kill is kill -9, and returns when the process is gone.
func (r *role) kill() {
	if r.running() {
		_ = r.cmd.Process.Kill()
		<-r.done
	}
}

func (r *role) pause()  { r.signal(syscall.SIGSTOP) }
func (r *role) resume() { r.signal(syscall.SIGCONT) }

// stop is SIGTERM, and requires that the process ends well.
func (r *role) stop() (took time.Duration) {
	r.t.Helper()
	start := time.Now()
	r.signal(syscall.SIGTERM)
	select {
	case <-r.done:
	case <-time.After(30 * time.Second):
		r.t.Fatalf("%s did not stop within 30 s of SIGTERM:\n%s", r.name, r.said(3000))
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.t.Errorf("%s: exit code %d after SIGTERM:\n%s", r.name, code, r.said(3000))
	}
	return time.Since(start)
}
