package open_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"github.com/granarydb/granary/manifest/host"
)

// BenchmarkRealServer puts and gets through both drivers, one request at a time, and reports
// the median beside the rate. Creates have a condition, as those of the log.
func BenchmarkRealServer(b *testing.B) {
	at := s3test.Real(b)
	for _, url := range []string{"s3://granary-test/bench-s3?endpoint=http://" + at, "minio://" + at + "/granary-test/bench-minio?tls=false"} {
		store, err := open.URL(b.Context(), url, host.System())
		if err != nil {
			b.Fatal(err)
		}
		scheme, n := url[:2], 0
		for _, size := range []int{4 << 10, 8 << 20} {
			body := make([]byte, size)
			b.Run(fmt.Sprintf("%s/put/%d", scheme, size), func(b *testing.B) {
				median(b, size, func() error {
					n++
					_, err := store.Put(b.Context(), fmt.Sprint("seg/", n%64), body, bucket.Condition{})
					return err
				})
			})
			b.Run(fmt.Sprintf("%s/create/%d", scheme, size), func(b *testing.B) {
				median(b, size, func() error {
					n++
					_, err := store.Put(b.Context(), fmt.Sprint("wal/", size, "/", n), body, bucket.IfAbsent)
					return err
				})
			})
			if _, err := store.Put(b.Context(), "seg/0", body, bucket.Condition{}); err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/get/%d", scheme, size), func(b *testing.B) {
				median(b, size, func() error {
					_, err := store.Get(b.Context(), "seg/0", bucket.GetOptions{})
					return err
				})
			})
		}
		store.Close()
	}
}

func median(b *testing.B, size int, f func() error) {
	b.SetBytes(int64(size))
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
}
