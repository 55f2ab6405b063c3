package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Bounds of the server.
const (
	// inFlightBytesMax bounds the bodies that are held at once; beyond it requests are
	// Throttled, unread.
	inFlightBytesMax = 256 << 20
	// inFlightMax bounds the requests that are held at once.
	inFlightMax = 2048
	// bodyWait is how long a body may take to come when the client names no deadline.
	bodyWait = time.Minute
)

// Handler serves an Owner, and the process that it is in when p is not nil. Peers must show
// the secret; with an empty one everybody is served, which is for loopback and for who was
// told so. Each body passes validate (lengths,
// depth, duplicate names: document.Validate) before anything else looks at it.
//
// The context of a call ends with the client's connection, and with the deadline of the
// request, counted from its arrival.
func Handler(o Owner, p Peer, secret string, h host.Host, validate func(doc []byte) error) http.Handler {
	s := &server{host: h, validate: validate, open: secret == "", secret: sha256.Sum256([]byte(secret))}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+PathPrefix+"read", serve(s, "read", o.Read))
	mux.HandleFunc("POST "+PathPrefix+"cursor", serve(s, "cursor", o.Cursor))
	mux.HandleFunc("POST "+PathPrefix+"write", serve(s, "write", o.Write))
	mux.HandleFunc("POST "+PathPrefix+"promise", serve(s, "promise", o.Promise))
	mux.HandleFunc("POST "+PathPrefix+"move", serve(s, "move", o.Move))
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
	requests atomic.Int64
	bytes    atomic.Int64
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

// enter takes a place for a body of n bytes.
func (s *server) enter(n int64) bool {
	if s.requests.Add(1) <= inFlightMax && s.bytes.Add(n) <= inFlightBytesMax {
		return true
	}
	s.leave(n)
	return false
}

func (s *server) leave(n int64) {
	s.requests.Add(-1)
	s.bytes.Add(-n)
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
		if !s.enter(r.ContentLength) {
			answer(w, AppendError(nil, fmt.Errorf("too many requests are under way here: %w", errkind.Throttled)))
			return
		}
		defer s.leave(r.ContentLength)
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
		reply, err := call(ctx, q)
		if err != nil {
			answer(w, AppendError(nil, settled(verb, err)))
			return
		}
		answer(w, reply.Append(nil))
	}
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

// receive reads, validates and parses a body, in this order, within the client's deadline.
func (s *server) receive(w http.ResponseWriter, r *http.Request, q message) error {
	wait := bodyWait
	if ms, err := strconv.ParseInt(r.Header.Get(deadlineHeader), 10, 32); err == nil && ms > 0 {
		wait = min(wait, time.Duration(ms)*time.Millisecond)
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(s.host.Wall().Add(wait)) // not every ResponseWriter has one
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
