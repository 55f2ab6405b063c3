package s3test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Open opens the driver under test on a server's bucket, below a prefix of its own choice,
// and registers its own clean-up.
type Open func(t *testing.T, s *Server) bucket.Bucket

// Run shows what buckettest cannot: what a driver makes of a server that is not right.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, open Open)
	}{
		{"OneOperationIsOneRequest", oneRequest},
		{"AnswersAreSorted", answers},
		{"ProbeRefusesBadServers", badServers},
		{"LostAnswersAreUnknown", lostAnswers},
		{"ErrorsIn200AreUnknown", errorIn200},
		{"BrokenBodiesAreErrors", cutBodies},
		{"OtherRangesAreCorrupt", otherRanges},
		{"SilenceEndsWithTheContext", silence},
		{"BodiesAreNotReadAfterReturn", bodies},
		{"WithoutConnectionNothingHappened", noServer},
		{"ConnectionsAreKept", connections},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, open)
		})
	}
}

func put(t *testing.T, b bucket.Bucket, key, body string, c bucket.Condition) bucket.Tag {
	t.Helper()
	tag, err := b.Put(t.Context(), key, []byte(body), c)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func oneRequest(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	tag := put(t, b, "k", "body", bucket.IfAbsent)
	large := bytes.Repeat([]byte("large "), 3<<20)
	put(t, b, "empty", "", bucket.IfAbsent)
	for _, c := range []struct {
		what string
		verb string
		n    int
		run  func(ctx context.Context) error
		want error
	}{
		{"get", "GET", 1, func(ctx context.Context) error { _, err := b.Get(ctx, "k", bucket.GetOptions{}); return err }, nil},
		{"range", "GET", 1, func(ctx context.Context) error {
			_, err := b.Get(ctx, "k", bucket.GetOptions{Offset: 1, Length: 2})
			return err
		}, nil},
		{"get of what is known", "GET", 1, func(ctx context.Context) error {
			_, err := b.Get(ctx, "k", bucket.GetOptions{IfNoneMatch: tag})
			return err
		}, errkind.NotModified},
		{"get of nothing", "GET", 1, func(ctx context.Context) error { _, err := b.Get(ctx, "no", bucket.GetOptions{}); return err }, errkind.NotFound},
		{"range of nothing", "GET", 2, func(ctx context.Context) error {
			_, err := b.Get(ctx, "empty", bucket.GetOptions{Length: 9})
			return err
		}, nil},
		{"head", "HEAD", 1, func(ctx context.Context) error { _, err := b.Head(ctx, "k"); return err }, nil},
		{"head of nothing", "HEAD", 1, func(ctx context.Context) error { _, err := b.Head(ctx, "no"); return err }, errkind.NotFound},
		{"put", "PUT", 1, func(ctx context.Context) error { _, err := b.Put(ctx, "p", nil, bucket.Condition{}); return err }, nil},
		{"large put", "PUT", 1, func(ctx context.Context) error { _, err := b.Put(ctx, "large", large, bucket.IfAbsent); return err }, nil},
		{"create of what is there", "PUT", 1, func(ctx context.Context) error { _, err := b.Put(ctx, "large", large, bucket.IfAbsent); return err }, errkind.Conflict},
		{"swap", "PUT", 1, func(ctx context.Context) error { _, err := b.Put(ctx, "k", nil, bucket.IfMatch(tag)); return err }, nil},
		{"stale swap", "PUT", 1, func(ctx context.Context) error { _, err := b.Put(ctx, "k", nil, bucket.IfMatch(tag)); return err }, errkind.Conflict},
		{"list", "LIST", 1, func(ctx context.Context) error { _, _, err := b.List(ctx, "", "", 2); return err }, nil},
		{"delete", "DELETE", 1, func(ctx context.Context) error { return b.Delete(ctx, "k") }, nil},
		{"delete of nothing", "DELETE", 1, func(ctx context.Context) error { return b.Delete(ctx, "k") }, nil},
	} {
		s.Reset()
		if err := c.run(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
		if got := s.Requests(); !maps.Equal(got, map[string]int{c.verb: c.n}) {
			t.Errorf("%s sent %v, want %d %s", c.what, got, c.n, c.verb)
		}
	}
}

// verdict is what an answer means to each verb.
type verdict struct {
	status   int
	code     string
	create   error // of a Put with IfAbsent
	swap     error // of a Put with IfMatch
	get, del error // nil: an error of no kind for get, success for del
	invalid  bool  // Invalid as well: only a person can mend it
	hint     string
}

var (
	refused = errkind.Throttled
	unclear = errkind.UnknownOutcome
)

// answers: each answer of a store, or of a proxy in front of it, means one thing.
func answers(t *testing.T, open Open) {
	for _, v := range []verdict{
		{status: 412, code: "PreconditionFailed", create: errkind.Conflict, swap: errkind.Conflict, del: unclear},
		{status: 412, create: errkind.Conflict, swap: errkind.Conflict, del: unclear},
		{status: 404, code: "NoSuchKey", create: refused, swap: errkind.Conflict, get: errkind.NotFound},
		{status: 404, code: "NoSuchBucket", create: refused, swap: refused, get: errkind.Invalid, del: refused, invalid: true, hint: "aws s3 mb s3://" + BucketName},
		{status: 404, create: unclear, swap: unclear, del: unclear},
		{status: 404, code: "page not found", create: unclear, swap: unclear, del: unclear},
		{status: 409, code: "ConditionalRequestConflict", create: refused, swap: refused, del: refused},
		{status: 409, code: "OperationAborted", create: unclear, swap: unclear, del: unclear},
		{status: 409, create: unclear, swap: unclear, del: unclear},
		{status: 429, code: "TooManyRequests", create: refused, swap: refused, del: refused},
		{status: 429, create: refused, swap: refused, del: refused},
		{status: 503, code: "SlowDown", create: refused, swap: refused, del: refused, hint: "503 SlowDown"},
		{status: 503, code: "ServiceUnavailable", create: unclear, swap: unclear, del: unclear},
		{status: 503, code: "SlowDownWrite", create: unclear, swap: unclear, del: unclear},
		{status: 503, code: "no backend", create: unclear, swap: unclear, del: unclear},
		{status: 500, code: "InternalError", create: unclear, swap: unclear, del: unclear},
		{status: 502, code: "bad gateway", create: unclear, swap: unclear, del: unclear},
		{status: 504, create: unclear, swap: unclear, del: unclear},
		{status: 408, code: "RequestTimeout", create: unclear, swap: unclear, del: unclear},
		{status: 400, code: "RequestTimeout", create: unclear, swap: unclear, del: unclear},
		{status: 400, code: "EntityTooLarge", create: refused, swap: refused, del: refused},
		{status: 400, code: "AuthorizationHeaderMalformed", create: refused, swap: refused, get: errkind.Invalid, del: refused, invalid: true, hint: "region="},
		{status: 301, code: "PermanentRedirect", create: refused, swap: refused, get: errkind.Invalid, del: refused, invalid: true, hint: "region="},
		{status: 307, code: "TemporaryRedirect", create: refused, swap: refused, del: refused},
		{status: 403, code: "AccessDenied", create: refused, swap: refused, del: refused, hint: "s3:ListBucket"},
		{status: 403, code: "InvalidAccessKeyId", create: refused, swap: refused, get: errkind.Invalid, del: refused, invalid: true, hint: "AWS_ACCESS_KEY_ID"},
		{status: 403, code: "SignatureDoesNotMatch", create: refused, swap: refused, get: errkind.Invalid, del: refused, invalid: true, hint: "AWS_SECRET_ACCESS_KEY"},
		{status: 403, code: "ExpiredToken", create: refused, swap: refused, del: refused, hint: "AWS_SESSION_TOKEN"},
		{status: 403, code: "RequestTimeTooSkewed", create: refused, swap: refused, del: refused, hint: "clock"},
		{status: 501, code: "NotImplemented", create: refused, swap: refused, get: errkind.Invalid, del: refused, invalid: true, hint: "conditional writes"},
	} {
		t.Run(fmt.Sprint(v.status, v.code), func(t *testing.T) {
			t.Parallel()
			s := Start(t, 0)
			b := open(t, s)
			s.Always(v.status, v.code)
			_, err := b.Put(t.Context(), "k", []byte("x"), bucket.IfAbsent)
			v.check(t, "create", err, v.create)
			_, err = b.Put(t.Context(), "k", []byte("x"), bucket.IfMatch("t"))
			v.check(t, "swap", err, v.swap)
			v.check(t, "delete", b.Delete(t.Context(), "k"), v.del)
			_, err = b.Get(t.Context(), "k", bucket.GetOptions{})
			v.check(t, "get", err, v.get)
			if _, _, err = b.List(t.Context(), "", "", 0); err == nil {
				t.Error("list: no error")
			}
			if got, want := s.Requests(), map[string]int{"PUT": 2, "DELETE": 1, "GET": 1, "LIST": 1}; !maps.Equal(got, want) {
				t.Errorf("sent %v, want %v", got, want)
			}
		})
	}
}

// check compares an error with the one kind that it must be of.
func (v verdict) check(t *testing.T, what string, err, want error) {
	t.Helper()
	if err == nil {
		if want != nil || what == "get" {
			t.Errorf("%s: no error, want %v", what, want)
		}
		return
	}
	if want == nil && what == "delete" {
		t.Errorf("%s: %v", what, err)
	}
	for _, kind := range []error{errkind.Conflict, errkind.Throttled, errkind.UnknownOutcome, errkind.NotFound, errkind.NotModified, errkind.Invalid, errkind.Corrupt} {
		may := kind == want || kind == errkind.Invalid && v.invalid
		if errors.Is(err, kind) != may {
			t.Errorf("%s: %v: is %q: %v", what, err, kind, !may)
		}
	}
	if want != errkind.Conflict && !strings.Contains(err.Error(), v.hint) {
		t.Errorf("%s: the error lacks %q: %v", what, v.hint, err)
	}
}

// badServers: each is refused by Probe, by the name of what it lacks.
func badServers(t *testing.T, open Open) {
	for name, c := range map[string]struct {
		wrong Switch
		lacks bucket.Property
	}{
		"ignores If-None-Match": {IgnoreIfNoneMatch, bucket.CreateOnce},
		"ignores If-Match":      {IgnoreIfMatch, bucket.SwapStale},
		"ignores Range":         {IgnoreRange, bucket.RangeReads},
		"tears reads":           {TearReads, bucket.WholeReads},
		"reads stale":           {StaleReads, bucket.ReadAfterWrite},
		"wrong ETag":            {WrongETag, bucket.ReadAfterWrite},
		"hides missing":         {HideMissing, bucket.ReadAfterDelete},
		"lists unsorted":        {Unsorted, bucket.ListAfterWrite},
		"lists late":            {Lagging, bucket.ListAfterWrite},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := bucket.Probe(t.Context(), open(t, Start(t, c.wrong)), host.System())
			var unsafe *bucket.Unsafe
			if !errors.As(err, &unsafe) || unsafe.Property != c.lacks {
				t.Errorf("%v; want it refused, because it must %s", err, c.lacks.Name)
			}
		})
	}
	// What fails says nothing of the properties, and is no success.
	for name, wrong := range map[string]Switch{"error in 200": ErrorIn200, "loses answers": LoseAnswers, "cuts bodies": CutBodies} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := bucket.Probe(t.Context(), open(t, Start(t, wrong)), host.System())
			if unsafe := (*bucket.Unsafe)(nil); err == nil || errors.As(err, &unsafe) {
				t.Errorf("%v; want a failure that is no verdict", err)
			}
		})
	}
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("takes a hundred times as long as an answer")
		}
		if err := bucket.Probe(t.Context(), open(t, Start(t, Slow)), host.System()); err != nil {
			t.Error(err)
		}
	})
}

// lostAnswers: the effect is there, the outcome is unknown, and nothing is sent again.
func lostAnswers(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	tag := put(t, b, "there", "old", bucket.IfAbsent) // and a connection that is kept: its loss invites a retry
	s.Turn(LoseAnswers)
	for key, c := range map[string]bucket.Condition{"fresh": bucket.IfAbsent, "there": bucket.IfMatch(tag), "any": {}} {
		s.Reset()
		_, err := b.Put(t.Context(), key, []byte("new"), c)
		if !errors.Is(err, errkind.UnknownOutcome) || s.Requests()["PUT"] != 1 {
			t.Errorf("%s: %v after %v", key, err, s.Requests())
		}
		if o, err := b.Get(t.Context(), key, bucket.GetOptions{}); err != nil || string(o.Body) != "new" {
			t.Errorf("%s: %q, %v", key, o.Body, err)
		}
	}
	s.Reset()
	if err := b.Delete(t.Context(), "fresh"); !errors.Is(err, errkind.UnknownOutcome) || s.Requests()["DELETE"] != 1 {
		t.Errorf("delete: %v after %v", err, s.Requests())
	}
}

func errorIn200(t *testing.T, open Open) {
	s := Start(t, ErrorIn200)
	b := open(t, s)
	_, err := b.Put(t.Context(), "k", []byte("x"), bucket.IfAbsent)
	if !errors.Is(err, errkind.UnknownOutcome) || s.Requests()["PUT"] != 1 {
		t.Errorf("%v after %v", err, s.Requests())
	}
	s.Always(200, "InternalError") // also for a GET
	if _, err := b.Get(t.Context(), "k", bucket.GetOptions{}); err == nil || errors.Is(err, errkind.NotFound) {
		t.Errorf("get: %v", err)
	}
}

// cutBodies: half a body is an error, and one that may pass.
func cutBodies(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	put(t, b, "k", strings.Repeat("0123456789", 1000), bucket.IfAbsent)
	s.Turn(CutBodies)
	for _, o := range []bucket.GetOptions{{}, {Offset: 5, Length: 500}} {
		_, err := b.Get(t.Context(), "k", o)
		if err == nil || errors.Is(err, errkind.Corrupt) || errors.Is(err, errkind.NotFound) || errors.Is(err, errkind.Invalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// otherRanges: who asks for a range gets it or an error. A server may send the whole when it
// is what was asked for.
func otherRanges(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	put(t, b, "k", "0123456789", bucket.IfAbsent)
	s.Turn(IgnoreRange)
	for _, o := range []bucket.GetOptions{{Offset: 1}, {Length: 3}, {Offset: 2, Length: 8}} {
		if _, err := b.Get(t.Context(), "k", o); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if o, err := b.Get(t.Context(), "k", bucket.GetOptions{Length: 10}); err != nil || string(o.Body) != "0123456789" {
		t.Errorf("%q, %v", o.Body, err)
	}
}

// silence: a verb ends when its context does, and a write that was under way is unknown.
func silence(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	put(t, b, "k", "x", bucket.IfAbsent)
	s.Turn(Slow)
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), SlowBy/2)
		t.Cleanup(cancel)
		return ctx
	}
	start := time.Now()
	_, err := b.Put(soon(), "k2", []byte("x"), bucket.IfAbsent)
	if !errors.Is(err, errkind.UnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("put: %v", err)
	}
	if err := b.Delete(soon(), "k"); !errors.Is(err, errkind.UnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("delete: %v", err)
	}
	if _, err := b.Get(soon(), "k", bucket.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get: %v", err)
	}
	if _, err := b.Head(soon(), "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("head: %v", err)
	}
	if _, _, err := b.List(soon(), "", "", 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("list: %v", err)
	}
	if took := time.Since(start); took > 20*SlowBy {
		t.Errorf("took %s", took)
	}
}

// bodies: after a Put returned its caller may write over the body; the race detector watches.
// The server reads late, so that the body is still on its way when the context ends.
func bodies(t *testing.T, open Open) {
	s := Start(t, Slow)
	b := open(t, s)
	body := make([]byte, 16<<20)
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), SlowBy/2)
		if _, err := b.Put(ctx, "k", body, bucket.Condition{}); err == nil {
			t.Error("no error")
		}
		cancel()
		for at := 0; at < len(body); at += 1024 {
			body[at] = byte(i)
		}
	}
}

// noServer: what found no server has had no effect, and the error names the address.
func noServer(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	s.close()
	_, err := b.Put(t.Context(), "k", []byte("x"), bucket.IfAbsent)
	if !errors.Is(err, errkind.Throttled) || errors.Is(err, errkind.UnknownOutcome) || !strings.Contains(err.Error(), s.Host()) {
		t.Errorf("put: %v", err)
	}
	if err := b.Delete(t.Context(), "k"); !errors.Is(err, errkind.Throttled) {
		t.Errorf("delete: %v", err)
	}
	_, err = b.Get(t.Context(), "k", bucket.GetOptions{})
	if err == nil || errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), s.Host()) {
		t.Errorf("get: %v", err)
	}
}

// connections: 64 requests at once, again and again, use connections again.
func connections(t *testing.T, open Open) {
	s := Start(t, 0)
	b := open(t, s)
	put(t, b, "k", "x", bucket.IfAbsent)
	for range 10 {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				if _, err := b.Get(t.Context(), "k", bucket.GetOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n := s.Connections(); n > 128 {
		t.Errorf("%d connections for 64 requests at once", n)
	}
}
