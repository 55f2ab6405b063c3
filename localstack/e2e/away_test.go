package e2e

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var away = flag.Duration("away", 3*time.Second, "how long the store is away in TestTheStoreIsAway, each time")

// residentMax is what a process may have in memory with its default flags: memtables, cache,
// and what is beside them.
const residentMax = (64 + 64 + 192) << 20 * 11 / 10

// resident is a process's memory in bytes.
func (r *role) resident() int64 {
	r.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(status)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == "VmRSS:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// TestTheStoreIsAway takes the store away from a cluster under load, twice: as a server that
// accepts connections and answers nothing, and as one that is gone. Meanwhile nothing is
// acknowledged and memory stays bounded; when it is back, so is the cluster, soon, and what
// clients were told is true.
func TestTheStoreIsAway(t *testing.T) {
	s3 := startS3(t, freeAddr(t))
	c := startCluster(t, s3.url(os.Getenv("GRANARY_S3DRIVER")), 2, 3)
	c.shard(c.client(), "load.things")
	log := startCopy(newView(t, c.store))
	d := startDocuments(t, documentsOptions{perGroup: 5, perDoc: 300, patience: 3 * time.Second, pad: 20_000}, c.uri())
	d.settle(t, d.mark())
	for _, way := range []struct {
		name       string
		leave, end func()
	}{
		{"it answers nothing", s3.pause, s3.resume},
		{"it is gone", s3.kill, s3.start},
	} {
		time.Sleep(time.Second)
		way.leave()
		time.Sleep(500 * time.Millisecond) // answers that were on their way
		changed, failed := d.changed.Load(), d.failed.Load()
		var most int64
		for since := time.Now(); time.Since(since) < *away; time.Sleep(100 * time.Millisecond) {
			for _, r := range c.roles() {
				if most = max(most, r.resident()); !r.running() {
					t.Fatalf("%s has ended", r.name)
				}
			}
		}
		if n := d.changed.Load() - changed; n != 0 {
			t.Errorf("%s: %d changes were acknowledged without a store", way.name, n)
		}
		if most > residentMax {
			t.Errorf("%s: a process had %d MB in memory", way.name, most>>20)
		}
		way.end()
		mark := d.mark()
		first := d.firstOf(mark)
		all := d.settle(t, mark)
		t.Logf("%s, for %v: %d operations without an answer, at most %d MB in memory; back %v after it, all clients %v after it",
			way.name, *away, d.failed.Load()-failed, most>>20, first.Round(time.Millisecond), all.Round(time.Millisecond))
		if first > 5*time.Second {
			t.Errorf("%s: the first acknowledgement came %v after it was back", way.name, first)
		}
	}
	d.stop()
	log.stop()
	d.check(t, log)
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, c.store)
}
