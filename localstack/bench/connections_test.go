package bench

import (
	"net"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestIdleConnectionsTakeLittle opens a thousand connections that say nothing, and a thousand
// that say one byte a second: each takes little memory, others are served, and all of them are
// cut off after ten seconds.
func TestIdleConnectionsTakeLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds the binary, and waits ten seconds")
	}
	p, admin := startOne(t, "dir:"+t.TempDir())
	other, err := dialRaw(p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer other.nc.Close()
	ping := message(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	serve := func() time.Duration {
		start := time.Now()
		if reply, err := other.roundTrip(ping); err != nil || failed(reply) {
			t.Fatalf("another client: %s, %v", reply, err)
		}
		return time.Since(start)
	}
	serve()
	before := p.resident(t)
	const each = 990 // together with the others fewer than MaxConns, 2,000
	var slow sync.WaitGroup
	conns := make([]net.Conn, 0, 2*each)
	for i := range 2 * each {
		nc, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		conns = append(conns, nc)
		if i >= each {
			slow.Go(func() { // until it is cut off
				for _, b := range ping {
					if _, err := nc.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
	}
	var longest time.Duration
	for range 50 {
		longest = max(longest, serve())
		time.Sleep(100 * time.Millisecond)
	}
	grown := (p.resident(t) - before) / int64(len(conns))
	t.Logf("%d connections: %d KiB each; a ping took %v at most", len(conns), grown>>10, longest)
	if grown > 64<<10 {
		t.Errorf("%d bytes for each of %d connections", grown, len(conns))
	}
	slow.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if n := p.left(t, admin); n.files < each {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("connections are not cut off: %+v", n)
		}
	}
	serve()
	for _, nc := range conns {
		nc.Close()
	}
	p.stop(t)
}
