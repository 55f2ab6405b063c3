package bench

import (
	"math"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The histograms of a process that say what its clients cannot know: they share its processors,
// and what they measure has their own waits in it.
const (
	answered = `granary_request_seconds_bucket{outcome="answered",`
	refused  = `granary_request_seconds_bucket{outcome="refused",`
	lags     = `go_sched_latencies_seconds_bucket{`
)

// class is what a histogram counted up to a bound, in seconds, with all that is shorter.
type class struct {
	bound float64
	count float64
}

// scraped are the histograms of /metrics.
type scraped map[string][]class

func scrape(t *testing.T, admin string) scraped {
	t.Helper()
	s := scraped{}
	for _, line := range strings.Split(get(t, admin, "/metrics"), "\n") {
		for _, name := range []string{answered, refused, lags} {
			rest, ok := strings.CutPrefix(line, name+`le="`)
			if !ok {
				continue
			}
			bound, count, _ := strings.Cut(rest, `"} `)
			b, err := strconv.ParseFloat(bound, 64)
			n, err2 := strconv.ParseFloat(count, 64)
			if err != nil || err2 != nil {
				t.Fatalf("%q: %v, %v", line, err, err2)
			}
			s[name] = append(s[name], class{b, n})
		}
	}
	if len(s) != 3 {
		t.Fatalf("/metrics has %d of 3 histograms", len(s))
	}
	return s
}

// since is what was counted after an earlier look.
func (s scraped) since(before scraped) scraped {
	d := scraped{}
	for name, list := range s {
		for i, c := range list {
			d[name] = append(d[name], class{c.bound, c.count - before[name][i].count})
		}
	}
	return d
}

// quantile is between the bounds of the class that it is in.
func (s scraped) quantile(name string, q float64) time.Duration {
	list := s[name]
	at := q * list[len(list)-1].count
	low := class{}
	for _, c := range list {
		if c.count >= at && c.count > 0 {
			high := c.bound
			if math.IsInf(high, 1) {
				high = low.bound
			}
			part := (at - low.count) / max(c.count-low.count, 1)
			return time.Duration((low.bound + part*(high-low.bound)) * float64(time.Second)).Round(100 * time.Microsecond)
		}
		low = c
	}
	return 0
}

// lagsOf are how long what was ready to run in this process has waited for a processor.
type lagsOf struct{ before []uint64 }

func readLags() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64Histogram()
}

func newLags() lagsOf { return lagsOf{slices.Clone(readLags().Counts)} }

func (l lagsOf) quantile(q float64) time.Duration {
	now := readLags()
	list, sum := make([]class, len(now.Counts)), 0.0
	for i, n := range now.Counts {
		sum += float64(n - l.before[i])
		list[i] = class{max(now.Buckets[i+1], 0), sum}
	}
	return scraped{lags: list}.quantile(lags, q)
}
