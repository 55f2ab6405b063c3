package wire

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxMetadata is how much of a client's description of itself is kept; a larger one is not.
const maxMetadata = 512

// inBytes is the buffer of what a client sends: headers, and messages that are small.
const inBytes = 4 << 10

// Conn is one client connection.
type Conn struct {
	// State is the Handler's own, for what it keeps per connection. It is touched only
	// inside Handle.
	State any

	s      *Server
	group  *sync.WaitGroup // of the Serve call that accepted it
	id     int64
	nc     net.Conn
	in     *bufio.Reader    // reader only
	head   [headerSize]byte // reader only
	log    *slog.Logger
	parser parser   // worker only
	meta   bson.Raw // worker only
	limit  atomic.Int32
	// underway are the messages that the reader gave to the worker, and which that is not done
	// with.
	underway atomic.Int32
	timers   timers
	// The contexts of requests, which live as long as the connection: serving ends when the
	// server cuts off, alive also when the client has gone.
	serving context.Context
	kill    context.CancelFunc
	alive   context.Context
	gone    context.CancelFunc

	mu      sync.Mutex // held for a few instructions only
	busy    bool       // a request runs
	closing bool       // no further request
}

func newConn(ctx context.Context, s *Server, group *sync.WaitGroup, id int64, nc net.Conn) *Conn {
	c := &Conn{
		s: s, group: group, id: id, nc: nc, in: bufio.NewReaderSize(nc, inBytes),
		log: s.o.Log.With("connection", id, "remote", nc.RemoteAddr().String()),
	}
	c.serving, c.kill = context.WithCancel(ctx)
	c.alive, c.gone = context.WithCancel(c.serving)
	c.limit.Store(int32(s.o.MaxStranger))
	c.parser.o = &s.o
	c.timers.set(waiting, s.o.Host.Mono()+s.o.HandshakeTimeout)
	return c
}

// ID is the number of the connection, from 1, unique in its server.
func (c *Conn) ID() int64 { return c.id }

// RemoteAddr is where the client is.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Transport is the connection itself, for what it tells about TLS. Reading, writing and
// closing it is the server's.
func (c *Conn) Transport() net.Conn { return c.nc }

// Metadata is what the client said about itself in its first hello ("client"): driver,
// system, application. nil when it said nothing, or more than 512 bytes. Inside Handle only.
func (c *Conn) Metadata() bson.Raw { return c.meta }

// Admit lets the client send messages up to MaxMessage: it is no stranger any more.
func (c *Conn) Admit() { c.limit.Store(int32(c.s.o.MaxMessage)) }

// serve reads and handles messages until either side ends it.
func (c *Conn) serve() {
	incoming := make(chan message)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(incoming)
		defer c.gone()
		defer func() {
			if p := recover(); p != nil {
				c.panicked("read", p)
			}
		}()
		c.read(incoming)
	})
	for m := range incoming {
		ok := c.process(m, func() bool { return c.answer(m) })
		c.underway.Add(-1)
		c.s.memory.put(m.body)
		if !ok {
			break
		}
	}
	c.gone()
	c.cut("done")
	for m := range incoming { // what the reader had in hand
		c.s.memory.put(m.body)
	}
	reader.Wait()
	c.kill()
	c.s.forget(c)
}

// read gives one message after the other to the worker.
func (c *Conn) read(incoming chan<- message) {
	for {
		m, err := c.readMessage()
		if err != nil {
			c.log.Debug("connection ends", "reason", err)
			return
		}
		if m.answered {
			continue
		}
		c.underway.Add(1)
		select {
		case incoming <- m:
		case <-c.alive.Done():
			c.s.memory.put(m.body)
			return
		}
		if m.refused != nil && m.refused.fatal {
			return // what follows is the rest of it
		}
	}
}

// process has one message answered; false when it was the last.
func (c *Conn) process(m message, answer func() bool) bool {
	if !c.begin() {
		return false
	}
	c.timers.set(waiting, 0)
	ok := answer()
	c.timers.set(waiting, c.s.o.Host.Mono()+c.s.o.IdleTimeout)
	return c.end() && ok
}

// begin marks the connection as busy; false when no further request is wanted.
func (c *Conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = !c.closing
	return c.busy
}

func (c *Conn) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	return !c.closing
}

// finish closes the connection as soon as no request runs.
func (c *Conn) finish() {
	c.mu.Lock()
	c.closing = true
	idle := !c.busy
	c.mu.Unlock()
	if idle {
		c.cut("server drains")
	}
}

// cut closes the transport at once; reader and worker then come to their end. Beneath TLS,
// which would say goodbye first and might wait for a client that takes nothing.
func (c *Conn) cut(reason string) {
	c.log.Debug("close connection", "reason", reason)
	nc := c.nc
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	nc.Close()
}

// answer parses a message, has it handled and writes the reply; false when the connection
// cannot go on.
func (c *Conn) answer(m message) bool {
	defer c.parser.reset()
	pass, moreToCome, full := c.admit(m)
	if full != nil {
		return c.turnedAway(m, moreToCome, full)
	}
	r, refusal := c.parse(m)
	if refusal == nil {
		c.greet(r)
		doc := c.handle(r)
		c.leave(pass) // a client that is slow to take its reply keeps nobody out
		ok := c.reply(m, r, doc)
		if !isHello(r.Command) { // these wait on purpose
			c.s.answers.add(c.s.o.Host.Mono() - m.began)
		}
		return ok
	}
	c.leave(pass)
	c.log.Debug("message refused", "reason", refusal.err)
	return c.reply(m, r, ErrorReply(refusal.err)) && !refusal.fatal
}

func (c *Conn) parse(m message) (r *Request, refused *refusal) {
	defer func() {
		if p := recover(); p != nil {
			c.panicked("parse", p)
			r = &Request{Legacy: m.header.opcode == opQuery}
			refused = fatal(mongoerr.InternalError, "the message could not be read: an internal error, which was logged")
		}
	}()
	if m.refused != nil {
		return &Request{Legacy: m.header.opcode == opQuery}, m.refused
	}
	return c.parser.parse(m.header, m.body.b)
}

// greet keeps what a hello tells.
func (c *Conn) greet(r *Request) {
	if !isHello(r.Command) {
		return
	}
	if client, ok := r.Body.Lookup("client").DocumentOK(); ok && c.meta == nil && len(client) <= maxMetadata {
		c.meta = bytes.Clone(client)
	}
	if !c.s.o.Guarded {
		c.Admit()
	}
}

// handle has the Handler answer; whatever it does, there is a reply.
func (c *Conn) handle(r *Request) (reply bson.Raw) {
	defer func() {
		if p := recover(); p != nil {
			c.panicked(r.Command, p)
			reply = ErrorReply(mongoerr.New(mongoerr.InternalError, "command %s failed: an internal error, which was logged", r.Command))
		}
	}()
	ctx := c.alive
	if r.MoreToCome {
		ctx = c.serving
	}
	c.s.requests.Add(1)
	reply = c.s.handler.Handle(ctx, c, r)
	switch {
	case r.MoreToCome:
		return nil
	case !isDocument(reply):
		c.log.Error("handler gave no document", "command", r.Command, "bytes", len(reply))
		return ErrorReply(mongoerr.New(mongoerr.InternalError, "command %s gave no reply", r.Command))
	case len(reply)+replyOverhead > c.s.o.MaxMessage:
		return ErrorReply(mongoerr.New(mongoerr.BSONObjectTooLarge,
			"the reply to %s has %d bytes, a message at most %d", r.Command, len(reply), c.s.o.MaxMessage))
	}
	return reply
}

func (c *Conn) panicked(command string, p any) {
	c.s.panics.Add(1)
	c.log.Error("panic", "command", command, "panic", p, "stack", string(debug.Stack()))
}

// writeStep is how much of a reply the client has to take before StallTimeout has passed.
// Most replies are smaller and go out in one write.
const writeStep = 256 << 10

// reply writes one message; false when the client is not there to take it.
func (c *Conn) reply(m message, r *Request, doc bson.Raw) bool {
	if r.MoreToCome {
		return true
	}
	together := doc
	if len(doc) > writeStep {
		together = nil // it goes out from where it is: no copy of what is large
	}
	out := c.s.memory.get(len(together) + replyOverhead)
	defer c.s.memory.put(out)
	out.b = appendReply(out.b, c.s.replies.Add(1), m.header.requestID, r.Legacy, len(doc))
	defer c.timers.set(writing, 0)
	if together == nil {
		c.s.memory.account.Add(int64(len(doc)))
		defer c.s.memory.account.Add(-int64(len(doc)))
		return c.write(out.b) && c.write(doc)
	}
	out.b = append(out.b, doc...)
	return c.write(out.b)
}

// write sends bytes, step by step; false when the client does not take them.
func (c *Conn) write(rest []byte) bool {
	for len(rest) > 0 {
		n := min(len(rest), writeStep)
		c.timers.set(writing, c.s.o.Host.Mono()+c.s.o.StallTimeout)
		if _, err := c.nc.Write(rest[:n]); err != nil {
			return false
		}
		rest = rest[n:]
	}
	return true
}
