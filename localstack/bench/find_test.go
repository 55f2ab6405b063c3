package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/localstack"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	readers  = 8
	findRows = 10_000
	// turn is how many operations a reader does before the others' kind has its turn.
	turn = 50
)

// BenchmarkFindOne compares findOne by _id on a warm owner with ping, which does nothing:
// eight clients in turns of both, so that whatever else the machine does disturbs both. The
// rows are in segments, their blocks in the cache. An operation is one findOne.
//
//	driver   the Go driver, whose own work for a findOne is more than for a ping
//	bytes    clients that send prepared messages and look at nothing: the server's share
func BenchmarkFindOne(b *testing.B) {
	ctx := context.Background()
	stack := startStack(b, openDir(b), localstack.Options{})
	addr := listen(b, stack.Commands)
	client := connect(b, addr)
	coll, admin := client.Database("bench").Collection("find"), client.Database("admin")
	list := newDocs(1).batch(findRows)
	if _, err := coll.InsertMany(ctx, list); err != nil {
		b.Fatal(err)
	}
	flush(b, stack)

	b.Run("driver", func(b *testing.B) {
		ping := bson.D{{Key: "ping", Value: 1}}
		var filters []bson.Raw
		for _, doc := range list {
			filters = append(filters, marshal(b, bson.D{{Key: "_id", Value: doc.Lookup("_id")}}))
		}
		compare(b,
			func(_, i int) error { return coll.FindOne(ctx, filters[i%findRows]).Err() },
			func(int, int) error { return admin.RunCommand(ctx, ping).Err() })
	})
	b.Run("bytes", func(b *testing.B) {
		var conns [readers]*plain
		for i := range conns {
			conns[i] = dial(b, addr)
		}
		ping := opMsg(b, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
		var finds [][]byte
		for _, doc := range list {
			finds = append(finds, opMsg(b, bson.D{
				{Key: "find", Value: "find"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: doc.Lookup("_id")}}},
				{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}, {Key: "$db", Value: "bench"},
			}))
		}
		compare(b,
			func(c, i int) error { return conns[c].roundTrip(finds[i%findRows], docSize) },
			func(c, _ int) error { return conns[c].roundTrip(ping, 0) })
	})
}

// compare has the readers do both in turns, and reports the rate of find over that of ping.
func compare(b *testing.B, find, ping func(client, i int) error) {
	inTurns(b, findRows/readers, 0, find) // warm
	inTurns(b, turn, 0, ping)
	b.ReportAllocs()
	var finds, pings spending
	n := 0
	for b.Loop() {
		if n++; n%(readers*turn) == 0 {
			finds.add(func() { inTurns(b, turn, n, find) })
			pings.add(func() { inTurns(b, turn, n, ping) })
		}
	}
	b.ReportMetric(pings.time.Seconds()/finds.time.Seconds(), "of-ping")
	b.ReportMetric(pings.cpu.Seconds()/finds.cpu.Seconds(), "of-ping-cpu")
	b.ReportMetric(float64(n)/finds.time.Seconds(), "finds/s")
	b.ReportMetric(finds.cpu.Seconds()*1e6/float64(n), "cpu-µs/find")
}

// spending is what a kind of operation took.
type spending struct{ time, cpu time.Duration }

func (s *spending) add(do func()) {
	start, cpu := time.Now(), cpuTime()
	do()
	s.time += time.Since(start)
	s.cpu += cpuTime() - cpu
}

// inTurns has each reader do an operation some times.
func inTurns(b *testing.B, times, from int, do func(client, i int) error) {
	var all sync.WaitGroup
	for c := range readers {
		all.Go(func() {
			for i := range times {
				if err := do(c, from+c*times+i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// plain is a client that knows messages only.
type plain struct {
	net.Conn
	in [4096]byte
}

func dial(b *testing.B, addr string) *plain {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	p := &plain{Conn: c}
	if err := p.roundTrip(opMsg(b, bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}}), 0); err != nil {
		b.Fatal(err)
	}
	return p
}

// roundTrip sends a message and takes the reply, which must have so many bytes.
func (p *plain) roundTrip(message []byte, least int) error {
	if _, err := p.Write(message); err != nil {
		return err
	}
	n, err := io.ReadAtLeast(p, p.in[:], 16)
	if err != nil {
		return err
	}
	size := int(binary.LittleEndian.Uint32(p.in[:]))
	if size < least || size > len(p.in) {
		return fmt.Errorf("a reply of %d bytes", size)
	}
	_, err = io.ReadFull(p, p.in[n:max(n, size)])
	return err
}

func opMsg(b *testing.B, command bson.D) []byte {
	body := marshal(b, command)
	m := binary.LittleEndian.AppendUint32(nil, uint32(16+5+len(body)))
	m = append(m, 1, 0, 0, 0, 0, 0, 0, 0)
	m = binary.LittleEndian.AppendUint32(m, 2013)
	return append(append(m, 0, 0, 0, 0, 0), body...)
}

func marshal(b *testing.B, d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		b.Fatal(err)
	}
	return raw
}
