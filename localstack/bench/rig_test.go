package bench

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/dirbucket"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// openDir is a directory store that goes with the test.
func openDir(tb testing.TB) bucket.Bucket {
	tb.Helper()
	b, err := dirbucket.Open(tb.TempDir(), host.System(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// startStack runs all roles on a store until the test ends.
func startStack(tb testing.TB, b bucket.Bucket, o localstack.Options) *localstack.Stack {
	tb.Helper()
	o.NoBalancer = true // chunks stay where they were put
	s, err := localstack.Open(context.Background(), b, host.System(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// serve puts a wire server before a handler, and returns a client of it. Both end with the
// test.
func serve(tb testing.TB, h wire.Handler) *mongo.Client {
	tb.Helper()
	return connect(tb, listen(tb, h))
}

// listen puts a wire server before a handler, until the test ends.
func listen(tb testing.TB, h wire.Handler) (addr string) {
	tb.Helper()
	server := wire.NewServer(h, wire.Options{
		Host: host.System(),
		Validate: func(doc []byte, maxBytes, maxDepth int) error {
			return document.Validate(doc, document.Limits{MaxBytes: maxBytes, MaxDepth: maxDepth})
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background(), l) }()
	tb.Cleanup(func() {
		server.Close()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	return l.Addr().String()
}

func connect(tb testing.TB, addr string) *mongo.Client {
	tb.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/").SetMinPoolSize(8))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// shard spreads a collection over the three shards by a field, six chunks in all.
func shard(tb testing.TB, c *mongo.Client, ns, field string) {
	tb.Helper()
	var points bson.A
	for i := range int64(5) {
		points = append(points, bson.D{{Key: field, Value: (i + 1) * keys / 6}})
	}
	err := c.Database("admin").RunCommand(context.Background(), bson.D{
		{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: field, Value: 1}}}, {Key: "splitPoints", Value: points},
	}).Err()
	if err != nil {
		tb.Fatal(err)
	}
}

const (
	docSize = 300
	// keys is how many values the field "customer" has.
	keys = 1_000_000
)

// docs makes documents of 300 bytes, {_id, customer, total, at, note}, with ascending
// ObjectIDs as drivers make them. One per goroutine.
type docs struct {
	template bson.Raw
	customer int // where its 8 bytes are
	words    []byte
	note     int
	rnd      *rand.Rand
}

func newDocs(seed uint64) *docs {
	d := &docs{rnd: rand.New(rand.NewPCG(seed, 1))}
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendObjectIDElement(doc, "_id", bson.ObjectID{})
	doc = bsoncore.AppendInt64Element(doc, "customer", 0)
	d.customer = len(doc) - 8
	doc = bsoncore.AppendDoubleElement(doc, "total", 12.5)
	doc = bsoncore.AppendDateTimeElement(doc, "at", 1_700_000_000_000)
	rest := docSize - len(doc) - len("\x02note\x00") - 4 - 1 - 1
	doc = bsoncore.AppendStringElement(doc, "note", strings.Repeat(" ", rest))
	d.note = len(doc) - 1 - rest
	doc, err := bsoncore.AppendDocumentEnd(doc, start)
	if err != nil || len(doc) != docSize {
		panic("the template is wrong")
	}
	d.template = doc
	// Text that compresses about as well as text does.
	for len(d.words) < 64<<10 {
		n := 3 + d.rnd.IntN(7)
		for range n {
			d.words = append(d.words, byte('a'+d.rnd.IntN(26)*d.rnd.IntN(26)/26))
		}
		d.words = append(d.words, ' ')
	}
	return d
}

// batch fills n documents.
func (d *docs) batch(n int) []bson.Raw {
	list := make([]bson.Raw, n)
	all := make([]byte, n*docSize)
	for i := range list {
		list[i] = all[i*docSize : (i+1)*docSize : (i+1)*docSize]
		d.fill(list[i], bson.NewObjectID())
	}
	return list
}

// fill makes one document.
func (d *docs) fill(doc bson.Raw, id bson.ObjectID) {
	copy(doc, d.template)
	copy(doc[4+1+len("_id")+1:], id[:])
	binary.LittleEndian.PutUint64(doc[d.customer:], uint64(d.rnd.Int64N(keys)))
	note := doc[d.note : len(doc)-2]
	copy(note, d.words[d.rnd.IntN(len(d.words)-len(note)):])
}

// cpuTime is what this process has used of its cores: client, server and garbage collector.
// Unlike the time on the clock it says what they would do on a machine of their own.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
