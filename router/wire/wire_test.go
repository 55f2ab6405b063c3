package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handlerFunc is a Handler.
type handlerFunc func(ctx context.Context, c *Conn, m *Request) bson.Raw

func (f handlerFunc) Handle(ctx context.Context, c *Conn, m *Request) bson.Raw { return f(ctx, c, m) }

var okReply = toBSON(bson.D{{Key: "ok", Value: 1.0}})

// answerOK answers everything with {ok: 1}.
var answerOK = handlerFunc(func(context.Context, *Conn, *Request) bson.Raw { return okReply })

func toBSON(v any) bson.Raw {
	b, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// validate is the real validator, as a caller wires it.
func validate(doc []byte, maxBytes, maxDepth int) error {
	return document.Validate(doc, document.Limits{MaxBytes: maxBytes, MaxDepth: maxDepth})
}

func options() Options { return Options{Host: host.System(), Validate: validate} }

// pipeListener accepts one end of the pipes whose other end dial gives.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (l *pipeListener) dial() *client {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return &client{nc: ours}
}

// start serves h over pipes until the test ends.
func start(t testing.TB, h Handler, o Options) (*Server, *pipeListener) {
	t.Helper()
	s, l := NewServer(h, o), newPipeListener()
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n := s.memory.lent.Load(); n != 0 {
			t.Errorf("%d bytes of buffers are still lent", n)
		}
	})
	return s, l
}

// client is the other end of a connection.
type client struct{ nc net.Conn }

func (c *client) close() { c.nc.Close() }

// send writes in the background when the server is expected to stop reading.
func (c *client) send(t testing.TB, message []byte) {
	t.Helper()
	if _, err := c.nc.Write(message); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// receive reads one reply, whichever its opcode.
func (c *client) receive(t testing.TB) (header, bson.Raw) {
	t.Helper()
	h, doc, err := c.read()
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return h, doc
}

func (c *client) read() (header, bson.Raw, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(c.nc, head[:]); err != nil {
		return header{}, nil, err
	}
	h := readHeader(head[:])
	body := make([]byte, h.length-headerSize)
	if _, err := io.ReadFull(c.nc, body); err != nil {
		return h, nil, err
	}
	if h.opcode == opReply {
		return h, body[20:], nil
	}
	return h, body[5:], nil
}

func (c *client) roundTrip(t testing.TB, message []byte) bson.Raw {
	t.Helper()
	c.send(t, message)
	_, doc := c.receive(t)
	return doc
}

// closed waits until the server has closed the connection.
func (c *client) closed(t testing.TB) {
	t.Helper()
	if _, _, err := c.read(); !errors.Is(err, io.EOF) {
		t.Fatalf("the connection is still open: %v", err)
	}
}

// frame puts a header in front of b.
func frame(id int32, opcode int32, b ...[]byte) []byte {
	body := slices.Concat(b...)
	head := make([]byte, headerSize)
	for i, v := range []int32{int32(headerSize + len(body)), id, 0, opcode} {
		binary.LittleEndian.PutUint32(head[4*i:], uint32(v))
	}
	return append(head, body...)
}

func crc32Of(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// command is a document section.
func command(fields ...bson.E) []byte {
	return append([]byte{0}, toBSON(append(bson.D(fields), bson.E{Key: "$db", Value: "test"}))...)
}

func ping() []byte { return msg(7, 0, command(bson.E{Key: "ping", Value: 1})) }

// sequence is a section of documents.
func sequence(id string, docs ...any) []byte {
	b := append([]byte(id), 0)
	for _, d := range docs {
		b = append(b, toBSON(d)...)
	}
	return slices.Concat([]byte{1}, u32(uint32(len(b)+4)), b)
}

func msg(id int32, flags uint32, sections ...[]byte) []byte {
	m := frame(id, opMsg, u32(flags), slices.Concat(sections...))
	if flags&flagChecksum == 0 {
		return m
	}
	binary.LittleEndian.PutUint32(m, uint32(len(m)+4))
	return append(m, u32(crc32Of(m))...)
}

func query(namespace string, doc any) []byte {
	return frame(7, opQuery, u32(4), append([]byte(namespace), 0), u32(0), u32(0xFFFFFFFF), toBSON(doc))
}

func code(doc bson.Raw) int32 {
	n, _ := doc.Lookup("code").Int32OK()
	return n
}

// within fails the test when f has not returned after a minute of real time.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s takes for ever", what)
	}
}
