package s3test

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// modified is every object's time: a bucket in memory keeps none.
var modified = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func etag(t bucket.Tag) string { return `"` + string(t) + `"` }

func untag(header string) bucket.Tag { return bucket.Tag(strings.Trim(header, `"`)) }

// write sends an error as S3 does, or as a proxy in front of it.
func (a answer) write(w http.ResponseWriter, r *http.Request) {
	body := ""
	switch {
	case strings.Contains(a.code, " "):
		body = "<html><body>" + a.code + "</body></html>"
	case a.code != "":
		w.Header().Set("Content-Type", "application/xml")
		body = fmt.Sprintf("%s<Error><Code>%s</Code><Message>as the test asked</Message><RequestId>1</RequestId></Error>", xml.Header, a.code)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, body)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, key string) {
	obj, err := s.Objects.Get(r.Context(), key, bucket.GetOptions{})
	if old, ok := s.stale(key); ok && r.Method == http.MethodGet {
		obj, err = old, nil
	}
	if errors.Is(err, errkind.NotFound) && s.is(HideMissing) {
		obj, err = bucket.Object{Attrs: bucket.Attrs{Tag: "none"}}, nil
	}
	if err != nil {
		answer{http.StatusNotFound, "NoSuchKey"}.write(w, r)
		return
	}
	h := w.Header()
	h.Set("ETag", etag(obj.Tag))
	h.Set("Last-Modified", modified.Format(http.TimeFormat))
	if match := r.Header.Get("If-None-Match"); match != "" && untag(match) == obj.Tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, status := obj.Body, http.StatusOK
	if span := r.Header.Get("Range"); span != "" && !s.is(IgnoreRange) {
		from, to, ok := cut(span, int64(len(body)))
		if !ok {
			answer{http.StatusRequestedRangeNotSatisfiable, "InvalidRange"}.write(w, r)
			return
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(body)))
		body, status = body[from:to], http.StatusPartialContent
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	if s.is(CutBodies) && len(body) > 0 {
		_, _ = w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// cut reads "bytes=5-9" or "bytes=5-". As on S3, no range of an empty object can be had.
func cut(span string, size int64) (from, to int64, ok bool) {
	first, last, _ := strings.Cut(strings.TrimPrefix(span, "bytes="), "-")
	from, err := strconv.ParseInt(first, 10, 64)
	to = size
	if last != "" && err == nil {
		to, err = strconv.ParseInt(last, 10, 64)
		to = min(to+1, size)
	}
	return from, to, err == nil && from < size
}

// stale is what a GET still sees of an overwritten object, once.
func (s *Server) stale(key string) (bucket.Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.old[key]
	delete(s.old, key)
	return old, ok
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		answer{http.StatusBadRequest, "IncompleteBody"}.write(w, r)
		return
	}
	if s.is(ErrorIn200) {
		answer{http.StatusOK, "InternalError"}.write(w, r)
		return
	}
	tag, err := s.store(key, body, s.condition(r))
	if s.is(LoseAnswers) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		answer{http.StatusPreconditionFailed, "PreconditionFailed"}.write(w, r)
		return
	}
	if s.is(WrongETag) {
		tag += "-other"
	}
	w.Header().Set("ETag", etag(tag))
}

func (s *Server) condition(r *http.Request) bucket.Condition {
	match := r.Header.Get("If-Match")
	switch {
	case r.Header.Get("If-None-Match") == "*" && !s.is(IgnoreIfNoneMatch):
		return bucket.IfAbsent
	case match != "" && !s.is(IgnoreIfMatch):
		return bucket.IfMatch(untag(match))
	}
	return bucket.Condition{}
}

// store puts a body, by detours where a switch asks for them. The test's own context does
// not end a write: a real server does not stop for a client that left.
func (s *Server) store(key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	ctx := context.Background()
	if !s.is(TearReads | StaleReads) {
		return s.Objects.Put(ctx, key, body, c)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	before, err := s.Objects.Get(ctx, key, bucket.GetOptions{})
	if c.Absent() && err == nil || c.Match() != "" && c.Match() != before.Tag {
		return "", errkind.Conflict
	}
	if err == nil && s.is(StaleReads) {
		s.mu.Lock()
		s.old[key] = before
		s.mu.Unlock()
	}
	if err == nil && s.is(TearReads) && len(before.Body) == len(body) {
		half := len(body) / 2
		_, _ = s.Objects.Put(ctx, key, slices.Concat(body[:half], before.Body[half:]), bucket.Condition{})
		time.Sleep(2 * time.Millisecond)
	}
	return s.Objects.Put(ctx, key, body, bucket.Condition{})
}

type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Name                  string
	EncodingType          string `xml:",omitempty"`
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	KeyCount              int
	Contents              []content
}

type content struct {
	Key, LastModified, ETag string
	Size                    int64
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	after := q.Get("start-after")
	if token := q.Get("continuation-token"); token != "" {
		after = token
	}
	max, _ := strconv.Atoi(q.Get("max-keys"))
	page, more, _ := s.Objects.List(r.Context(), q.Get("prefix"), after, max)
	out := listing{Name: BucketName, EncodingType: q.Get("encoding-type"), IsTruncated: more, KeyCount: len(page)}
	if more {
		out.NextContinuationToken = page[len(page)-1].Key
	}
	if s.is(Lagging) && len(page) > 0 && !more {
		page = page[:len(page)-1]
	}
	if s.is(Unsorted) {
		slices.Reverse(page)
	}
	for _, a := range page {
		key := a.Key
		if out.EncodingType == "url" {
			key = strings.ReplaceAll(url.QueryEscape(key), "%2F", "/")
		}
		out.Contents = append(out.Contents, content{Key: key, LastModified: modified.Format("2006-01-02T15:04:05.000Z"), ETag: etag(a.Tag), Size: a.Size})
	}
	w.Header().Set("Content-Type", "application/xml")
	_, _ = io.WriteString(w, xml.Header)
	_ = xml.NewEncoder(w).Encode(out)
}
