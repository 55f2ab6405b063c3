package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Bounds of the server.
const (
	// inFlightBytesMax bounds the bodies that are held at once, unless Limits says how; beyond
	// it requests are Overloaded, unread.
	inFlightBytesMax = 256 << 20
	// inFlightMax bounds the requests that are held at once.
	inFlightMax = 2048
	// answerMin is the least that an answer to a read may take.
	answerMin = 256 << 10
	// bodyWait is how long a body may take to come when the client names no deadline.
	bodyWait = time.Minute
)

// Limits are what a server has for the requests of routers. The zero Limits bound bodies by
// inFlightBytesMax, and requests by inFlightMax.
type Limits struct {
	// Gate lets reads and writes in; it never keeps out who continues a read, moves or flushes.
	Gate *admission.Gate
	// Alarm hears what is answered of what is Corrupt; nil: nobody does.
	Alarm *alarm.Bell
	// Bodies is the memory for requests, and Answers that for what they are answered.
	Bodies, Answers *admission.Account
}

// Handler serves an Owner, and the process that it is in when p is not nil. Peers must show
// the secret; with an empty one everybody is served, which is for loopback and for who was
// told so. Each body passes validate (lengths,
// depth, duplicate names: document.Validate) before anything else looks at it.
//
// The context of a call ends with the client's connection, and with the deadline of the
// request, counted from its arrival.
func Handler(o Owner, p Peer, secret string, h host.Host, validate func(doc []byte) error, l Limits) http.Handler {
	if l.Bodies == nil {
		l.Bodies = admission.NewPot(inFlightBytesMax).Account("bodies", 100)
	}
	s := &server{host: h, validate: validate, open: secret == "", secret: sha256.Sum256([]byte(secret)), limits: l}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+PathPrefix+"read", serve(s, "read", o.Read))
	mux.HandleFunc("POST "+PathPrefix+"cursor", serve(s, "cursor", o.Cursor))
	mux.HandleFunc("POST "+PathPrefix+"write", serve(s, "write", o.Write))
	mux.HandleFunc("POST "+PathPrefix+"promise", serve(s, "promise", o.Promise))
	mux.HandleFunc("POST "+PathPrefix+"prepare", serve(s, "prepare", o.Prepare))
	mux.HandleFunc("POST "+PathPrefix+"decide", serve(s, "decide", o.Decide))
	mux.HandleFunc("POST "+PathPrefix+"move", serve(s, "move", o.Move))
	mux.HandleFunc("POST "+PathPrefix+"loads", serve(s, "loads", o.Loads))
	mux.HandleFunc("POST "+PathPrefix+"flush", serve(s, "flush", o.Flush))
	if p != nil {
		mux.HandleFunc("POST "+PathPrefix+"ping", serve(s, "ping", p.Ping))
		mux.HandleFunc("POST "+PathPrefix+"claim", serve(s, "claim", p.Claim))
	}
	return s.authenticated(mux)
}

type server struct {
	host     host.Host
	validate func([]byte) error
	open     bool
	secret   [sha256.Size]byte
	limits   Limits
	requests atomic.Int64
}

// authenticated is the one gate before every route, known or not.
func (s *server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		sum := sha256.Sum256([]byte(token)) // sums: equal lengths, whatever was sent
		same := subtle.ConstantTimeCompare(sum[:], s.secret[:]) == 1
		if !s.open && !(bearer && same) {
			http.Error(w, "the bearer secret is missing or not ours", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// place is what a request holds while it is here.
type place struct {
	s     *server
	bytes int64
	gated bool
	pass  admission.Pass
}

// enter takes a place for a request to do verb with a body of n bytes, of which nothing has
// been read. Errors: admission.Overloaded, the context's cause.
func (s *server) enter(r *http.Request, verb string, n int64) (*place, error) {
	p := &place{s: s}
	if s.requests.Add(1) > inFlightMax {
		p.leave()
		return nil, admission.Refuse("%d calls are under way in this process", inFlightMax)
	}
	if !s.limits.Bodies.Reserve(n) {
		p.leave()
		return nil, s.limits.Bodies.Refusal(n)
	}
	p.bytes = n
	var err error
	switch verb {
	case "cursor":
		p.pass, p.gated = s.limits.Gate.Pass(), true
	case "read", "write":
		p.pass, err = s.limits.Gate.Enter(r.Context(), deadlineOf(r))
		p.gated = err == nil
	}
	if err != nil {
		p.leave()
		return nil, err
	}
	return p, nil
}

func (p *place) leave() {
	p.s.requests.Add(-1)
	p.s.limits.Bodies.Add(-p.bytes)
	if p.gated {
		p.s.limits.Gate.Leave(p.pass)
	}
}

// deadlineOf is how long the client waits; 0: it does not say.
func deadlineOf(r *http.Request) time.Duration {
	ms, err := strconv.ParseInt(r.Header.Get(deadlineHeader), 10, 32)
	if err != nil || ms <= 0 {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// requestOf is a pointer to a request type that can be parsed and has a header.
type requestOf[Q any] interface {
	*Q
	message
	header() *Header
}

func (h *Header) header() *Header { return h }

// serve makes the route of one verb.
func serve[Q, R any, PQ requestOf[Q], PR interface {
	*R
	message
}](s *server, verb string, call func(context.Context, PQ) (PR, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 {
			http.Error(w, "a Content-Length is required", http.StatusLengthRequired)
			return
		}
		if r.ContentLength > MessageBytesMax {
			http.Error(w, "a message has at most "+strconv.Itoa(MessageBytesMax)+" bytes", http.StatusRequestEntityTooLarge)
			return
		}
		p, err := s.enter(r, verb, r.ContentLength)
		if err != nil {
			s.passOver(w, r)
			answer(w, AppendError(nil, err))
			return
		}
		defer p.leave()
		q := PQ(new(Q))
		if err := s.receive(w, r, q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx := r.Context()
		if d := q.header().Deadline; d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = s.host.WithTimeout(ctx, d)
			defer cancel()
		}
		defer s.limits.Answers.Add(-s.bound(q))
		reply, err := call(ctx, q)
		if err != nil {
			s.limits.Alarm.Hear(err)
			answer(w, AppendError(nil, settled(verb, err)))
			return
		}
		answer(w, reply.Append(nil))
	}
}

// bound takes memory for the answer to a read, and makes the answer no larger than that.
func (s *server) bound(q any) int64 {
	if s.limits.Answers == nil {
		return 0
	}
	var b *Batch
	switch q := q.(type) {
	case *ReadRequest:
		b = &q.Batch
	case *CursorRequest:
		b = &q.Batch
	default:
		return 0
	}
	if b.Bytes <= 0 {
		b.Bytes = batchBytesDefault
	}
	b.Bytes = int(s.limits.Answers.Take(int64(b.Bytes), answerMin))
	return int64(b.Bytes)
}

// settled makes an error that says nothing of its outcome (a context that ended, a bug) an
// unknown one when there is something that may have been done.
func settled(verb string, err error) error {
	var m *mongoerr.Error
	if changes(verb) && kindName(err) == "" && !errors.As(err, &m) {
		return fmt.Errorf("%s: %w: %w", verb, errkind.UnknownOutcome, err)
	}
	return err
}

// passOver reads the body of a request that is refused, and keeps nothing of it: a client that
// is cut off while it sends would not know that nothing was done.
func (s *server) passOver(w http.ResponseWriter, r *http.Request) {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(s.host.Wall().Add(s.bodyWait(r)))
	_, _ = io.Copy(io.Discard, r.Body)
	_ = conn.SetReadDeadline(time.Time{})
}

// bodyWait is how long the body may take to come.
func (s *server) bodyWait(r *http.Request) time.Duration {
	if d := deadlineOf(r); d > 0 {
		return min(bodyWait, d)
	}
	return bodyWait
}

// receive reads, validates and parses a body, in this order, within the client's deadline.
func (s *server) receive(w http.ResponseWriter, r *http.Request, q message) error {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(s.host.Wall().Add(s.bodyWait(r))) // not every ResponseWriter has one
	doc, err := readMessage(r.Body)
	_ = conn.SetReadDeadline(time.Time{}) // else it would end the context of the call
	if err != nil {
		return err
	}
	if err := s.validate(doc); err != nil {
		return err
	}
	return q.Parse(doc)
}

func answer(w http.ResponseWriter, doc []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(doc)))
	_, _ = w.Write(doc) // the client is gone: it knows that it does not know
}
