package miniobucket_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/buckettest"
	"github.com/granarydb/granary/chunkstore/bucket/miniobucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	s3test.SetKeys()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.Exit(code) }))
}

var prefixes atomic.Int64

// open opens a fresh prefix of the test's bucket on a server.
func open(t *testing.T, host string) bucket.Bucket {
	t.Helper()
	b, err := miniobucket.Open(host, s3test.BucketName, &miniobucket.Options{
		Prefix: fmt.Sprintf("tests/%d", prefixes.Add(1)), Plain: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestConforms(t *testing.T) {
	server := s3test.Start(t, 0)
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, server.Host()) })
}

// Each subtest has a prefix of one bucket, all at once, in a directory that is never empty.
func TestConformsOnARealServer(t *testing.T) {
	host := s3test.Real(t)
	anchor := open(t, host)
	if _, err := anchor.Put(t.Context(), "keeps/the/directory", nil, bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, host) }, buckettest.ControlKeys, buckettest.DeleteRaces)
}

func TestBadAnswers(t *testing.T) {
	s3test.Run(t, func(t *testing.T, s *s3test.Server) bucket.Bucket { return open(t, s.Host()) })
}
