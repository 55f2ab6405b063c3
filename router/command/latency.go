package command

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// How long commands took is counted by collection, as this router saw them: from their arrival to
// the answer, whatever shards were asked meanwhile. Nothing is kept when the process ends.

// latencyClass is what MongoDB tells apart.
type latencyClass uint8

const (
	readLatency latencyClass = iota
	writeLatency
	commandLatency
	latencyClasses
)

var latencyNames = [latencyClasses]string{"reads", "writes", "commands"}

// latencyOf are the commands that are no "commands".
var latencyOf = map[string]latencyClass{
	"find": readLatency, "aggregate": readLatency, "count": readLatency, "distinct": readLatency, "getMore": readLatency,
	"insert": writeLatency, "update": writeLatency, "delete": writeLatency, "findAndModify": writeLatency,
}

const (
	// latencyBuckets are by lower bound in microseconds: 0, 2, 4, ... 2048, and from there on
	// twice as fine: 3072, 4096, 6144, ...
	latencyBuckets = 51
	// latencyMax bounds the collections that are counted; those that come later are not.
	latencyMax = 10_000
)

// latency is the durations of one class of commands on one collection.
type latency struct {
	ops, micros atomic.Int64
	buckets     [latencyBuckets]atomic.Int64
}

func (l *latency) add(d time.Duration) {
	micros := max(d.Microseconds(), 0)
	l.ops.Add(1)
	l.micros.Add(micros)
	l.buckets[latencyBucket(micros)].Add(1)
}

func latencyBucket(micros int64) int {
	k := bits.Len64(uint64(micros)) - 1 // 2^k is the largest power below or at it
	switch {
	case micros < 2:
		return 0
	case k < 11:
		return k
	}
	return min(11+2*(k-11)+int(micros>>(k-1)&1), latencyBuckets-1)
}

// lowerMicros is where a bucket begins.
func lowerMicros(bucket int) int64 {
	switch {
	case bucket == 0:
		return 0
	case bucket < 11:
		return 1 << bucket
	}
	k := 11 + (bucket-11)/2
	return int64(2+(bucket-11)%2) << (k - 1)
}

// append adds what was counted, in MongoDB's shape; the zero latency is nothing.
func (l *latency) append(b *bsoncore.DocumentBuilder, class latencyClass, histograms bool) {
	one := build()
	if histograms {
		var list []bson.Raw
		for i := range l.buckets {
			if n := l.buckets[i].Load(); n > 0 {
				list = append(list, bson.Raw(build().AppendInt64("micros", lowerMicros(i)).AppendInt64("count", n).Build()))
			}
		}
		one.AppendArray("histogram", array(list))
	}
	b.AppendDocument(latencyNames[class], one.AppendInt64("latency", l.micros.Load()).AppendInt64("ops", l.ops.Load()).Build())
}

// latencies are those of all collections.
type latencies struct {
	mu   sync.RWMutex
	by   map[string]map[string]*[latencyClasses]latency // by database and collection
	size int
}

// took counts a command that succeeded, if it names a collection.
func (x *latencies) took(c *call, d time.Duration) {
	v := c.fields[0].value
	if c.cmd.Name == "getMore" {
		v = c.value("collection")
	}
	if v.Type != bson.TypeString || len(v.Value) < 6 || c.cmd.Admin {
		return
	}
	class, known := latencyOf[c.cmd.Name]
	if !known {
		class = commandLatency
	}
	if l := x.of(c.DB, v.Value[4:len(v.Value)-1], known); l != nil {
		l[class].add(d)
	}
}

// of is what is counted of a collection; nil: nothing is, and nothing shall be, or there are too
// many.
func (x *latencies) of(db string, collection []byte, begin bool) *[latencyClasses]latency {
	x.mu.RLock()
	l := x.by[db][string(collection)]
	x.mu.RUnlock()
	if l != nil || !begin {
		return l
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if l = x.by[db][string(collection)]; l != nil || x.size >= latencyMax {
		return l
	}
	if x.by == nil {
		x.by = make(map[string]map[string]*[latencyClasses]latency)
	}
	if x.by[db] == nil {
		x.by[db] = make(map[string]*[latencyClasses]latency)
	}
	l = new([latencyClasses]latency)
	x.by[db][string(collection)] = l
	x.size++
	return l
}

// appendLatency is latencyStats of $collStats. A command may concern several shards, so its time
// is none of theirs: it is told with the first document, and the others have zeros, which keeps
// sums over them right.
func (s *Commands) appendLatency(b *bsoncore.DocumentBuilder, ns router.Namespace, first, histograms bool) {
	var none [latencyClasses]latency
	l := &none
	if first {
		if known := s.latencies.of(ns.Database, []byte(ns.Collection), false); known != nil {
			l = known
		}
	}
	stats := build()
	for class := range latencyClasses {
		l[class].append(stats, class, histograms)
	}
	stats.AppendDocument("transactions", build().AppendInt64("latency", 0).AppendInt64("ops", 0).Build())
	b.AppendDocument("latencyStats", stats.Build())
}
