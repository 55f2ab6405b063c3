package s3wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3wire"
	"github.com/granarydb/granary/manifest/errkind"
)

func TestPlacesKeepToTheRulesOfNames(t *testing.T) {
	for name, rule := range map[string]string{
		"ab": "3 to 63", strings.Repeat("a", 64): "3 to 63", "Upper": "small letters", "under_score": "small letters",
		"-dash": "begins and ends", "dot.": "begins and ends", "a..b": "no '..'", "192.168.1.1": "no address",
	} {
		if _, err := s3wire.NewPlace(name, ""); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"abc", "my-bucket.1", strings.Repeat("a", 63)} {
		if _, err := s3wire.NewPlace(name, ""); err != nil {
			t.Error(err)
		}
	}
	if _, err := s3wire.NewPlace("abc", "a//b"); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "prefix") {
		t.Error(err)
	}
}

func TestKeysLieBelowThePrefix(t *testing.T) {
	p, err := s3wire.NewPlace("abc", "team/one")
	if err != nil {
		t.Fatal(err)
	}
	key, err := p.Key("meta/root")
	if err != nil || key != "team/one/meta/root" || p.Own(key) != "meta/root" || p.String() != "abc/team/one" {
		t.Error(key, err, p.Own(key), p)
	}
	long := strings.Repeat("a/", 508) + "aaaaaaaa" // 1024 bytes: as long as a key may be without a prefix
	if _, err := p.Key(long); !errors.Is(err, errkind.Invalid) {
		t.Error(err)
	}
	if _, err := p.Key("/"); !errors.Is(err, errkind.Invalid) {
		t.Error(err)
	}
}

// A List starts where the store's order and ours agree, and nowhere for nothing.
func TestListsStartAfterTheKey(t *testing.T) {
	for _, c := range []struct{ prefix, under, after, want, start string }{
		{"", "", "", "", ""},
		{"", "wal/", "", "wal/", ""},
		{"", "wal/", "meta/root", "wal/", ""},
		{"", "wal/", "wal/7", "wal/", "wal/7"},
		{"", "", "\x00", "", ""},
		{"", "", "a\x00z", "", "a"},
		{"p", "", "", "p/", ""},
		{"p", "wal/", "wal/7", "p/wal/", "p/wal/7"},
		{"p", "wal/", "x", "p/wal/", "p/x"},
		{"p", "wal", "wal", "p/wal", "p/wal"},
	} {
		p, err := s3wire.NewPlace("abc", c.prefix)
		if err != nil {
			t.Fatal(err)
		}
		if under, start := p.Start(c.under, c.after); under != c.want || start != c.start {
			t.Errorf("%+v: %q %q", c, under, start)
		}
	}
}

func TestTagsLoseTheirQuotes(t *testing.T) {
	for header, tag := range map[string]bucket.Tag{`"abc"`: "abc", "abc": "abc", `W/"abc"`: `W/"abc"`, `"`: `"`, "": "", `""`: ""} {
		if got := s3wire.Tag(header); got != tag {
			t.Errorf("%s: %s", header, got)
		}
	}
	if s3wire.ETag("abc") != `"abc"` || s3wire.ETag(`W/"abc"`) != `W/"abc"` {
		t.Error(s3wire.ETag("abc"))
	}
}

func TestRangeHeaders(t *testing.T) {
	for _, c := range []struct {
		offset, length int64
		want           string
	}{
		{0, 0, ""},
		{5, 0, "bytes=5-"},
		{0, 5, "bytes=0-4"},
		{5, 5, "bytes=5-9"},
		{5, math.MaxInt64, "bytes=5-"},
		{0, math.MaxInt64, "bytes=0-9223372036854775806"},
	} {
		got, err := s3wire.Range("k", bucket.GetOptions{Offset: c.offset, Length: c.length})
		if got != c.want || err != nil {
			t.Errorf("%d+%d: %q, %v", c.offset, c.length, got, err)
		}
	}
	for _, o := range []bucket.GetOptions{{Offset: -1}, {Length: -1}} {
		if _, err := s3wire.Range("k", o); !errors.Is(err, errkind.Invalid) {
			t.Error(err)
		}
	}
}

func TestRepliesAreChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		r    s3wire.Reply
		o    bucket.GetOptions
		body string // of the object, "" for an error
		kind error
	}{
		{"whole", s3wire.Reply{Length: 10}, bucket.GetOptions{}, "0123456789", nil},
		{"of unknown length", s3wire.Reply{Length: -1}, bucket.GetOptions{}, "0123456789", nil},
		{"range", s3wire.Reply{Length: 10, ContentRange: "bytes 90-99/200"}, bucket.GetOptions{Offset: 90, Length: 10}, "0123456789", nil},
		{"range to the end", s3wire.Reply{Length: 10, ContentRange: "bytes 90-99/100"}, bucket.GetOptions{Offset: 90, Length: 50}, "0123456789", nil},
		{"short", s3wire.Reply{Length: 11}, bucket.GetOptions{}, "", io.ErrUnexpectedEOF},
		{"too long", s3wire.Reply{Length: s3wire.PutBytesMax + 1}, bucket.GetOptions{}, "", errkind.Corrupt},
		{"another range", s3wire.Reply{Length: 10, ContentRange: "bytes 80-89/100"}, bucket.GetOptions{Offset: 90, Length: 10}, "", errkind.Corrupt},
		{"a shorter range", s3wire.Reply{Length: 10, ContentRange: "bytes 80-89/100"}, bucket.GetOptions{Offset: 80, Length: 11}, "", errkind.Corrupt},
		{"beyond the end", s3wire.Reply{Length: 10}, bucket.GetOptions{Offset: 10}, "", errkind.Invalid},
		{"no size", s3wire.Reply{Length: 10, ContentRange: "bytes 0-9/*"}, bucket.GetOptions{Length: 10}, "", errkind.Corrupt},
		{"no numbers", s3wire.Reply{Length: 10, ContentRange: "lines 1-2/3"}, bucket.GetOptions{Length: 10}, "", errkind.Corrupt},
	} {
		c.r.Body, c.r.Tag, c.r.Modified = strings.NewReader("0123456789"), "t", time.Unix(7, 999)
		o, err := c.r.Object(t.Context(), "k", c.o)
		if string(o.Body) != c.body || !errors.Is(err, c.kind) {
			t.Errorf("%s: %q, %v", c.name, o.Body, err)
		}
		if err == nil && (o.Tag != "t" || o.ModifiedMillis != 7000 || o.Key != "k") {
			t.Errorf("%s: %+v", c.name, o.Attrs)
		}
	}
	if _, err := (s3wire.Reply{Body: strings.NewReader(""), Length: 0}).Object(t.Context(), "k", bucket.GetOptions{}); err == nil || !strings.Contains(err.Error(), "ETag") {
		t.Error(err)
	}
	if o := s3wire.Cut(bucket.Object{Body: []byte("0123")}, bucket.GetOptions{Length: 2}); string(o.Body) != "01" {
		t.Error(string(o.Body))
	}
}

func TestUploadsEnd(t *testing.T) {
	u := s3wire.NewUpload([]byte("0123456789"))
	for range 2 { // a signature reads it before the connection does
		if b, err := io.ReadAll(u); string(b) != "0123456789" || err != nil {
			t.Fatal(string(b), err)
		}
		if at, err := u.Seek(0, io.SeekStart); at != 0 || err != nil {
			t.Fatal(at, err)
		}
	}
	if at, err := u.Seek(-3, io.SeekEnd); at != 7 || err != nil {
		t.Error(at, err)
	}
	if at, err := u.Seek(1, io.SeekCurrent); at != 8 || err != nil {
		t.Error(at, err)
	}
	for _, offset := range []int64{-1, 11} {
		if _, err := u.Seek(offset, io.SeekStart); err == nil {
			t.Error("sought outside")
		}
	}
	u.End()
	if n, err := u.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
		t.Error("an ended body must break off, not end well:", n, err)
	}
	if _, ok := any(u).(io.WriterTo); ok {
		t.Error("an Upload gives its bytes away")
	}
}

func TestPutsAreCheckedBeforeTheyAreSent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := s3wire.CheckPut(ctx, "k", []byte("x")); err != nil {
		t.Error(err)
	}
	cancel()
	if err := s3wire.CheckPut(ctx, "k", nil); !errors.Is(err, errkind.Throttled) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if tag, err := s3wire.PutTag("k", `"t"`); tag != "t" || err != nil {
		t.Error(tag, err)
	}
	if _, err := s3wire.PutTag("k", ""); !errors.Is(err, errkind.UnknownOutcome) {
		t.Error(err)
	}
}

// Texts name the verb, the key and what to type, and leave out what SDKs put around a cause.
func TestFailuresSayWhatToType(t *testing.T) {
	for want, f := range map[string]s3wire.Failure{
		"head k: not found":                             {Verb: "head", Status: 404},
		"add region=eu-west-3 to the URL":               {Verb: "head", Status: 301, Region: "eu-west-3"},
		"add region=THE-BUCKET'S-REGION to the URL":     {Verb: "get", Status: 301, Code: "PermanentRedirect"},
		"aws s3 mb s3://abc":                            {Verb: "list", Status: 404, Code: "NoSuchBucket"},
		"the store answered 500":                        {Verb: "get", Status: 500},
		"500 InternalError: try later":                  {Verb: "get", Status: 500, Code: "InternalError", Message: "try later"},
		"get k: dial failed":                            {Verb: "get", Cause: fmt.Errorf("operation error S3: %w", &url.Error{Op: "Get", URL: "http://x", Err: errors.New("dial failed")})},
		"tls=false":                                     {Verb: "get", Cause: errors.New("http: server gave HTTP response to HTTPS client")},
		"did not answer as S3 does":                     {Verb: "get"},
		"s3:ListBucket on abc":                          {Verb: "get", Status: 403},
		"100% sure is what the message said, untouched": {Verb: "get", Status: 400, Code: "X", Message: "100% sure is what the message said, untouched"},
	} {
		f.Key, f.Bucket = "k", "abc"
		if err := f.OfRead(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}

// A write's failure is of the one kind that says whether the object could have been written.
// (The drivers' tests have a row for each answer of a store.)
func TestWritesThatFailedAreSorted(t *testing.T) {
	match := bucket.IfMatch("t")
	for _, c := range []struct {
		f    s3wire.Failure
		c    bucket.Condition
		sent bool
		want error
	}{
		{s3wire.Failure{Verb: "put", Status: 412}, bucket.IfAbsent, true, errkind.Conflict},
		{s3wire.Failure{Verb: "put", Status: 412}, bucket.Condition{}, true, errkind.UnknownOutcome},
		{s3wire.Failure{Verb: "put", Status: 404, Code: "NoSuchKey"}, match, true, errkind.Conflict},
		{s3wire.Failure{Verb: "put", Status: 404}, match, true, errkind.UnknownOutcome},
		{s3wire.Failure{Verb: "delete", Status: 404, Code: "NoSuchKey"}, bucket.Condition{}, true, nil},
		{s3wire.Failure{Verb: "put", Cause: errors.New("reset")}, match, true, errkind.UnknownOutcome},
		{s3wire.Failure{Verb: "put", Cause: errors.New("refused")}, match, false, errkind.Throttled},
		{s3wire.Failure{Verb: "put", Status: 503, Code: "SlowDown"}, match, true, errkind.Throttled},
		{s3wire.Failure{Verb: "put", Status: 503}, match, true, errkind.UnknownOutcome},
		{s3wire.Failure{Verb: "put", Status: 400, Code: "RequestTimeout"}, match, true, errkind.UnknownOutcome},
		{s3wire.Failure{Verb: "put", Status: 403, Code: "SignatureDoesNotMatch"}, match, true, errkind.Invalid},
	} {
		if err := c.f.OfWrite(t.Context(), c.c, c.sent); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v: %v, want %v", c.f, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s3wire.Failure{Verb: "put", Cause: errors.New("gone")}.OfWrite(ctx, match, true)
	if !errors.Is(err, errkind.UnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Watch sees a request get its connection, and one that finds nobody get none.
func TestWatchSeesConnections(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	client := &http.Client{Transport: s3wire.NewTransport()}
	defer client.CloseIdleConnections()
	try := func() bool {
		ctx, sent := s3wire.Watch(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := client.Do(r); err == nil {
			answer.Body.Close()
		}
		return sent.Load()
	}
	if !try() {
		t.Error("a request that was answered had no connection")
	}
	client.CloseIdleConnections()
	server.Close()
	if try() {
		t.Error("a request had a connection to nobody")
	}
}
