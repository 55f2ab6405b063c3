package s3bucket_test

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3bucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"github.com/granarydb/granary/manifest/errkind"
)

// What cannot work is refused before anything is sent, with the reason and no secret in it.
func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for _, c := range []struct {
		name string
		o    s3bucket.Options
		env  string
		hint string
	}{
		{"ab", s3bucket.Options{}, "", "3 to 63"},
		{"abc", s3bucket.Options{Prefix: "a//b"}, "", "empty component"},
		{"abc", s3bucket.Options{Class: "CHEAP"}, "", "STANDARD_IA"},
		{"abc", s3bucket.Options{Class: "GLACIER"}, "", "GLACIER_IR"},
		{"abc", s3bucket.Options{SSE: "rot13"}, "", "aws:kms"},
		{"abc", s3bucket.Options{KMSKeyID: "id"}, "", "without sse=aws:kms"},
		{"abc", s3bucket.Options{Endpoint: "localhost:9000"}, "", "http://HOST:PORT"},
		{"abc", s3bucket.Options{Endpoint: "http://host/path"}, "", "without a path"},
		{"abc", s3bucket.Options{Endpoint: "http://hush:hush@host"}, "", "without keys"},
		{"abc", s3bucket.Options{}, "", "AWS_REGION"},
		{"abc", s3bucket.Options{}, "AWS_ENDPOINT_URL=http://hush:hush@host", "without keys"},
		{"abc", s3bucket.Options{}, "AWS_RETRY_MODE=often", "AWS configuration"},
		{"abc", s3bucket.Options{Region: "eu-west-1"}, "AWS_SECRET_ACCESS_KEY=", "no keys"},
	} {
		t.Run(c.hint, func(t *testing.T) {
			if name, value, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(name, value)
			}
			_, err := s3bucket.Open(t.Context(), c.name, &c.o)
			if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), c.hint) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%+v %s: %v, want it to say %q", c.o, c.env, err, c.hint)
			}
		})
	}
}

func TestStringIsTheURL(t *testing.T) {
	for want, o := range map[string]s3bucket.Options{
		"s3://abc?region=eu-west-1":                              {Region: "eu-west-1"},
		"s3://abc/a/b?endpoint=http://h:9000&region=us-east-1":   {Prefix: "a/b", Endpoint: "http://h:9000"},
		"s3://abc?class=STANDARD_IA&region=x-1&sse=AES256":       {Region: "x-1", Class: "STANDARD_IA", SSE: "AES256"},
		"s3://abc?kmsKeyId=alias/k&region=x-1&sse=aws:kms":       {Region: "x-1", SSE: "aws:kms", KMSKeyID: "alias/k"},
		"s3://abc?kmsKeyId=alias/k&region=x-1&sse=aws:kms:dsse#": {Region: "x-1", SSE: "aws:kms:dsse", KMSKeyID: "alias/k"},
	} {
		b, err := s3bucket.Open(t.Context(), "abc", &o)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != strings.TrimSuffix(want, "#") {
			t.Errorf("%s, want %s", b, want)
		}
		b.Close()
	}
}

// An endpoint in the environment counts as one in the options.
func TestEndpointOfTheEnvironment(t *testing.T) {
	s := s3test.Start(t, 0)
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_MAX_ATTEMPTS", "7") // no retries, whatever the environment says
	b, err := s3bucket.Open(t.Context(), s3test.BucketName, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Put(t.Context(), "k", []byte("x"), bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	if want := "s3://" + s3test.BucketName + "?endpoint=" + s.URL + "&region=us-east-1"; b.String() != want {
		t.Errorf("%s, want %s", b, want)
	}
	s.Always(503, "SlowDown")
	_, err = b.Get(t.Context(), "k", bucket.GetOptions{})
	if err == nil || s.Requests()["GET"] != 1 {
		t.Errorf("%v after %v", err, s.Requests())
	}
}

// The class is for segments; encryption is for everything; no checksum that a store of one's
// own might not know.
func TestOptionsReachTheStore(t *testing.T) {
	s := s3test.Start(t, 0)
	b, err := s3bucket.Open(t.Context(), s3test.BucketName, &s3bucket.Options{Endpoint: s.URL, Class: "STANDARD_IA", SSE: "aws:kms", KMSKeyID: "alias/k"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for key, class := range map[string]string{"seg/00/x": "STANDARD_IA", "meta/root": "", "wal/s/1/2": ""} {
		if _, err := b.Put(t.Context(), key, make([]byte, 3<<20), bucket.IfAbsent); err != nil {
			t.Fatal(err)
		}
		h := s.LastPut().Header
		for name, want := range map[string]string{
			"X-Amz-Storage-Class": class, "X-Amz-Server-Side-Encryption": "aws:kms",
			"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "alias/k", "X-Amz-Checksum-Crc32": "", "Content-Encoding": "", "Expect": "",
		} {
			if h.Get(name) != want {
				t.Errorf("%s: %s is %q, want %q", key, name, h.Get(name), want)
			}
		}
		if sum := h.Get("X-Amz-Content-Sha256"); len(sum) != 64 {
			t.Errorf("%s: the body is not signed: %q", key, sum)
		}
	}
}

// Errors of the first request say what to type.
func TestWrongSettingsAreTold(t *testing.T) {
	s := s3test.Start(t, 0)
	for _, c := range []struct{ name, region, env, hint string }{
		{"other-bucket", "", "", "aws s3 mb s3://other-bucket"},
		{s3test.BucketName, "eu-west-3", "", "region=" + s3test.Region},
		{s3test.BucketName, "", "somebody", "AWS_ACCESS_KEY_ID"},
	} {
		t.Run(c.hint, func(t *testing.T) {
			if c.env != "" {
				t.Setenv("AWS_ACCESS_KEY_ID", c.env)
			}
			b, err := s3bucket.Open(t.Context(), c.name, &s3bucket.Options{Endpoint: s.URL, Region: c.region})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			_, err = b.Get(t.Context(), "k", bucket.GetOptions{})
			if !errors.Is(err, errkind.Invalid) || errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("get: %v, want it to say %q", err, c.hint)
			}
			_, err = b.Put(t.Context(), "k", nil, bucket.IfAbsent)
			if !errors.Is(err, errkind.Throttled) || !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("put: %v, want it to say %q", err, c.hint)
			}
		})
	}
}

// A store with a certificate of one's own works once AWS_CA_BUNDLE names it.
func TestOwnCertificates(t *testing.T) {
	s := s3test.Start(t, 0)
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = true // which the driver does not want
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	o := &s3bucket.Options{Endpoint: server.URL}
	b, err := s3bucket.Open(t.Context(), s3test.BucketName, o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Put(t.Context(), "k", []byte("x"), bucket.IfAbsent)
	b.Close()
	if !errors.Is(err, errkind.Throttled) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the certificate: %v", err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", file)
	if b, err = s3bucket.Open(t.Context(), s3test.BucketName, o); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Put(t.Context(), "k", []byte("x"), bucket.IfAbsent); err != nil || s.LastPut().Proto != "HTTP/1.1" {
		t.Errorf("over %s: %v", s.LastPut().Proto, err)
	}
}
