package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// serve runs f with a server over pipes in a bubble of virtual time.
func serve(t *testing.T, h Handler, o func(*Options), f func(t *testing.T, s *Server, l *pipeListener)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		opts := options() // inside, for the clock
		if o != nil {
			o(&opts)
		}
		s, l := start(t, h, opts)
		f(t, s, l)
	})
}

// after is how long it takes until the server closes the connection.
func (c *client) after(t *testing.T) time.Duration {
	t.Helper()
	from := time.Now()
	c.closed(t)
	return time.Since(from)
}

func about(got, want time.Duration) bool { return got >= want && got <= want+2*time.Second }

func TestWhoDoesNotSayHelloIsCutOff(t *testing.T) {
	serve(t, answerOK, nil, func(t *testing.T, s *Server, l *pipeListener) {
		silent := l.dial()
		if d := silent.after(t); !about(d, 10*time.Second) {
			t.Errorf("silent: closed after %v", d)
		}
		half := l.dial()
		half.send(t, ping()[:20])
		if d := half.after(t); !about(d, 10*time.Second) {
			t.Errorf("half a message: closed after %v", d)
		}
		drop := l.dial()
		var wg sync.WaitGroup
		wg.Go(func() { // a byte per second: never stalls, and never gets ready
			for _, b := range ping() {
				if _, err := drop.nc.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		if d := drop.after(t); !about(d, 10*time.Second) {
			t.Errorf("a byte per second: closed after %v", d)
		}
		wg.Wait()
		synctest.Wait()
		if open := s.Stats().Open; open != 0 {
			t.Errorf("%d connections are left", open)
		}
	})
}

func TestIdleClientsAreCutOffAfterTenMinutes(t *testing.T) {
	slow := handlerFunc(func(context.Context, *Conn, *Request) bson.Raw {
		time.Sleep(time.Hour) // a request is not idleness
		return okReply
	})
	serve(t, slow, nil, func(t *testing.T, s *Server, l *pipeListener) {
		c := l.dial()
		if doc := c.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
			t.Errorf("reply %v", doc)
		}
		if d := c.after(t); !about(d, 10*time.Minute) {
			t.Errorf("closed after %v", d)
		}
	})
}

func TestStalledClientsAreCutOff(t *testing.T) {
	serve(t, answerOK, nil, func(t *testing.T, s *Server, l *pipeListener) {
		c := l.dial()
		c.roundTrip(t, ping())
		c.send(t, ping()[:20])
		if d := c.after(t); !about(d, 30*time.Second) {
			t.Errorf("half a message: closed after %v", d)
		}
		c = l.dial()
		c.send(t, ping())
		time.Sleep(29 * time.Second) // takes no reply
		synctest.Wait()
		if open := s.Stats().Open; open != 1 {
			t.Errorf("%d connections after 29 s", open)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if open := s.Stats().Open; open != 0 {
			t.Errorf("%d connections after 32 s", open)
		}
		c.close()
	})
}

// A length promises nothing: memory follows the bytes that arrived.
func TestLyingLengthsTakeNoMemory(t *testing.T) {
	serve(t, answerOK, nil, func(t *testing.T, s *Server, l *pipeListener) {
		c := l.dial()
		defer c.close()
		c.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1})))
		before := s.Stats().Buffered
		c.send(t, append(u32s(48_000_000, 1, 0, opMsg), make([]byte, 10)...))
		synctest.Wait()
		if got := s.Stats().Buffered - before; got > 64<<10 {
			t.Errorf("10 bytes of 48 MB take %d bytes", got)
		}
		c.send(t, make([]byte, 1<<20))
		synctest.Wait()
		if got := s.Stats().Buffered - before; got > 4<<20 {
			t.Errorf("1 MiB of 48 MB take %d bytes", got)
		}
	})
}

func TestAThousandSilentConnectionsTakeLittle(t *testing.T) {
	o := options()
	s, l := start(t, answerOK, o)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	clients := make([]*client, 1000)
	for i := range clients {
		clients[i] = l.dial()
	}
	for s.Stats().Open < len(clients) {
		runtime.Gosched()
	}
	other := l.dial()
	defer other.close()
	if doc := other.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
		t.Errorf("another client is answered %v", doc)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := int64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse) / 1000; each > 64<<10 {
		t.Errorf("%d bytes per connection", each)
	} else {
		t.Logf("%d bytes per connection", each)
	}
	for _, c := range clients {
		c.close()
	}
}

func TestConnectionsAreCountedAtAccept(t *testing.T) {
	serve(t, answerOK, func(o *Options) { o.MaxConns = 2 }, func(t *testing.T, s *Server, l *pipeListener) {
		first, second := l.dial(), l.dial()
		third := l.dial()
		third.closed(t)
		if stats := s.Stats(); stats.Open != 2 || stats.Accepted != 2 || stats.Refused != 1 || stats.Limit != 2 {
			t.Errorf("stats %+v", stats)
		}
		first.close()
		synctest.Wait()
		fourth := l.dial()
		if doc := fourth.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
			t.Errorf("with room again: %v", doc)
		}
		second.close()
		fourth.close()
	})
}

func TestMessagesInFlightAreBounded(t *testing.T) {
	release := make(chan struct{})
	wait := handlerFunc(func(_ context.Context, _ *Conn, m *Request) bson.Raw {
		if m.Command == "insert" {
			<-release
		}
		return okReply
	})
	_, l := start(t, wait, func() Options { o := options(); o.MaxBuffered = 1 << 20; return o }())
	big := msg(2, 0, command(bson.E{Key: "insert", Value: strings.Repeat("x", 400<<10)}))
	first, second := l.dial(), l.dial()
	defer first.close()
	defer second.close()
	for _, c := range []*client{first, second} {
		c.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1})))
	}
	first.send(t, big)
	go second.nc.Write(big)
	_, doc := second.receive(t)
	labels := doc.Lookup("errorLabels").String()
	for _, want := range []string{"RetryableWriteError", "SystemOverloadedError", "RetryableError", "NoWritesPerformed"} {
		if !strings.Contains(labels, want) {
			t.Errorf("over the bound, without %s: %v", want, doc)
		}
	}
	if code(doc) != int32(mongoerr.ExceededTimeLimit) || !strings.Contains(doc.Lookup("errmsg").StringValue(), "messages have") {
		t.Errorf("over the bound: %v", doc)
	}
	if doc := second.roundTrip(t, ping()); !bytes.Equal(doc, okReply) { // it is still connected
		t.Errorf("after the refusal: %v", doc)
	}
	close(release)
	if _, doc := first.receive(t); !bytes.Equal(doc, okReply) {
		t.Errorf("within the bound: %v", doc)
	}
}

func TestLargeMessagesArriveWhole(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB
	echo := handlerFunc(func(_ context.Context, _ *Conn, m *Request) bson.Raw { return m.Body })
	_, l := start(t, echo, options())
	c := l.dial()
	defer c.close()
	for _, n := range []int{10, 64<<10 - 60, 64 << 10, 1<<20 + 1, 16<<20 - 100} {
		c.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1})))
		m := msg(2, flagChecksum, command(bson.E{Key: "echo", Value: large[:n]}))
		if doc := c.roundTrip(t, m); doc.Lookup("echo").StringValue() != large[:n] {
			t.Errorf("%d bytes came back otherwise", n)
		}
	}
}

func TestRepliesThatCannotBeSentAreErrors(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	bad := handlerFunc(func(_ context.Context, _ *Conn, m *Request) bson.Raw {
		switch m.Command {
		case "nothing":
			return nil
		case "garbage":
			return bson.Raw{9, 0, 0, 0, 0}
		case "large":
			return toBSON(bson.D{{Key: "x", Value: make([]byte, 2000)}})
		case "panic":
			panic("the reason")
		}
		return okReply
	})
	o := options()
	o.MaxMessage = 1000
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s, l := start(t, bad, o)
	c := l.dial()
	for _, want := range []struct {
		command string
		code    mongoerr.Code
	}{
		{"nothing", mongoerr.InternalError},
		{"garbage", mongoerr.InternalError},
		{"large", mongoerr.BSONObjectTooLarge},
		{"panic", mongoerr.InternalError},
	} {
		doc := c.roundTrip(t, msg(1, 0, command(bson.E{Key: want.command, Value: 1})))
		if text := doc.Lookup("errmsg").StringValue(); code(doc) != int32(want.code) || !strings.Contains(text, want.command) || strings.Contains(text, "the reason") {
			t.Errorf("%s: %v", want.command, doc)
		}
	}
	if doc := c.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
		t.Errorf("afterwards: %v", doc)
	}
	if s.Stats().Panics != 1 || !strings.Contains(log.String(), `command=panic panic="the reason"`) {
		t.Errorf("stats %+v, log %s", s.Stats(), log.String())
	}
	c.close()
}

func TestAPanicOfTheValidatorEndsTheConnectionOnly(t *testing.T) {
	t.Parallel()
	o := options()
	o.Validate = func([]byte, int, int) error { panic("validator") }
	s, l := start(t, answerOK, o)
	for _, m := range [][]byte{ping(), query("admin.$cmd", bson.D{{Key: "hello", Value: 1}})} {
		c := l.dial()
		if doc := c.roundTrip(t, m); code(doc) != int32(mongoerr.InternalError) {
			t.Errorf("reply %v", doc)
		}
		c.closed(t)
	}
	if n := s.Stats().Panics; n != 2 {
		t.Errorf("%d panics", n)
	}
}

func TestContextEndsWhenTheClientGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan string, 2)
		_, l := start(t, handlerFunc(func(ctx context.Context, _ *Conn, m *Request) bson.Raw {
			select {
			case <-ctx.Done():
				ended <- m.Command + " cancelled"
			case <-time.After(time.Hour):
				ended <- m.Command + " done"
			}
			return okReply
		}), options())
		c := l.dial()
		c.send(t, msg(1, 0, command(bson.E{Key: "find", Value: "c"})))
		c.close()
		if got := <-ended; got != "find cancelled" {
			t.Error(got)
		}
		c = l.dial()
		c.send(t, msg(1, flagMoreToCome, command(bson.E{Key: "insert", Value: "c"})))
		c.close()
		if got := <-ended; got != "insert done" {
			t.Error(got)
		}
	})
}

func TestHandlersKeepStatePerConnection(t *testing.T) {
	t.Parallel()
	h := handlerFunc(func(_ context.Context, c *Conn, _ *Request) bson.Raw {
		n, _ := c.State.(int32)
		c.State = n + 1
		return toBSON(bson.D{{Key: "n", Value: n}, {Key: "id", Value: c.ID()}, {Key: "remote", Value: c.RemoteAddr().String()}, {Key: "client", Value: c.Metadata().String()}, {Key: "tls", Value: c.Transport() == nil}})
	})
	_, l := start(t, h, options())
	first, second := l.dial(), l.dial()
	defer first.close()
	defer second.close()
	client := bson.D{{Key: "driver", Value: bson.D{{Key: "name", Value: "d"}}}}
	tooLarge := bson.D{{Key: "driver", Value: strings.Repeat("x", 600)}}
	second.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1}, bson.E{Key: "client", Value: tooLarge})))
	first.roundTrip(t, query("admin.$cmd", bson.D{{Key: "hello", Value: 1}, {Key: "client", Value: client}}))
	first.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1}, bson.E{Key: "client", Value: bson.D{}})))
	if got := first.roundTrip(t, ping()).String(); got != `{"n": {"$numberInt":"2"},"id": {"$numberLong":"1"},"remote": "pipe","client": "{\"driver\": {\"name\": \"d\"}}","tls": false}` {
		t.Errorf("first: %s", got)
	}
	if got := second.roundTrip(t, ping()).String(); !strings.HasPrefix(got, `{"n": {"$numberInt":"1"},"id": {"$numberLong":"2"}`) || strings.Contains(got, "xxx") {
		t.Errorf("second: %s", got)
	}
}

func TestStrangersSendLittle(t *testing.T) {
	t.Parallel()
	h := handlerFunc(func(_ context.Context, c *Conn, m *Request) bson.Raw {
		if m.Command == "saslContinue" {
			c.Admit()
		}
		return okReply
	})
	large := msg(1, 0, command(bson.E{Key: "insert", Value: strings.Repeat("x", 64<<10)}))
	for _, guarded := range []bool{false, true} {
		o := options()
		o.Guarded = guarded
		_, l := start(t, h, o)
		c := l.dial()
		c.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1})))
		if guarded {
			go c.nc.Write(large)
			if _, doc := c.receive(t); code(doc) != int32(mongoerr.InvalidLength) {
				t.Errorf("a stranger's large message: %v", doc)
			}
			c.close()
			c = l.dial()
			c.roundTrip(t, msg(1, 0, command(bson.E{Key: "saslContinue", Value: 1})))
		}
		if doc := c.roundTrip(t, large); !bytes.Equal(doc, okReply) {
			t.Errorf("guarded %v: %v", guarded, doc)
		}
		c.close()
	}
}

func TestDrainLetsRunningRequestsFinish(t *testing.T) {
	slow := handlerFunc(func(ctx context.Context, _ *Conn, m *Request) bson.Raw {
		if m.Command == "slow" {
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
				return ErrorReply(mongoerr.New(mongoerr.InterruptedAtShutdown, "cut off"))
			}
		}
		return okReply
	})
	for _, patience := range []time.Duration{time.Minute, time.Second} {
		t.Run(patience.String(), func(t *testing.T) {
			serve(t, slow, nil, func(t *testing.T, s *Server, l *pipeListener) {
				idle, busy := l.dial(), l.dial()
				idle.roundTrip(t, ping())
				busy.send(t, msg(1, 0, command(bson.E{Key: "slow", Value: 1})))
				synctest.Wait()
				var wg sync.WaitGroup
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					err := s.Drain(ctx)
					if (err != nil) != (patience < 5*time.Second) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("drain within %v: %v", patience, err)
					}
				})
				idle.closed(t)
				if patience > 5*time.Second {
					if _, doc := busy.receive(t); !bytes.Equal(doc, okReply) {
						t.Errorf("the running request: %v", doc)
					}
				}
				busy.closed(t)
				wg.Wait()
				if stats := s.Stats(); stats.Open != 0 || stats.Refused != 0 {
					t.Errorf("stats %+v", stats)
				}
				if err := s.Serve(t.Context(), newPipeListener()); err != nil {
					t.Errorf("serve after drain: %v", err)
				}
			})
		})
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := NewServer(answerOK, options()), newPipeListener()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Serve(ctx, l) }()
		c := l.dial()
		c.roundTrip(t, ping())
		cancel()
		c.closed(t)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// brokenListener fails some times, then gives one connection, then fails for good.
type brokenListener struct {
	*pipeListener
	calls atomic.Int32
}

func (l *brokenListener) Accept() (net.Conn, error) {
	if l.calls.Add(1) == 500 {
		return l.pipeListener.Accept()
	}
	return nil, errors.New("too many open files")
}

func TestAcceptIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := NewServer(answerOK, options()), &brokenListener{pipeListener: newPipeListener()}
		done := make(chan error)
		go func() { done <- s.Serve(t.Context(), l) }()
		c := l.dial()
		if doc := c.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
			t.Errorf("after 499 failures: %v", doc)
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("a broken listener: %v", err)
		}
		c.closed(t)
	})
}

func TestServerOverTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(answerOK, options())
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), l) }()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			c := &client{nc: nc}
			defer c.close()
			for range 50 {
				if doc := c.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
					t.Errorf("client %d: %v", i, doc)
				}
			}
		})
	}
	wg.Wait()
	within(t, "Close", s.Close)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := s.Stats().Requests; got != 1000 {
		t.Errorf("%d requests", got)
	}
}

func TestRequiredOptionsAreMissed(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {Validate: validate}, {Host: options().Host}} {
		func() {
			defer func() {
				if r := fmt.Sprint(recover()); !strings.Contains(r, "required") {
					t.Errorf("recovered %v", r)
				}
			}()
			NewServer(answerOK, o)
		}()
	}
}

// memConn is a connection whose client has sent everything already and takes everything.
type memConn struct {
	net.Conn
	io.Reader
	written int
}

func (c *memConn) Read(b []byte) (int, error)  { return c.Reader.Read(b) }
func (c *memConn) Write(b []byte) (int, error) { c.written += len(b); return len(b), nil }
func (c *memConn) Close() error                { return nil }
func (c *memConn) RemoteAddr() net.Addr        { return &net.UnixAddr{Name: "memory"} }

func FuzzConnection(f *testing.F) {
	f.Add(append(query("admin.$cmd", bson.D{{Key: "hello", Value: 1}}), ping()...))
	f.Add(append(msg(1, flagMoreToCome, command(bson.E{Key: "x", Value: 1})), msg(2, flagChecksum, command(bson.E{Key: "insert", Value: "c"}), sequence("documents", bson.D{}))...))
	f.Add(u32s(48_000_000, 1, 0, opMsg, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer(answerOK, options())
		nc := &memConn{Reader: bytes.NewReader(b)}
		s.admit(t.Context(), nil, nc).serve()
		if stats := s.Stats(); stats.Panics != 0 || stats.Buffered != 0 {
			t.Fatalf("stats %+v", stats)
		}
		if most := 1024 * (1 + len(b)/headerSize); nc.written > most {
			t.Fatalf("%d bytes in, %d out", len(b), nc.written)
		}
	})
}

func BenchmarkPing(b *testing.B) {
	for _, network := range []string{"pipe", "tcp"} {
		b.Run(network, func(b *testing.B) {
			var c *client
			s := NewServer(answerOK, options())
			done := make(chan error, 1)
			if network == "pipe" {
				l := newPipeListener()
				go func() { done <- s.Serve(context.Background(), l) }()
				c = l.dial()
			} else {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				go func() { done <- s.Serve(context.Background(), l) }()
				nc, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				c = &client{nc: nc}
			}
			m := ping()
			reply := make([]byte, headerSize+5+len(okReply))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.nc.Write(m); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c.nc, reply); err != nil {
					b.Fatal(err)
				}
			}
			c.close()
			s.Close()
			<-done
		})
	}
}

// tlsLike has a transport beneath it, as a tls.Conn has, and a Close that may block.
type tlsLike struct {
	net.Conn
	beneath net.Conn
}

func (c tlsLike) Close() error      { panic("says goodbye to a client that does not listen") }
func (c tlsLike) NetConn() net.Conn { return c.beneath }

func TestConnectionsAreCutBeneathTLS(t *testing.T) {
	t.Parallel()
	_, l := start(t, answerOK, options())
	ours, theirs := net.Pipe()
	l.conns <- tlsLike{Conn: theirs, beneath: theirs}
	c := &client{nc: ours}
	c.send(t, msg(1, 0, command(bson.E{Key: "ping", Value: 1}), command(bson.E{Key: "ping", Value: 1})))
	if _, doc := c.receive(t); code(doc) != 40430 {
		t.Errorf("reply %v", doc)
	}
	c.closed(t)
}

func ExampleErrorReply() {
	e := mongoerr.New(mongoerr.NamespaceNotFound, "ns not found: shop.orders")
	fmt.Println(ErrorReply(e))
	// Output:
	// {"ok": {"$numberDouble":"0.0"},"errmsg": "ns not found: shop.orders","code": {"$numberInt":"26"},"codeName": "NamespaceNotFound"}
}

func ExampleServer() {
	hello := handlerFunc(func(_ context.Context, _ *Conn, m *Request) bson.Raw {
		fmt.Println(m.DB, m.Command)
		return okReply
	})
	s := NewServer(hello, options())
	l := newPipeListener() // or net.Listen("tcp", ":27017")
	done := make(chan error)
	go func() { done <- s.Serve(context.Background(), l) }()
	c := l.dial()
	_, _ = c.nc.Write(ping())
	_, reply, _ := c.read()
	fmt.Println(reply)
	fmt.Println(s.Drain(context.Background()), <-done)
	// Output:
	// test ping
	// {"ok": {"$numberDouble":"1.0"}}
	// <nil> <nil>
}
