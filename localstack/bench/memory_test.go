package bench

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

var loadGB = flag.Float64("load-gb", 0.05, "GB of documents that TestMemoryStaysBounded loads, for each kind of collection")

const (
	// residentMax is what a process with a memtable and a cache of 64 MB each may take.
	residentMax = 400 << 20
	// tinyMB is a GOMEMLIMIT that leaves hardly what requests need beside a memtable and a cache
	// of 4 MB each, and tinyMax what is resident then: the program itself comes on top.
	tinyMB  = 60
	tinyMax = (tinyMB*11/10 + 20) << 20
)

// TestMemoryStaysBounded loads granary local with more than it may keep in memory, and reads
// what it took at most. In the second collection the keys come in no order, so that every
// insert has to look into what was flushed before. The third process has as little memory as one
// can have, and is slower, which is all.
func TestMemoryStaysBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds the binary and loads it")
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc/PID/status here: what a process takes is read from there")
	}
	binary := build(t)
	for _, kind := range []string{"unsharded", "6chunks", "tiny"} {
		t.Run(kind, func(t *testing.T) {
			mb, most, docs := 64, int64(residentMax), int64(*loadGB*1e9/docSize)
			if kind == "tiny" {
				t.Setenv("GOMEMLIMIT", fmt.Sprint(tinyMB, "MiB"))
				mb, most, docs = 4, tinyMax, docs/3
			}
			p := start(t, binary, mb)
			client := connect(t, p.addr)
			if kind == "6chunks" {
				shard(t, client, "bench.load", "customer")
			}
			begun := time.Now()
			n := load(t, client, docs)
			spent := time.Since(begun)
			peak := p.peak(t)
			t.Logf("%d documents of %d bytes in %v, %.0f documents/s: %d MB resident at most", n, docSize, spent.Round(time.Second/10), float64(n)/spent.Seconds(), peak>>20)
			if peak > most {
				t.Errorf("%d MB resident, at most %d MB are allowed", peak>>20, most>>20)
			}
			if stored, err := client.Database("bench").Collection("load").EstimatedDocumentCount(context.Background()); err != nil || stored != n {
				t.Errorf("%d documents are there, %d were acknowledged: %v", stored, n, err)
			}
			p.stop(t)
		})
	}
}

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "granary")
	out, err := exec.Command("go", "build", "-o", path, "github.com/granarydb/granary/cmd/granary").CombinedOutput()
	if err != nil {
		t.Fatalf("build granary: %v\n%s", err, out)
	}
	return path
}

// process is a running granary local.
type process struct {
	*exec.Cmd
	addr string
	out  *bytes.Buffer
}

// start runs granary local on an empty directory, with a memtable and a cache of so many MB.
func start(t *testing.T, binary string, mb int) *process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{addr: l.Addr().String(), out: &bytes.Buffer{}}
	l.Close()
	p.Cmd = exec.Command(binary, "local", "--store", "dir:"+t.TempDir(), "--mongo", p.addr, "--admin", "", "--memtable-mb", fmt.Sprint(mb), "--cache-mb", fmt.Sprint(mb))
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// peak is the most memory that was resident, in bytes.
func (p *process) peak(t *testing.T) int64 { return p.status(t, "VmHWM:") }

// resident is the memory that is resident now, in bytes.
func (p *process) resident(t *testing.T) int64 { return p.status(t, "VmRSS:") }

func (p *process) status(t *testing.T, name string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.out)
	}
	_, rest, _ := strings.Cut(string(status), name)
	fields := strings.Fields(rest)
	if len(fields) < 2 || fields[1] != "kB" {
		t.Fatalf("no %s in kB:\n%s", name, status)
	}
	kb, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// stop is SIGTERM.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("granary local ended with %v:\n%s", err, p.out)
	}
}

// load inserts at least so many documents, and returns how many were acknowledged.
func load(t *testing.T, client *mongo.Client, docs int64) int64 {
	t.Helper()
	if err := client.Database("admin").RunCommand(context.Background(), bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
		t.Fatal(err)
	}
	insert := inserter(client, "load", false)
	var begun, stored atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		d := newDocs(uint64(i))
		all.Go(func() {
			for begun.Add(batchDocs) <= docs {
				if err := insert(d); err != nil {
					t.Error(err)
					return
				}
				stored.Add(batchDocs)
			}
		})
	}
	all.Wait()
	return stored.Load()
}
