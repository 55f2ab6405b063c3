package miniobucket_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/miniobucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"github.com/granarydb/granary/manifest/errkind"
)

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for _, c := range []struct{ host, name, prefix, hint string }{
		{"h:9000", "ab", "", "3 to 63"},
		{"h:9000", "abc", "a/../b", ". or .."},
		{"h:port:x", "abc", "", "host"},
	} {
		_, err := miniobucket.Open(c.host, c.name, &miniobucket.Options{Prefix: c.prefix})
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Keys are AWS's or MinIO's, from the environment; without any the client would be nobody.
func TestKeysComeFromTheEnvironment(t *testing.T) {
	s := s3test.Start(t, 0)
	try := func() error {
		b, err := miniobucket.Open(s.Host(), s3test.BucketName, &miniobucket.Options{Plain: true})
		if err != nil {
			return err
		}
		defer b.Close()
		_, err = b.Put(t.Context(), "k", []byte("x"), bucket.Condition{})
		return err
	}
	if err := try(); err != nil {
		t.Error(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "somebody")
	if err := try(); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "does not know this access key") {
		t.Error(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	if err := try(); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "MINIO_ROOT_USER") {
		t.Error(err)
	}
	t.Setenv("MINIO_ROOT_USER", "granarytest")
	t.Setenv("MINIO_ROOT_PASSWORD", "granarytestsecret")
	if err := try(); err != nil {
		t.Error(err)
	}
}

func TestStringIsTheURL(t *testing.T) {
	for want, o := range map[string]*miniobucket.Options{
		"minio://h:9000/abc?tls=true":                       nil,
		"minio://h:9000/abc/a/b?region=eu-west-3&tls=false": {Prefix: "a/b", Region: "eu-west-3", Plain: true},
	} {
		b, err := miniobucket.Open("h:9000", "abc", o)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%s, want %s", b, want)
		}
		b.Close()
	}
}

func TestWrongSettingsAreTold(t *testing.T) {
	s := s3test.Start(t, 0)
	for _, c := range []struct {
		name, region string
		plain        bool
		hint         string
	}{
		{"other-bucket", "", true, "aws s3 mb s3://other-bucket"},
		{s3test.BucketName, "eu-west-3", true, "region=" + s3test.Region},
		{s3test.BucketName, "", false, "tls=false"},
	} {
		b, err := miniobucket.Open(s.Host(), c.name, &miniobucket.Options{Region: c.region, Plain: c.plain})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Get(t.Context(), "k", bucket.GetOptions{})
		if err == nil || errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("get: %v, want it to say %q", err, c.hint)
		}
		_, err = b.Put(t.Context(), "k", nil, bucket.IfAbsent)
		if !errors.Is(err, errkind.Throttled) || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("put: %v, want it to say %q", err, c.hint)
		}
		b.Close()
	}
}
