package s3bucket

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"github.com/granarydb/granary/manifest/errkind"
)

// Without an endpoint requests go to Amazon: to the bucket's own host name, over TLS, with a
// checksum behind the body. Here the connection is bent to the test's server.
func TestRequestsAsAmazonWantsThem(t *testing.T) {
	s := s3test.Start(t, 0)
	var last *http.Request
	amazon := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = r
		r.URL.Path = "/" + s3test.BucketName + r.URL.Path
		if strings.HasPrefix(r.Header.Get("x-amz-content-sha256"), "STREAMING-") {
			body, err := unchunk(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		s.ServeHTTP(w, r)
	}))
	defer amazon.Close()
	b, err := Open(t.Context(), s3test.BucketName, &Options{Region: s3test.Region, SSE: "AES256"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.conns.Transport.(*http.Transport).DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", amazon.Listener.Addr().String())
	}
	for _, body := range []string{"", "body", strings.Repeat("large ", 1<<20)} {
		key := "wal/" + strconv.Itoa(len(body))
		tag, err := b.Put(t.Context(), key, []byte(body), bucket.IfAbsent)
		if err != nil {
			t.Fatal(err)
		}
		if want := s3test.BucketName + ".s3.us-east-1.amazonaws.com"; last.Host != want {
			t.Errorf("sent to %s, want %s", last.Host, want)
		}
		if last.Header.Get("X-Amz-Trailer") != "x-amz-checksum-crc32" && last.Header.Get("X-Amz-Checksum-Crc32") == "" {
			t.Errorf("no checksum: %v", last.Header)
		}
		o, err := b.Get(t.Context(), key, bucket.GetOptions{})
		if err != nil || string(o.Body) != body || o.Tag != tag {
			t.Errorf("%d bytes of %d, %v", len(o.Body), len(body), err)
		}
		if _, err := b.Put(t.Context(), key, []byte(body), bucket.IfAbsent); !errors.Is(err, errkind.Conflict) {
			t.Error(err)
		}
	}
	if n := s.Requests(); n["PUT"] != 6 || n["GET"] != 3 {
		t.Errorf("sent %v", n)
	}
}

// unchunk reads a body of "aws-chunked": each chunk is its size in hexadecimal and the bytes;
// the checksum follows the last, empty one.
func unchunk(r io.Reader) ([]byte, error) {
	var body bytes.Buffer
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(line), 16, 64)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			_, err = io.Copy(io.Discard, in)
			return body.Bytes(), err
		}
		if _, err := io.CopyN(&body, in, n); err != nil {
			return nil, err
		}
		if _, err := in.Discard(len("\r\n")); err != nil {
			return nil, err
		}
	}
}
