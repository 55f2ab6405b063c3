package e2e

import (
	bytesOf "encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// wireConn is a connection on which whole messages are sent, without a driver.
type wireConn struct{ net.Conn }

func dialWire(t testing.TB, r *role) wireConn {
	t.Helper()
	c, err := net.Dial("tcp", r.mongo)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return wireConn{c}
}

// send sends a command as OP_MSG, and reads nothing.
func (c wireConn) send(t testing.TB, cmd bson.D) {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, n := range []int{16 + 5 + len(body), 1, 0, 2013, 0} {
		b = bytesOf.LittleEndian.AppendUint32(b, uint32(n))
	}
	if _, err := c.Write(append(append(b, 0), body...)); err != nil {
		t.Fatal(err)
	}
}

// reply reads what the server says.
func (c wireConn) reply(t testing.TB) bson.Raw {
	t.Helper()
	var head [21]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		t.Fatal(err)
	}
	doc := make(bson.Raw, bytesOf.LittleEndian.Uint32(head[:])-uint32(len(head)))
	if _, err := io.ReadFull(c, doc); err != nil {
		t.Fatal(err)
	}
	return doc
}
