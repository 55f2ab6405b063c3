package open_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/buckettest"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
)

// The keys of a store that GRANARY_TEST_S3 names are in the environment: they are left there.
func TestMain(m *testing.M) {
	if os.Getenv("GRANARY_TEST_S3") == "" {
		s3test.SetKeys()
	}
	goleak.VerifyTestMain(m)
}

func mustOpen(t *testing.T, url string) bucket.Bucket {
	t.Helper()
	b, err := open.URL(t.Context(), url, host.System())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestS3URLsOpenTheirStores(t *testing.T) {
	if os.Getenv("GRANARY_TEST_S3") != "" {
		t.Skip("the keys are those of GRANARY_TEST_S3")
	}
	s := s3test.Start(t, 0)
	for url, want := range map[string]string{
		"s3://granary-test/a/b/?endpoint=" + s.URL:                     "s3://granary-test/a/b?endpoint=" + s.URL + "&region=us-east-1",
		"s3://granary-test?endpoint=" + s.URL + "&sse=AES256":          "s3://granary-test?endpoint=" + s.URL + "&region=us-east-1&sse=AES256",
		"minio://" + s.Host() + "/granary-test/c":                      "minio://" + s.Host() + "/granary-test/c?tls=false",
		"minio://" + s.Host() + "/granary-test?tls=0&region=us-east-1": "minio://" + s.Host() + "/granary-test?region=us-east-1&tls=false",
	} {
		b := mustOpen(t, url)
		if b.String() != want {
			t.Errorf("%s opened %s, want %s", url, b, want)
		}
		if _, err := b.Put(t.Context(), "k", nil, bucket.Condition{}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		mustOpen(t, b.String()) // a String is a URL
	}
	if b := mustOpen(t, "minio://store.example/granary-test"); b.String() != "minio://store.example/granary-test?tls=true" {
		t.Errorf("%s is not over TLS", b)
	}
}

// A URL that cannot work says what to type, and shows no key that was in it.
func TestBadS3URLsSayWhatToType(t *testing.T) {
	for url, hint := range map[string]string{
		"s3:bucket":                                 "type s3://BUCKET/PREFIX",
		"s3://":                                     "type s3://BUCKET/PREFIX",
		"s3://bucket#part":                          "type s3://BUCKET/PREFIX",
		"s3://bucket:9000/x":                        "endpoint=http://bucket:9000",
		"s3://bucket?regoin=x":                      `unknown parameter "regoin"; known are region, endpoint, class, sse, kmsKeyId, profile`,
		"s3://bucket?region=a&region=b":             "comes 2 times",
		"s3://bucket?region=%zz":                    "parameters cannot be read",
		"s3://AKIA:hush@bucket":                     "set AWS_ACCESS_KEY_ID",
		"s3://AKIA:hu/sh@bucket/x":                  "set AWS_ACCESS_KEY_ID",
		"s3://bucket?endpoint=http://k:hush@host":   "without keys",
		"s3://bucket?endpoint=http://k:hush%40host": "http://HOST:PORT",
		"s3://Bucket":                               "small letters",
		"s3://bucket/a//b?region=x":                 "empty component",
		"minio://host:9000":                         "type minio://HOST:9000/BUCKET/PREFIX",
		"minio://host:9000/":                        "type minio://HOST:9000/BUCKET/PREFIX",
		"minio://host:9000/bucket?tls=perhaps":      "tls=true or tls=false",
		"minio://host:9000/bucket?class=x":          "known are tls, region",
		"minio://root:hush@host:9000/bucket":        "set AWS_ACCESS_KEY_ID",
		"minio://host:9000/ab":                      "3 to 63",
	} {
		_, err := open.URL(t.Context(), url, host.System())
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want it to say %q", url, err, hint)
		}
		if err != nil && (strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "hu/sh")) {
			t.Errorf("%q: the error shows the key: %v", url, err)
		}
	}
}

// The two clients are one store: what one writes the other reads, their tags are the same,
// and of creates and swaps that race through both exactly one wins.
func TestBothDriversSeeOneStore(t *testing.T) {
	if os.Getenv("GRANARY_TEST_S3") != "" {
		t.Skip("the keys are those of GRANARY_TEST_S3")
	}
	t.Run("fake", func(t *testing.T) { t.Parallel(); bothDrivers(t, s3test.Start(t, 0).Host()) })
	t.Run("real", func(t *testing.T) { t.Parallel(); bothDrivers(t, s3test.Real(t)) })
}

func bothDrivers(t *testing.T, at string) {
	ctx := t.Context()
	drivers := []bucket.Bucket{
		mustOpen(t, "s3://granary-test/both?endpoint=http://"+at),
		mustOpen(t, "minio://"+at+"/granary-test/both?tls=false"),
	}
	for i, writes := range drivers {
		reads, key := drivers[1-i], fmt.Sprint("k", i)
		tag, err := writes.Put(ctx, key, []byte(key), bucket.IfAbsent)
		if err != nil {
			t.Fatal(err)
		}
		o, err := reads.Get(ctx, key, bucket.GetOptions{})
		if err != nil || string(o.Body) != key || o.Tag != tag {
			t.Errorf("%s: %q %+v %v, want tag %s", reads, o.Body, o.Attrs, err, tag)
		}
		if _, err := reads.Put(ctx, key, []byte("next"), bucket.IfMatch(tag)); err != nil {
			t.Error(err)
		}
	}
	cond := bucket.IfAbsent
	for round := range 20 {
		var won atomic.Int64
		var next atomic.Value
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				tag, err := drivers[i%2].Put(ctx, "race", fmt.Appendf(nil, "round %d racer %d", round, i), cond)
				if err == nil {
					won.Add(1)
					next.Store(tag)
				} else if !errors.Is(err, errkind.Conflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d winners", round, won.Load())
		}
		cond = bucket.IfMatch(next.Load().(bucket.Tag))
	}
}

// TestAnyStore runs the suite on a store of your own: GRANARY_TEST_S3 is its URL, keys are in
// the environment. Each subtest writes below a prefix of its own and leaves nothing.
func TestAnyStore(t *testing.T) {
	url := os.Getenv("GRANARY_TEST_S3")
	if url == "" {
		t.Skip("GRANARY_TEST_S3 is not set: it is the URL of a store to test, as s3://BUCKET/PREFIX or minio://HOST:PORT/BUCKET/PREFIX")
	}
	base, query, _ := strings.Cut(url, "?")
	id := host.System().ID16()
	at := func(name string) string {
		return fmt.Sprintf("%s/granary-test-%x/%s?%s", strings.TrimSuffix(base, "/"), id[:4], name, query)
	}
	anchor := mustOpen(t, at("anchor")) // so that no subtest empties the directory of all, if it is one
	if _, err := anchor.Put(t.Context(), "k", nil, bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { empty(t, anchor) })
	var n atomic.Int64
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		b := mustOpen(t, at(fmt.Sprint(n.Add(1))))
		t.Cleanup(func() { empty(t, b) })
		return b
	}, buckettest.ControlKeys, buckettest.DeleteRaces)
}

func empty(t *testing.T, b bucket.Bucket) {
	ctx := context.Background()
	for {
		page, more, err := b.List(ctx, "", "", 0)
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range page {
			if err := b.Delete(ctx, a.Key); err != nil {
				t.Error(err)
			}
		}
		if !more {
			return
		}
	}
}

// Two stores of one process use the keys of two profiles, and the class of segments that each
// says: what a shard with a location of its own needs.
func TestStoresHaveProfilesAndClassesOfTheirOwn(t *testing.T) {
	if os.Getenv("GRANARY_TEST_S3") != "" {
		t.Skip("the keys are those of GRANARY_TEST_S3")
	}
	file := filepath.Join(t.TempDir(), "credentials")
	text := "[eu]\naws_access_key_id = KEYOFEU\naws_secret_access_key = x\n[us]\naws_access_key_id = KEYOFUS\naws_secret_access_key = y\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	s := s3test.Start(t, 0)
	for profile, class := range map[string]string{"eu": "STANDARD_IA", "us": "GLACIER_IR"} {
		b := mustOpen(t, "s3://granary-test/"+profile+"?endpoint="+s.URL+"&profile="+profile+"&class="+class)
		if _, err := b.Put(t.Context(), "seg/x", nil, bucket.Condition{}); !errors.Is(err, errkind.Throttled) {
			t.Errorf("a store that does not know the key answered %v", err)
		}
		r := s.LastPut()
		if !strings.Contains(r.Header.Get("Authorization"), "KEYOF"+strings.ToUpper(profile)) || r.Header.Get("X-Amz-Storage-Class") != class {
			t.Errorf("%s: keys %q, class %q", b, r.Header.Get("Authorization"), r.Header.Get("X-Amz-Storage-Class"))
		}
	}
}
