// Package wire speaks MongoDB's wire protocol to drivers and mongosh, and knows nothing of
// commands: a message comes in, one document goes out.
//
// # A message
//
//	header     int32 length of all, int32 request id, int32 response to, int32 opcode
//	OP_MSG     uint32 flags | section* | uint32 crc32c, when flagged
//	  section  00 document                                  the command: exactly one
//	  section  01 int32 size, name 00, document*            a sequence: documents, updates, ...
//	OP_QUERY   int32 flags, "admin.$cmd" 00, int32 skip, int32 n, {hello: 1, ...}
//	OP_REPLY   int32 flags, int64 cursor, int32 from, int32 n, document
//
// OP_QUERY is only how a client says hello for the first time, and how old drivers do so
// for ever. Compression is never offered, so a compressed message ends the connection. A
// client that allows a stream of replies (exhaustAllowed) gets one.
//
// # A connection
//
//	         reader                        worker
//	socket --> one message, its length --> parse, validate --> Handler --> one write --> socket
//	           checked, read as it comes   recover
//
// A message that there is no room for is answered by the reader, from a look at its beginning:
// its bytes are passed over, and the worker is not woken.
//
// The worker does one request after the other. The reader waits for the next message
// meanwhile, which is how it notices that the client has gone: the context of the request
// is then cancelled, unless nobody waits for its reply anyway.
//
// # What a stranger can do
//
// Before a client has said hello (with Options.Guarded: before the Handler admitted it) a
// message may have 64 KiB, afterwards MaxMessage. A length is never believed: memory grows
// as bytes arrive, 64 KiB and then four times as much, and all connections together share
// MaxBuffered. Connections are counted when they are accepted. Whoever is slow to say
// hello, to finish a message, to take a reply, or has nothing to say for long is cut off. A
// malformed message is answered when it can be, and ends the connection; a message that is
// well-formed around malformed BSON is answered only. A panic in the Handler is logged and
// answered as an InternalError.
//
// Nothing here is kept: when the process dies its connections break, and drivers connect to
// another router.
package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Handler does the commands.
type Handler interface {
	// Handle answers one request. The requests of a connection come one after the other,
	// those of different ones at once. Everything in m is read-only, and its bytes are used
	// again once Handle has returned and the reply is written: what is to stay is copied.
	// The reply may be a part of m. nil is for a request with MoreToCome only, whose reply
	// is dropped in any case.
	//
	// ctx ends when the client has gone or the server is closed; with MoreToCome only in
	// the latter case.
	Handle(ctx context.Context, c *Conn, m *Request) (reply bson.Raw)
}

// Server serves connections. Make one with NewServer; Serve may be called for several
// listeners.
type Server struct {
	o       Options
	handler Handler
	door    Doorkeeper // nil: everybody comes in

	mu        sync.Mutex // held for a few instructions only
	closing   bool
	listeners map[net.Listener]bool
	conns     map[int64]*Conn
	lastID    int64
	running   sync.WaitGroup // the workers

	memory   memory
	replies  atomic.Int32 // last request id of a reply
	accepted atomic.Int64
	refused  atomic.Int64
	requests atomic.Int64
	panics   atomic.Int64
	answers  times
	refusals times
}

// NewServer makes a server whose requests h answers. It panics when a required option is
// missing.
func NewServer(h Handler, o Options) *Server {
	s := &Server{
		o: o.withDefaults(), handler: h,
		listeners: map[net.Listener]bool{}, conns: map[int64]*Conn{},
	}
	s.memory.account = s.o.Memory
	s.door, _ = h.(Doorkeeper)
	return s
}

// Stats counts what a server has done.
type Stats struct {
	Open     int   // connections now
	Limit    int   // MaxConns
	Accepted int64 // connections ever, without the refused
	Refused  int64 // connections over MaxConns
	Requests int64 // given to the Handler
	Panics   int64 // of the Handler
	Buffered int64 // bytes of messages now
	// Answers and Refusals are how long messages took, from when their header was there until
	// the system had the reply: those that a Handler answered, but for hello, and those that
	// its Doorkeeper refused.
	Answers, Refusals Times
}

// Stats is a snapshot of the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	return Stats{
		Open: open, Limit: s.o.MaxConns, Accepted: s.accepted.Load(), Refused: s.refused.Load(),
		Requests: s.requests.Load(), Panics: s.panics.Load(), Buffered: s.memory.lent.Load(),
		Answers: s.answers.read(), Refusals: s.refusals.read(),
	}
}

// Serve accepts connections from l until Drain or Close is called, ctx ends, or l fails for
// good; it closes l, and returns when all its connections are done. The end of ctx cuts
// them off. Only a failure of l is an error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer l.Close()
	if !s.listen(l, true) {
		return nil
	}
	defer s.listen(l, false)
	ctx, cancel := context.WithCancel(ctx)
	var own, keepers sync.WaitGroup
	keepers.Go(func() { s.reap(ctx) })
	keepers.Go(func() {
		<-ctx.Done()
		l.Close()
		s.cutOff(func(c *Conn) bool { return c.group == &own })
	})
	err := s.accept(ctx, l, &own)
	if err != nil {
		cancel()
	}
	own.Wait()
	cancel()
	keepers.Wait()
	return err
}

// acceptFailures is how often in a row accept may fail, 100 ms apart, before Serve gives up:
// 5 minutes, since a lack of file descriptors is not for ever.
const acceptFailures = 3000

func (s *Server) accept(ctx context.Context, l net.Listener, own *sync.WaitGroup) error {
	for failures := 0; ; {
		nc, err := l.Accept()
		switch {
		case err == nil:
			failures = 0
			if c := s.admit(ctx, own, nc); c != nil {
				own.Go(c.serve)
			}
			continue
		case errors.Is(err, net.ErrClosed) || ctx.Err() != nil || s.isClosing():
			return nil
		}
		if failures++; failures == acceptFailures {
			return fmt.Errorf("accept on %v: %w", l.Addr(), err)
		}
		if failures%100 == 1 {
			s.o.Log.Warn("accept failed", "address", l.Addr(), "error", err, "times", failures)
		}
		_ = s.o.Host.Sleep(ctx, 100*time.Millisecond)
	}
}

// admit registers a connection, or closes it when there are too many.
func (s *Server) admit(ctx context.Context, group *sync.WaitGroup, nc net.Conn) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	// ctx, if it ends, has done so before its connections are cut off, so none escapes that.
	if s.closing || ctx.Err() != nil || len(s.conns) >= s.o.MaxConns {
		s.refused.Add(1)
		nc.Close()
		return nil
	}
	s.accepted.Add(1)
	s.lastID++
	c := newConn(ctx, s, group, s.lastID, nc)
	s.conns[c.id] = c
	s.running.Add(1)
	return c
}

func (s *Server) forget(c *Conn) {
	s.mu.Lock()
	delete(s.conns, c.id)
	s.mu.Unlock()
	s.running.Done()
}

// listen adds or removes a listener; false when the server is closing.
func (s *Server) listen(l net.Listener, on bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !on {
		delete(s.listeners, l)
	} else if !s.closing {
		s.listeners[l] = true
	}
	return !s.closing
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// open is the connections of now, oldest first.
func (s *Server) open() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := slices.Collect(maps.Values(s.conns))
	slices.SortFunc(conns, func(a, b *Conn) int { return int(a.id - b.id) })
	return conns
}

// stop closes the listeners and lets nobody in any more.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for l := range s.listeners {
		l.Close()
	}
}

// Drain stops accepting, closes the connections that wait for a request, lets the running
// requests finish, and returns when the last connection is gone. When ctx ends first the
// others are cut off and the error is the cause.
func (s *Server) Drain(ctx context.Context) error {
	s.stop()
	for _, c := range s.open() {
		c.finish()
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.cutOff(everyone)
		<-done
		return fmt.Errorf("drain connections: %w", context.Cause(ctx))
	}
}

// Close cuts everything off: the contexts of running requests end. It returns when the last
// Handler has returned.
func (s *Server) Close() {
	s.stop()
	s.cutOff(everyone)
	s.running.Wait()
}

// cutOff ends connections with their running requests.
func (s *Server) cutOff(which func(*Conn) bool) {
	for _, c := range s.open() {
		if which(c) {
			c.kill()
			c.cut("server closes")
		}
	}
}

func everyone(*Conn) bool { return true }
