package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary builds cmd/granary once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "granary-e2e")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "granary")
	out, err := exec.Command("go", "build", "-o", path, "github.com/granarydb/granary/cmd/granary").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

func granary(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// process is one running granary local.
type process struct {
	cmd   *exec.Cmd
	mongo string // host:port
	admin string
	out   *bytes.Buffer
	done  chan struct{}
}

// startLocal starts granary local on a store and waits until it is ready.
func startLocal(t testing.TB, store string, args ...string) *process {
	t.Helper()
	p := &process{mongo: freeAddr(t), admin: freeAddr(t), out: &bytes.Buffer{}, done: make(chan struct{})}
	p.cmd = granary(t, append([]string{"local", "--store", store, "--mongo", p.mongo, "--admin", p.admin}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	t.Cleanup(func() { p.kill() })
	deadline := time.Now().Add(30 * time.Second)
	for !p.ready() {
		select {
		case <-p.done:
			t.Fatalf("granary local ended before it was ready:\n%s", p.out)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.kill()
			t.Fatalf("granary local was not ready after 30 s:\n%s", p.out)
		}
	}
	return p
}

func (p *process) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+"/readyz", nil)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop is SIGTERM; it returns the exit code.
func (p *process) stop(t testing.TB) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.kill()
		t.Fatalf("granary local did not stop within 30 s of SIGTERM:\n%s", p.out)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) uri() string { return "mongodb://" + p.mongo + "/" }

// freeAddr is an address that a process can listen at, also after it was killed and is started
// again: below the ports that systems give to whoever connects.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port between 10000 and 30000")
	return ""
}

// fsck requires a clean deep check of a store that nobody holds at the moment.
func fsck(t testing.TB, store string) {
	t.Helper()
	out, err := granary(t, "fsck", "--deep", "--store", store).CombinedOutput()
	if err != nil {
		t.Fatalf("granary fsck: %v\n%s", err, out)
	}
}

// need skips a test that lacks a program or a folder, or fails it where CI requires it.
func need(t testing.TB, variable, what string) string {
	t.Helper()
	if v := os.Getenv(variable); v != "" {
		return v
	}
	sentence := fmt.Sprintf("%s is not set: it names %s", variable, what)
	if os.Getenv("GRANARY_REQUIRE") != "" {
		t.Fatal(sentence)
	}
	t.Skip(sentence)
	return ""
}
