package e2e

import (
	"encoding/json"
	"errors"
	"math"
	"os/exec"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/chunkstore/repair"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// catastrophe is a store on which real processes work, and from which objects are taken.
type catastrophe struct {
	t      *testing.T
	store  string
	bucket bucket.Bucket
}

// insert writes documents with ids from on, each acknowledged.
func (d *catastrophe) insert(p *process, from, to int) {
	d.t.Helper()
	c := connect(d.t, p)
	defer disconnect(c)
	var docs []any
	for id := from; id < to; id++ {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: strings.Repeat("x", 100)}})
	}
	if _, err := c.Database("shop").Collection("orders").InsertMany(d.t.Context(), docs); err != nil {
		d.t.Fatal(err)
	}
}

// ids are those of the documents that a new process on a store finds.
func (d *catastrophe) ids(store string) map[int]bool {
	d.t.Helper()
	p := startLocal(d.t, store, "--lease", "200ms")
	defer p.stop(d.t)
	c := connect(d.t, p)
	defer disconnect(c)
	cur, err := c.Database("shop").Collection("orders").Find(d.t.Context(), bson.D{})
	if err != nil {
		d.t.Fatal(err)
	}
	var docs []struct {
		ID int `bson:"_id"`
	}
	if err := cur.All(d.t.Context(), &docs); err != nil {
		d.t.Fatal(err)
	}
	ids := make(map[int]bool)
	for _, x := range docs {
		ids[x.ID] = true
	}
	return ids
}

// run runs a command on the store, and returns its exit code.
func (d *catastrophe) run(args ...string) (out string, code int) {
	d.t.Helper()
	cmd := granary(d.t, args...)
	var exit *exec.ExitError
	text, err := cmd.Output()
	if errors.As(err, &exit) {
		return string(text) + string(exit.Stderr), exit.ExitCode()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text), 0
}

func (d *catastrophe) keys(prefix string) (keys []string) {
	d.t.Helper()
	for after := ""; ; {
		page, more, err := d.bucket.List(d.t.Context(), prefix, after, 0)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, o := range page {
			keys, after = append(keys, o.Key), o.Key
		}
		if !more {
			return keys
		}
	}
}

func (d *catastrophe) lose(keys ...string) {
	d.t.Helper()
	if len(keys) == 0 {
		d.t.Fatal("nothing to lose")
	}
	for _, key := range keys {
		if err := d.bucket.Delete(d.t.Context(), key); err != nil {
			d.t.Fatal(err)
		}
	}
}

// Real processes on a real store, killed, and then the root is lost, a segment, all logs, and
// everything: what can be got back is, to the last acknowledged write; of everything else each
// document that is gone is named, and nothing but it; and a backup brings back what it has.
func TestWhatIsLostIsHealedOrNamed(t *testing.T) {
	store := newStore(t)
	b, err := open.URL(t.Context(), store, host.System())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	d := &catastrophe{t: t, store: store, bucket: b}
	backups := "dir:" + t.TempDir()

	p := startLocal(t, store, "--lease", "200ms")
	c := connect(t, p)
	for _, command := range []bson.D{
		{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 100}}}},
	} {
		if err := c.Database("admin").RunCommand(t.Context(), command).Err(); err != nil {
			t.Fatal(err)
		}
	}
	d.insert(p, 0, 100)
	// Its copy of the root knows the collection; those of commits are a minute apart.
	if err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "createSnapshot", Value: "s"}}).Err(); err != nil {
		t.Fatal(err)
	}
	disconnect(c)
	d.insert(p, 100, 200) // in a log only
	p.kill()

	d.lose(manifest.RootKey)
	if out, code := d.run("repair", "--store", store); code != 3 || !strings.Contains(out, "--yes") {
		t.Errorf("a lost root, looked at: exit code %d: %s", code, out)
	}
	if out, code := d.run("repair", "--yes", "--fence", "--store", store); code != 0 {
		t.Fatalf("a lost root: exit code %d: %s", code, out)
	}
	if ids := d.ids(store); len(ids) != 200 { // its end has all flushed
		t.Errorf("a lost root: %d documents of 200 came back", len(ids))
	}
	fsck(t, store)
	if out, code := d.run("snapshot", "drop", "s", "--store", store); code != 0 {
		t.Fatalf("snapshot drop: %s", out)
	}
	if out, code := d.run("backup", "--store", store, "--to", backups, "--name", "whole"); code != 0 {
		t.Fatalf("backup: %s", out)
	}

	named := d.namedLoss(d.referenced())
	ids := d.ids(store)
	for id := range 200 {
		if ids[id] == named(id) {
			t.Errorf("a lost segment: document %d is there: %t, is named: %t", id, ids[id], named(id))
		}
	}
	fsck(t, store)

	d.lose(d.keys("")...)
	if out, code := d.run("fsck", "--store", store); code == 0 || !strings.Contains(out, "granary init") {
		t.Errorf("everything is lost: exit code %d: %s", code, out)
	}
	if out, code := d.run("restore", "--from", backups, "--name", "whole", "--store", store); code != 0 {
		t.Fatalf("restore: %s", out)
	}
	if ids := d.ids(store); len(ids) != 200 {
		t.Errorf("restored: %d documents of 200", len(ids))
	}
	fsck(t, store)
}

// referenced is a segment that the root refers to.
func (d *catastrophe) referenced() string {
	d.t.Helper()
	s, _, err := manifest.NewRoot(bucket.NewCell(d.bucket), host.System(), nil).Load(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for c := range s.AllChunks() {
		if len(c.Refs) > 0 {
			return c.Refs[0].Segment.Key()
		}
	}
	d.t.Fatal("no segment is referred to")
	return ""
}

// namedLoss loses an object, and returns which documents a repair names, which gives them up when it
// is told to, and not before.
func (d *catastrophe) namedLoss(key string) (named func(id int) bool) {
	d.t.Helper()
	d.lose(key)
	out, code := d.run("repair", "--store", d.store, "-o", "json")
	var r repair.Report
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil || code != 3 || len(r.Lost) == 0 {
		d.t.Fatalf("%s is gone: exit code %d, %v: %s", key, code, err, out)
	}
	for _, x := range r.Lost {
		if x.Object != key {
			d.t.Errorf("%s is gone, and %s is named", key, x.Object)
		}
	}
	if out, code := d.run("repair", "--yes", "--fence", "--store", d.store); code == 0 {
		d.t.Errorf("given up unasked: %s", out)
	}
	if out, code := d.run("repair", "--yes", "--fence", "--accept-loss", "--store", d.store); code != 0 && code != 3 {
		d.t.Errorf("accepted as lost: exit code %d: %s", code, out)
	}
	return func(id int) bool {
		for _, x := range r.Lost {
			for _, k := range x.AtStake {
				if id >= bound(k.Min, math.MinInt) && id < bound(k.Max, math.MaxInt) {
					return true
				}
			}
		}
		return false
	}
}

// bound is the _id of one, or without when it is an end of the key space.
func bound(doc json.RawMessage, without int) int {
	var x struct {
		ID json.RawMessage `json:"_id"`
	}
	id := 0
	if json.Unmarshal(doc, &x) != nil || json.Unmarshal(x.ID, &id) != nil {
		return without
	}
	return id
}
