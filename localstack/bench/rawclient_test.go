package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// raw is a client that costs as little as a client can: it sends messages that were made before,
// and looks into a reply only to see whether it is a refusal. Beside it the server is what takes
// the processor.
type raw struct {
	nc  net.Conn
	in  *bufio.Reader
	buf []byte
}

func dialRaw(addr string) (*raw, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &raw{nc: nc, in: bufio.NewReaderSize(nc, 4<<10)}
	// Until it has said hello a client may send little.
	if _, err = c.roundTrip(message(bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}})); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// message is an OP_MSG; documents come behind the command, as drivers send them.
func message(cmd bson.D, documents ...any) []byte {
	var m []byte
	for _, v := range []uint32{0, 1, 0, 2013, 0} {
		m = binary.LittleEndian.AppendUint32(m, v)
	}
	m = append(append(m, 0), encoded(cmd)...)
	if len(documents) > 0 {
		m = append(m, 1)
		start := len(m)
		m = append(m, "\x00\x00\x00\x00documents\x00"...)
		for _, d := range documents {
			m = append(m, encoded(d)...)
		}
		binary.LittleEndian.PutUint32(m[start:], uint32(len(m)-start))
	}
	binary.LittleEndian.PutUint32(m, uint32(len(m)))
	return m
}

func encoded(doc any) []byte {
	b, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return b
}

// roundTrip sends a message and returns the document of the reply, until the next call.
func (c *raw) roundTrip(m []byte) (bson.Raw, error) {
	if _, err := c.nc.Write(m); err != nil {
		return nil, err
	}
	var head [21]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head[:])) - len(head)
	if n < 5 || n > 64<<20 {
		return nil, fmt.Errorf("a reply of %d bytes", n)
	}
	c.buf = slices.Grow(c.buf[:0], n)[:n]
	_, err := io.ReadFull(c.in, c.buf)
	return c.buf, err
}

// failed reports whether a reply is an error: these begin with ok: 0.
func failed(reply bson.Raw) bool {
	return string(reply[4:8]) == "\x01ok\x00" && binary.LittleEndian.Uint64(reply[8:]) == 0
}

// kind is what a client asks for.
type kind int

const (
	find kind = iota
	insert
	kinds
)

// insertDocs is how many documents a request inserts, scanDocs how many a find looks at. With
// these the server has far more to do for a request than the client.
const (
	insertDocs = 100
	scanDocs   = 1000
)

// asked are the messages of one connection.
type asked struct {
	message [kinds][]byte
	at      [kinds]int // where the number is that makes one differ from the next
}

// newAsked makes messages of a session of their own: a find that looks at scanDocs documents
// and finds one, and a retryable insert of documents of 300 bytes.
func newAsked(session int) *asked {
	const mark = int64(0x7a7a7a7a7a7a7a7a)
	id := binary.BigEndian.AppendUint64(nil, uint64(session)+1)
	id = binary.BigEndian.AppendUint64(id, uint64(time.Now().UnixNano()))
	lsid := bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}}}
	db := bson.E{Key: "$db", Value: "bench"}
	var docs []any
	for i := range insertDocs {
		docs = append(docs, bson.D{{Key: "n", Value: i}, {Key: "note", Value: strings.Repeat(string(rune('a'+i%25)), 270)}})
	}
	a := &asked{}
	a.message[find] = message(bson.D{{Key: "find", Value: "scanned"}, {Key: "filter", Value: bson.D{{Key: "n", Value: mark}}}, lsid, db})
	a.message[insert] = message(bson.D{{Key: "insert", Value: "load"}, lsid, {Key: "txnNumber", Value: mark}, db}, docs...)
	for k, m := range a.message {
		a.at[k] = bytes.Index(m, binary.LittleEndian.AppendUint64(nil, uint64(mark)))
	}
	return a
}

// make is a message with a number: what a find looks for, or the transaction of an insert.
func (a *asked) make(k kind, n int64) []byte {
	binary.LittleEndian.PutUint64(a.message[k][a.at[k]:], uint64(n))
	return a.message[k]
}

// fillScanned makes the collection that finds look at.
func fillScanned(c *raw) error {
	var docs bson.A
	for i := range scanDocs {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: int64(i)}, {Key: "note", Value: strings.Repeat("z", 250)}})
	}
	reply, err := c.roundTrip(message(bson.D{{Key: "insert", Value: "scanned"}, {Key: "documents", Value: docs}, {Key: "$db", Value: "bench"}}))
	if err == nil && failed(reply) {
		err = fmt.Errorf("%s", reply)
	}
	return err
}
