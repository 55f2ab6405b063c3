// Package s3wire is what the two S3 drivers share: what S3's answers mean. The drivers turn
// a verb into one call of their SDK and hand the outcome to this package, so that both say
// the same of the same store.
//
//	Place      keys below a prefix of a bucket, and where a List starts
//	Reply      a Get's answer: the range that was asked for, whole, or an error
//	Failure    an answer that is no success, as one of the few kinds of error
//	Upload     a body that nobody reads once its Put has returned
//	Watch      whether a write ever reached a connection
//	Transport  connections: bounded, kept, without a retry or a redirect of their own
//
// # What became of a write
//
// S3 is asked once, and what it says is sorted by one question: could the object have been
// written, or could it still be?
//
//	412; 404 to an If-Match                            no: the condition did not hold
//	429; 503 SlowDown; 409 ConditionalRequestConflict  no: the store refused, for now
//	301, 307, 501; other 4xx with S3's error body      no: the store refused the request
//	no connection was had                              no: nothing was sent
//	everything else                                    perhaps
//
// A 503 or a 409 without one of these codes may come from a proxy that gave up on a store
// that did not, and MinIO's SlowDownWrite is a write that reached some of its disks: these
// are unclear, as is a success without an ETag.
//
// A 404 is a missing object only when S3 says so: a missing bucket, or a proxy that knows
// no such page, must never pass for an empty store.
package s3wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
)

// PageMax is the most keys in one answer to a List.
const PageMax = 1000

// Place is a bucket, or the part of one below a prefix.
type Place struct {
	Bucket string
	prefix string // "" or with a '/' at its end
}

// NewPlace checks a bucket's name by S3's rules, and a prefix (without '/' at its ends) by
// those of keys. Errors: Invalid, naming the rule.
func NewPlace(name, prefix string) (Place, error) {
	if err := checkName(name); err != nil {
		return Place{}, err
	}
	if prefix == "" {
		return Place{Bucket: name}, nil
	}
	if err := bucket.CheckKey(prefix); err != nil {
		return Place{}, fmt.Errorf("prefix: %w", err)
	}
	return Place{Bucket: name, prefix: prefix + "/"}, nil
}

// Key is the store's key of ours. Errors: Invalid, by CheckKey.
func (p Place) Key(key string) (string, error) {
	if err := bucket.CheckKey(key); err != nil {
		return "", err
	}
	if len(p.prefix)+len(key) > bucket.KeyBytesMax {
		return "", bucket.CheckKey(p.prefix + key)
	}
	return p.prefix + key, nil
}

// Own is our key of the store's.
func (p Place) Own(key string) string { return strings.TrimPrefix(key, p.prefix) }

// Start translates a List: the prefix that the store looks under, and the key after which it
// starts, "" for none. Keys have no NUL, so that what follows one in `after` makes no
// difference to what lies beyond it; and XML cannot carry one.
func (p Place) Start(prefix, after string) (under, start string) {
	after, _, _ = strings.Cut(after, "\x00")
	if after > prefix || after == prefix && after != "" {
		start = p.prefix + after
	}
	return p.prefix + prefix, start
}

// String is "bucket/prefix", for URLs.
func (p Place) String() string { return strings.TrimSuffix(p.Bucket+"/"+p.prefix, "/") }

// Tag is the tag of an ETag header: without the quotes, so that both SDKs, one of which
// takes them off, give the same.
func Tag(etag string) bucket.Tag {
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		etag = etag[1 : len(etag)-1]
	}
	return bucket.Tag(etag)
}

// ETag is the header of a tag.
func ETag(t bucket.Tag) string {
	if strings.HasPrefix(string(t), `W/"`) {
		return string(t) // a proxy's, kept as it came
	}
	return `"` + string(t) + `"`
}

// Millis is a store's time as Attrs has it: whole seconds, since HTTP's headers have no more
// and a List has.
func Millis(t time.Time) int64 { return t.Unix() * 1000 }

// Watch returns a context for one request and what tells, at any time, whether the request
// got a connection. One that never did has had no effect and will have none.
func Watch(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	}), sent
}

// Bounds of the connections to a store.
const (
	connectionsMax = 128 // at once; a request beyond waits for one
	dialMax        = 5 * time.Second
	handshakeMax   = 5 * time.Second
	headerMax      = time.Minute // from a request's last byte to the answer's first
	idleMax        = 45 * time.Second
	bufferBytes    = 64 << 10
)

// NewTransport makes connections to one store: at most 128, kept while idle, so that 64
// requests side by side find one each. HTTP/1.1 only: one HTTP/2 connection would carry all
// of them, and lose all of them together.
//
// The times here are a last resort against a store that is gone; how long a request may take
// is its context's to say.
func NewTransport() *http.Transport { return Tune(&http.Transport{}) }

// Tune makes a transport, which has not been used yet, one like NewTransport's. Its
// certificates stay.
func Tune(t *http.Transport) *http.Transport {
	t.Proxy = http.ProxyFromEnvironment
	t.DialContext = (&net.Dialer{Timeout: dialMax, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout = handshakeMax
	t.ResponseHeaderTimeout = headerMax
	t.MaxConnsPerHost = connectionsMax
	t.MaxIdleConns = connectionsMax
	t.MaxIdleConnsPerHost = connectionsMax
	t.IdleConnTimeout = idleMax
	t.DisableCompression = true // bodies come as they were stored
	t.WriteBufferSize, t.ReadBufferSize = bufferBytes, bufferBytes
	t.ForceAttemptHTTP2, t.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = nil
	}
	return t
}
