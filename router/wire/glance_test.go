package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestGlanceSeesTheTopLevelOnly(t *testing.T) {
	t.Parallel()
	nested := bson.E{Key: "q", Value: bson.D{{Key: "maxTimeMS", Value: 9}, {Key: "txnNumber", Value: 1}}}
	for _, c := range []struct {
		cmd  bson.D
		want Glance
	}{
		{bson.D{{Key: "find", Value: "c"}, nested}, Glance{Command: []byte("find")}},
		{bson.D{{Key: "find", Value: "c"}, {Key: "maxTimeMS", Value: 70}}, Glance{Command: []byte("find"), MaxTime: 70 * time.Millisecond}},
		{bson.D{{Key: "insert", Value: "c"}, {Key: "maxTimeMS", Value: 1e3}, {Key: "txnNumber", Value: int64(3)}}, Glance{Command: []byte("insert"), MaxTime: time.Second, Retryable: true}},
		{bson.D{{Key: "find", Value: "c"}, {Key: "maxTimeMS", Value: "x"}}, Glance{Command: []byte("find")}},
		{bson.D{{Key: "find", Value: "c"}, {Key: "maxTimeMS", Value: -5}}, Glance{Command: []byte("find")}},
	} {
		m := msg(1, 0, command(c.cmd...))
		if got := glance(m[headerSize:]); !bytes.Equal(got.Command, c.want.Command) || got.MaxTime != c.want.MaxTime || got.Retryable != c.want.Retryable {
			t.Errorf("%v: %q %+v", c.cmd, got.Command, got)
		}
	}
}

// Whatever the bytes are, a glance at them is harmless.
func FuzzGlance(f *testing.F) {
	m := msg(1, flagMoreToCome, command(bson.E{Key: "insert", Value: "c"}, bson.E{Key: "maxTimeMS", Value: 7}, bson.E{Key: "txnNumber", Value: int64(1)}))[headerSize:]
	f.Add([]byte(m))
	for i := range m {
		broken := bytes.Clone(m)
		broken[i] ^= 0x81
		f.Add(broken)
		f.Add(bytes.Clone(m[:i]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g := glance(b)
		if g.MaxTime < 0 || len(g.Command) > len(b) {
			t.Errorf("%+v", g)
		}
		if len(b) >= 4 && g.moreToCome != (binary.LittleEndian.Uint32(b)&flagMoreToCome != 0) {
			t.Error("moreToCome")
		}
	})
}

// doored is a Handler that refuses what is called "refused".
type doored struct {
	handlerFunc
	inside atomic.Int64
}

func (d *doored) Admit(_ context.Context, g Glance) (admission.Pass, *mongoerr.Error) {
	if string(g.Command) == "refused" {
		return admission.Pass{}, admission.MongoError(admission.Refuse("full"))
	}
	d.inside.Add(1)
	return admission.Pass{}, nil
}

func (d *doored) Full(g Glance) *mongoerr.Error {
	if string(g.Command) != "early" {
		return nil
	}
	e := admission.MongoError(admission.Refuse("full"))
	if g.Retryable {
		e.Labels = append(e.Labels, retryableWrite)
	}
	return e
}

func (d *doored) Leave(admission.Pass) { d.inside.Add(-1) }

// A message that is refused is not looked through, and the connection goes on; a pass is given
// back whatever happens, before the client takes its reply.
func TestDoorkeeperIsAskedFirst(t *testing.T) {
	d := &doored{handlerFunc: func(_ context.Context, _ *Conn, m *Request) bson.Raw {
		if m.Command == "panic" {
			panic("why")
		}
		return okReply
	}}
	serve(t, d, nil, func(t *testing.T, s *Server, l *pipeListener) {
		c := l.dial()
		defer c.close()
		garbage := msg(1, 0, command(bson.E{Key: "refused", Value: 1}, bson.E{Key: "s", Value: "\xff\xff\xff"}))
		for _, want := range []struct {
			message []byte
			code    mongoerr.Code
		}{
			{garbage, mongoerr.ExceededTimeLimit},
			{ping(), 0},
			{msg(1, 0, command(bson.E{Key: "panic", Value: 1})), mongoerr.InternalError},
			{msg(1, 0, command(bson.E{Key: "insert", Value: strings.Repeat("x", 100)})), 0},
		} {
			doc := c.roundTrip(t, want.message)
			if got, _ := doc.Lookup("code").AsInt64OK(); got != int64(want.code) {
				t.Errorf("%v", doc)
			}
		}
		c.send(t, msg(1, flagMoreToCome, command(bson.E{Key: "refused", Value: 1}))) // no reply
		if doc := c.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
			t.Errorf("after a refusal that nobody waits for: %v", doc)
		}
		if n := d.inside.Load(); n != 0 {
			t.Errorf("%d passes were kept", n)
		}
	})
}

// What is refused while it arrives is not handled, takes no memory that stays, and the next
// message of the connection is found behind it, however long it is and wherever its documents
// are; it is the worker that answers while the worker has something to do.
func TestWhatIsRefusedAtTheDoorIsPassedOver(t *testing.T) {
	var began chan struct{} // of the bubble
	d := &doored{handlerFunc: func(_ context.Context, _ *Conn, m *Request) bson.Raw {
		switch m.Command {
		case "early":
			t.Error("it was handled")
		case "slow":
			close(began)
			time.Sleep(time.Second)
		}
		return okReply
	}}
	serve(t, d, nil, func(t *testing.T, s *Server, l *pipeListener) {
		c := l.dial()
		defer c.close()
		began = make(chan struct{})
		c.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1})))
		early := bson.E{Key: "early", Value: 1}
		txn := bson.E{Key: "txnNumber", Value: int64(1)}
		for _, n := range []int{0, 100, inBytes - 100, inBytes, step, step + 1, 1 << 20} {
			long := bson.E{Key: "s", Value: strings.Repeat("x", n)}
			for _, fields := range [][]bson.E{{early, txn, long}, {early, long, txn}, {early, long}} {
				synctest.Wait() // the worker is done with what came before
				doc := c.roundTrip(t, msg(1, 0, command(fields...)))
				if code, _ := doc.Lookup("code").AsInt64OK(); code != int64(mongoerr.ExceededTimeLimit) {
					t.Errorf("%d bytes: %v", n, doc)
				}
				// What is not looked at may be a write that can be sent again.
				want := len(fields) == 3 || n >= inBytes
				if got := strings.Contains(doc.Lookup("errorLabels").String(), retryableWrite); got != want {
					t.Errorf("%d bytes, %s last: labelled %v", n, fields[len(fields)-1].Key, got)
				}
			}
			c.send(t, msg(1, flagMoreToCome, command(early, bson.E{Key: "s", Value: strings.Repeat("x", n)}))) // no reply
			if doc := c.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
				t.Errorf("behind %d bytes: %v", n, doc)
			}
		}
		synctest.Wait()
		if st := s.Stats(); st.Buffered > inBytes || sum(st.Refusals) != 7*4 || sum(st.Answers) != 7 {
			t.Errorf("%+v", st)
		}
		c.send(t, msg(1, 0, command(bson.E{Key: "slow", Value: 1})))
		<-began
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.send(t, msg(2, 0, command(bson.E{Key: "refused", Value: 1})))
		}()
		if _, doc := c.receive(t); !bytes.Equal(doc, okReply) {
			t.Errorf("the reply to the first of two: %v", doc)
		}
		if _, doc := c.receive(t); doc.Lookup("ok").Double() != 0 {
			t.Errorf("the reply to the second of two: %v", doc)
		}
		<-done
	})
}

func sum(t Times) (n int64) {
	for _, c := range t.Counts {
		n += c
	}
	return n
}
