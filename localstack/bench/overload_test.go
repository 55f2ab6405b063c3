package bench

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var overloadFor = flag.Duration("overload", 10*time.Second, "how long TestOverload overloads the process")

// limitMiB is what the process may have: its memtables, its cache, and what requests need.
const limitMiB = 320

// delayed makes a store as slow as S3 is: log-normal, PUT 30 and 70 ms, GET 25 and 75 ms at the
// 50th and 99th of a hundred.
func delayed(h http.Handler) http.Handler {
	const p99 = 2.326
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		half, most := 25.0, 75.0
		if r.Method == http.MethodPut {
			half, most = 30, 70
		}
		sigma := math.Log(most/half) / p99
		time.Sleep(time.Duration(half * math.Exp(sigma*rand.NormFloat64()) * float64(time.Millisecond)))
		h.ServeHTTP(w, r)
	})
}

// slowStore is a store of that speed, until the test ends.
func slowStore(t *testing.T) (url string) {
	t.Helper()
	server := httptest.NewServer(delayed(s3test.Start(t, 0)))
	t.Cleanup(server.Close)
	return "s3://" + s3test.BucketName + "/bench?region=" + s3test.Region + "&endpoint=" + server.URL
}

// startOne runs granary local, and waits until it is ready.
func startOne(t *testing.T, store string) (p *process, admin string) {
	t.Helper()
	p = &process{addr: freeAddr(t), out: &bytes.Buffer{}}
	admin = freeAddr(t)
	p.Cmd = exec.Command(build(t), "local", "--store", store, "--mongo", p.addr, "--admin", admin)
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
	for deadline := time.Now().Add(30 * time.Second); get(t, admin, "/readyz") != "ok\n"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not ready:\n%s", p.out)
		}
	}
	return p, admin
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get is what the admin listener answers; "" when it does not.
func get(t *testing.T, admin, path string) string {
	t.Helper()
	res, err := http.Get("http://" + admin + path)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return string(text)
}

// left is what a process has of goroutines and open files.
type left struct{ goroutines, files int }

func (p *process) left(t *testing.T, admin string) (l left) {
	t.Helper()
	_, text, _ := strings.Cut(get(t, admin, "/debug/pprof/goroutine?debug=1"), "total ")
	text, _, _ = strings.Cut(text, "\n")
	l.goroutines, _ = strconv.Atoi(text)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Process.Pid))
	if err != nil || l.goroutines == 0 {
		t.Fatalf("%v, goroutines %q", err, text)
	}
	l.files = len(files)
	return l
}

// answers is how long requests took that were answered, and that were refused.
type answers struct {
	accepted [kinds][]time.Duration
	refused  []time.Duration
	strange  map[string]int // other errors, refusals without a label
}

func (a *answers) add(k kind, took time.Duration, reply bson.Raw) {
	switch {
	case !failed(reply) && (k != insert || bytes.Contains(reply[:16], []byte{'n', 0, insertDocs})):
		a.accepted[k] = append(a.accepted[k], took)
		return
	case wrongRefusal(k, reply) != "":
		if a.strange == nil {
			a.strange = map[string]int{}
		}
		a.strange[wrongRefusal(k, reply)]++
	}
	a.refused = append(a.refused, took)
}

// wrongRefusal says what is wrong with an error: drivers can retry every refusal.
func wrongRefusal(k kind, reply bson.Raw) string {
	if !failed(reply) {
		return reply.String()
	}
	labels, code := reply.Lookup("errorLabels").String(), reply.Lookup("code").Int32()
	want := []string{`"SystemOverloadedError"`, `"RetryableError"`, `"NoWritesPerformed"`}
	if k == insert {
		want = append(want, `"RetryableWriteError"`)
	}
	if slices.ContainsFunc(want, func(l string) bool { return !strings.Contains(labels, l) }) || code != 262 {
		return reply.String()
	}
	return ""
}

func (a *answers) all() (took []time.Duration) {
	for _, list := range a.accepted {
		took = append(took, list...)
	}
	return took
}

// at is a quantile.
func at(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(int(q*float64(len(took))), len(took)-1)]
}

// drive has connections send requests for a while, each the next when the last is answered, and
// together not more than rate a second; 0: as many as they can. A request that comes late
// because the one before took long is not made up for.
func drive(t *testing.T, conns []*raw, rate float64, d time.Duration) *answers {
	t.Helper()
	parts := make([]answers, len(conns))
	var all sync.WaitGroup
	begin := time.Now()
	end := begin.Add(d)
	for i, c := range conns {
		all.Go(func() {
			txn := int64(0)
			a, rnd := newAsked(i), rand.New(rand.NewPCG(uint64(i), 7))
			every := time.Duration(0)
			if rate > 0 {
				every = time.Duration(float64(len(conns)) / rate * float64(time.Second))
			}
			due := begin.Add(time.Duration(rnd.Float64() * float64(every)))
			for {
				time.Sleep(time.Until(due))
				sent := time.Now()
				if sent.After(end) {
					return
				}
				k, n := find, rnd.Int64N(scanDocs)
				if rnd.IntN(2) == 0 {
					txn++
					k, n = insert, txn
				}
				reply, err := c.roundTrip(a.make(k, n))
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				now := time.Now()
				parts[i].add(k, now.Sub(sent), reply)
				if due = due.Add(every); due.Before(now) {
					due = now
				}
			}
		})
	}
	all.Wait()
	sum := &answers{strange: map[string]int{}}
	for i := range parts {
		for k := range sum.accepted {
			sum.accepted[k] = append(sum.accepted[k], parts[i].accepted[k]...)
		}
		sum.refused = append(sum.refused, parts[i].refused...)
		for text, n := range parts[i].strange {
			sum.strange[text] += n
		}
	}
	return sum
}

func dialAll(t *testing.T, addr string, n int) []*raw {
	t.Helper()
	conns := make([]*raw, n)
	for i := range conns {
		c, err := dialRaw(addr)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		conns[i] = c
	}
	return conns
}

func closeAll(conns []*raw) {
	for _, c := range conns {
		c.nc.Close()
	}
}

// TestOverload sends a process four times of what it can do, on a store as slow as S3: those
// that it accepts are answered about as fast as ever, the others are refused at once with an
// error that drivers retry, memory stays within its limit, and afterwards nothing is left of it.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds the binary and loads it")
	}
	s3test.SetKeys()
	p, admin := startOne(t, slowStore(t))
	few := dialAll(t, p.addr, 4)
	if err := fillScanned(few[0]); err != nil {
		t.Fatal(err)
	}
	drive(t, few, 0, time.Second) // the first chunk, caches, connections to the store
	idle := p.left(t, admin)
	unloaded := drive(t, few, 0, 5*time.Second)
	closeAll(few)

	capacity := 0.0
	for _, n := range []int{50, 100, 200} {
		conns := dialAll(t, p.addr, n)
		a := drive(t, conns, 0, 3*time.Second)
		closeAll(conns)
		capacity = max(capacity, float64(len(a.all()))/3)
		t.Logf("%d clients: %d/s accepted, p99 %v, %d/s refused", n, len(a.all())/3, at(a.all(), 0.99), len(a.refused)/3)
	}

	conns := dialAll(t, p.addr, 1500)
	before, own := scrape(t, admin), newLags()
	a := drive(t, conns, 4*capacity, *overloadFor)
	inside := scrape(t, admin).since(before)
	clientLag := own.quantile(0.99)
	closeAll(conns)
	seconds := overloadFor.Seconds()
	offered := float64(len(a.all())+len(a.refused)) / seconds
	t.Logf("unloaded: p50 %v p99 %v (find %v, insert %v)", at(unloaded.all(), 0.5), at(unloaded.all(), 0.99), at(unloaded.accepted[find], 0.99), at(unloaded.accepted[insert], 0.99))
	t.Logf("capacity %.0f/s; offered %.0f/s, %.1f times as much, for %v", capacity, offered, offered/capacity, *overloadFor)
	t.Logf("accepted %.0f/s: p50 %v p99 %v (find %v, insert %v)", float64(len(a.all()))/seconds, at(a.all(), 0.5), at(a.all(), 0.99), at(a.accepted[find], 0.99), at(a.accepted[insert], 0.99))
	t.Logf("refused %.0f/s: p50 %v p99 %v most %v", float64(len(a.refused))/seconds, at(a.refused, 0.5), at(a.refused, 0.99), at(a.refused, 1))
	t.Logf("inside the process: accepted p50 %v p99 %v, refused p50 %v p99 %v; ready to run and waiting for a processor p99: %v there, %v in the client",
		inside.quantile(answered, 0.5), inside.quantile(answered, 0.99), inside.quantile(refused, 0.5), inside.quantile(refused, 0.99), inside.quantile(lags, 0.99), clientLag)
	for _, line := range strings.Split(get(t, admin, "/metrics"), "\n") {
		if strings.HasPrefix(line, "granary_refused_total") || strings.HasPrefix(line, "granary_bound_limit") {
			t.Log(line)
		}
	}
	for text, n := range a.strange {
		t.Errorf("%d refusals that drivers do not retry: %s", n, text)
	}
	peak := p.peak(t)
	t.Logf("resident at most %d MiB, of %d", peak>>20, limitMiB)
	checkOverload(t, unloaded, a, peak)
	p.settled(t, admin, idle)
	p.stop(t)
}

// checkOverload requires what is promised; of times only when they were measured for long, on a
// machine that somebody chose for it.
func checkOverload(t *testing.T, unloaded, a *answers, peak int64) {
	t.Helper()
	long := *overloadFor >= time.Minute
	if fast, slow := at(unloaded.all(), 0.99), at(a.all(), 0.99); long && slow > 5*fast {
		t.Errorf("accepted p99 %v, more than five times of %v", slow, fast)
	}
	if p99 := at(a.refused, 0.99); long && p99 > 50*time.Millisecond {
		t.Errorf("refused p99 after %v, more than 50ms", p99)
	}
	if len(a.refused) == 0 || len(a.all()) == 0 {
		t.Errorf("%d accepted, %d refused", len(a.all()), len(a.refused))
	}
	if peak > limitMiB<<20*11/10 {
		t.Errorf("%d MiB resident, the limit is %d", peak>>20, limitMiB)
	}
}

// settled waits until a process has what it had of goroutines and files, up to a twentieth and
// a few more.
func (p *process) settled(t *testing.T, admin string, before left) {
	t.Helper()
	most := func(n int) int { return n + max(n/20, 4) }
	var now left
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		now = p.left(t, admin)
		if now.goroutines <= most(before.goroutines) && now.files <= most(before.files) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("left are %+v, before %+v", now, before)
			break
		}
	}
	t.Logf("goroutines and files %+v, before %+v", now, before)
}
