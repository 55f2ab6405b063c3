// Package s3test is S3 for tests of the drivers: the six requests that a driver makes,
// answered out of a bucket in memory by the standard library's HTTP server, and the ways in
// which real servers get them wrong, each behind a switch.
//
//	server := s3test.Start(t, s3test.IgnoreIfMatch)
//	server.URL        http://127.0.0.1:PORT, for a driver's endpoint
//	server.Requests() how many came, by method
//
// Run is the suite that both drivers pass on it, beside buckettest: what they make of each
// answer, how many requests they send, and that Probe refuses each kind of bad server by
// name.
//
// It checks the access key and the region of a request, not its signature: real servers do
// that (see Real). Keys are what SetKeys puts into the environment.
//
// What a switch breaks:
//
//	IgnoreIfNoneMatch, IgnoreIfMatch   a condition of a PUT is not looked at
//	IgnoreRange                        a GET of a range gets the whole
//	TearReads                          a GET during an overwrite gets half of each version
//	StaleReads                         the first GET after an overwrite gets the old version
//	ErrorIn200                         a PUT does nothing and answers 200 with an error body
//	LoseAnswers                        a PUT or DELETE happens, then the connection closes
//	CutBodies                          a GET's connection closes in the middle of the body
//	Slow                               every answer takes SlowBy
//	WrongETag                          a PUT answers another ETag than a GET
//	HideMissing                        a GET of a missing key gets an empty object
//	Unsorted                           a LIST is in another order
//	Lagging                            a LIST lacks its last key
package s3test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
)

// Switch is a set of ways to be wrong; combine them with |.
type Switch uint

// The switches; the package doc says what each does.
const (
	IgnoreIfNoneMatch Switch = 1 << iota
	IgnoreIfMatch
	IgnoreRange
	TearReads
	StaleReads
	ErrorIn200
	LoseAnswers
	CutBodies
	Slow
	WrongETag
	HideMissing
	Unsorted
	Lagging
)

// SlowBy is how long a slow server takes.
const SlowBy = 100 * time.Millisecond

// What the server knows: one bucket, one access key, one region.
const (
	BucketName = "granary-test"
	Region     = "us-east-1"
	accessKey  = "granarytest"
	secretKey  = "granarytestsecret"
)

// SetKeys puts the server's keys into this process's environment, and takes away what else
// the machine may have to say to an AWS program. For TestMain.
func SetKeys() {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") || strings.HasPrefix(name, "MINIO_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	os.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
}

// Server is a running server. Objects is what it holds, to look at behind its back.
type Server struct {
	URL     string
	Objects *membucket.Bucket

	close   func()
	writing sync.Mutex // held by a PUT that is torn or remembered, also while it sleeps

	mu      sync.Mutex
	wrong   Switch
	always  *answer
	seen    map[string]int
	conns   int
	old     map[string]bucket.Object // what a stale GET still has
	lastPut *http.Request
}

// Start serves until the test ends.
func Start(t testing.TB, wrong Switch) *Server {
	t.Helper()
	s := &Server{Objects: membucket.New(), wrong: wrong, seen: map[string]int{}, old: map[string]bucket.Object{}}
	h := httptest.NewUnstartedServer(s)
	h.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.conns++
		}
	}
	h.Start()
	s.close = sync.OnceFunc(h.Close)
	t.Cleanup(s.close)
	s.URL = h.URL
	return s
}

// Host is the server's "host:port".
func (s *Server) Host() string { return strings.TrimPrefix(s.URL, "http://") }

// Turn sets the switches.
func (s *Server) Turn(wrong Switch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = wrong
}

func (s *Server) is(w Switch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrong&w != 0
}

// Always makes the server answer every request with a status and an S3 code, and do nothing.
// Without a code there is no body; a code with a space in it is the body, as proxies have
// them. Status 0 ends it.
func (s *Server) Always(status int, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = nil
	if status != 0 {
		s.always = &answer{status, code}
	}
}

type answer struct {
	status int
	code   string
}

// Requests counts what came since the start or since Reset, by HTTP method; a List is "LIST".
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for method, n := range s.seen {
		out[method] = n
	}
	return out
}

// Connections counts those that were ever opened.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// Reset starts counting anew.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[string]int{}
}

// LastPut is the last PUT, with its body read.
func (s *Server) LastPut() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastPut
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/"+BucketName+"/")
	list := r.URL.Query().Get("list-type") == "2"
	always := s.note(r, list)
	if s.is(Slow) {
		time.Sleep(SlowBy)
	}
	w.Header().Set("x-amz-request-id", "0000000000000001")
	switch {
	case always != nil:
		always.write(w, r)
	case s.refuse(w, r):
	case list:
		s.list(w, r)
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		s.get(w, r, key)
	case r.Method == http.MethodPut:
		s.put(w, r, key)
	case r.Method == http.MethodDelete:
		_ = s.Objects.Delete(context.Background(), key)
		if s.is(LoseAnswers) {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		answer{http.StatusNotImplemented, "NotImplemented"}.write(w, r)
	}
}

func (s *Server) note(r *http.Request, list bool) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	method := r.Method
	if list {
		method = "LIST"
	}
	s.seen[method]++
	if r.Method == http.MethodPut {
		s.lastPut = r
	}
	return s.always
}

// refuse answers requests for another bucket, with other keys or for another region.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request) bool {
	scope := strings.Split(r.Header.Get("Authorization"), "/") // ...Credential=KEY/DATE/REGION/s3/aws4_request, ...
	switch {
	case len(scope) < 5 || !strings.HasSuffix(scope[0], "="+accessKey):
		answer{http.StatusForbidden, "InvalidAccessKeyId"}.write(w, r)
	case scope[2] != Region:
		w.Header().Set("x-amz-bucket-region", Region)
		answer{http.StatusBadRequest, "AuthorizationHeaderMalformed"}.write(w, r)
	case r.URL.Path != "/"+BucketName && !strings.HasPrefix(r.URL.Path, "/"+BucketName+"/"):
		answer{http.StatusNotFound, "NoSuchBucket"}.write(w, r)
	default:
		return false
	}
	return true
}
