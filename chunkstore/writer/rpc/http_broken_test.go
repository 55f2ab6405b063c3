package rpc_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// broken is a peer that takes a request and then misbehaves.
func broken(t *testing.T, misbehave func(net.Conn)) rpc.Owner {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 64<<10)
			_, _ = c.Read(buf)
			misbehave(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return dial(t, rpc.NewHTTPDialer("secret", host.System(), nil), l.Addr().String())
}

// A request that may have been seen by its peer and has no answer is unknown for what
// changes something, and unreachable for what does not.
func TestHTTPBrokenAnswersAreUnknownForWrites(t *testing.T) {
	reply := func(status string, body []byte, says int) func(net.Conn) {
		return func(c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, says, body)
		}
	}
	ok := (&rpc.FlushReply{}).Append(nil)
	for name, peer := range map[string]func(net.Conn){
		"closes":           func(net.Conn) {},
		"half a header":    func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 O") },
		"half a body":      reply("200 OK", ok[:8], len(ok)),
		"no document":      reply("200 OK", []byte("<html>hello"), 11),
		"no reply":         reply("200 OK", doc(bson.E{Key: "x", Value: 1}), len(doc(bson.E{Key: "x", Value: 1}))),
		"another reply":    reply("200 OK", doc(bson.E{Key: "ok", Value: 1.0}, bson.E{Key: "odd", Value: 1}), len(doc(bson.E{Key: "ok", Value: 1.0}, bson.E{Key: "odd", Value: 1}))),
		"bad gateway":      reply("502 Bad Gateway", []byte("proxy"), 5),
		"an internal one":  reply("500 Internal Server Error", nil, 0),
		"a redirect":       reply("307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/", nil, 0),
		"lies of its size": reply("200 OK", binary.LittleEndian.AppendUint32(nil, 1<<30), 1<<30),
	} {
		remote := broken(t, peer)
		for q, m := range requests() {
			_, err := send(t.Context(), remote, m)
			changes := q == "WriteRequest" || q == "MoveRequest"
			if errors.Is(err, errkind.UnknownOutcome) != changes || errors.Is(err, rpc.Unreachable) == changes || errors.Is(err, errkind.Invalid) {
				t.Errorf("%s, %s: %v", name, q, err)
			}
		}
	}
	remote := broken(t, reply("404 Not Found", []byte("no such route"), 13))
	if _, err := remote.Write(t.Context(), &rpc.WriteRequest{}); !errors.Is(err, errkind.Invalid) || errors.Is(err, errkind.UnknownOutcome) {
		t.Error("a refusal of the transport:", err)
	}
}

// Without a connection nothing was done, whatever was asked.
func TestHTTPNoConnectionIsUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	d := rpc.NewHTTPDialer("secret", host.System(), &rpc.HTTPOptions{ConnectWait: time.Second, CallWait: 5 * time.Second, ConnsPerPeer: 2})
	for _, a := range []string{address, "256.256.256.256:1", "no port", "bad\x7fhost:1"} {
		for name, q := range requests() {
			_, err := send(t.Context(), dial(t, d, a), q)
			if !errors.Is(err, rpc.Unreachable) || !errors.Is(err, errkind.Throttled) || errors.Is(err, errkind.UnknownOutcome) {
				t.Errorf("%s at %s: %v", name, a, err)
			}
		}
	}
	if _, err := d.Dial("shard01", "h", ""); !errors.Is(err, rpc.Unreachable) {
		t.Error(err)
	}
}
