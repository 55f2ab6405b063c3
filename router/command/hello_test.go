package command

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router/routertest"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A driver's monitor says which version it has seen, and waits for another one: until its time
// is over, or until the router stops.
func TestHelloWaitsForNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		s := New(c.Router, nil)
		hello := func(more ...bson.E) (bson.Raw, time.Duration) {
			body, err := bson.Marshal(append(append(bson.D{{Key: "hello", Value: 1}}, more...), bson.E{Key: "$db", Value: "admin"}))
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			return s.Do(context.Background(), body), time.Since(start)
		}
		first, _ := hello()
		version, ok := first.Lookup("topologyVersion").DocumentOK()
		if !ok {
			t.Fatal("no topologyVersion:", first)
		}
		seen, wait := bson.E{Key: "topologyVersion", Value: version}, bson.E{Key: "maxAwaitTimeMS", Value: 10_000}
		if reply, took := hello(seen, wait); took != 10*time.Second || reply.Lookup("msg").StringValue() != "isdbgrid" {
			t.Errorf("without news: %v after %v", reply, took)
		}
		other := bson.D{{Key: "processId", Value: bson.NewObjectID()}, {Key: "counter", Value: int64(0)}}
		if _, took := hello(bson.E{Key: "topologyVersion", Value: other}, wait); took != 0 {
			t.Errorf("the version of a process before this one: it waited %v", took)
		}
		if reply, _ := hello(seen); reply.Lookup("code").AsInt64() != 31368 {
			t.Errorf("topologyVersion alone: %v", reply)
		}
		if reply, _ := hello(bson.E{Key: "topologyVersion", Value: bson.D{{Key: "counter", Value: int64(0)}}}, wait); reply.Lookup("code").AsInt64() != 14 {
			t.Errorf("half a topologyVersion: %v", reply)
		}
		go func() {
			time.Sleep(3 * time.Second)
			_ = s.Drain(context.Background())
			_ = s.Drain(context.Background())
		}()
		reply, took := hello(seen, wait)
		if counter := reply.Lookup("topologyVersion", "counter").AsInt64(); took != 3*time.Second || reply.Lookup("code").AsInt64() != 91 || counter != 1 {
			t.Errorf("the router stops after 3 s: %v after %v", reply, took)
		}
		if reply, _ := hello(); reply.Lookup("code").AsInt64() != 91 {
			t.Errorf("a hello to a router that stops: %v", reply)
		}
	})
}

// A monitor waits when it has seen a version; the one of Node.js must not see any.
func TestMonitorsOfNodePoll(t *testing.T) {
	s := New(routertest.New(t, routertest.Options{}).Router, nil)
	for name, waits := range map[string]bool{"": true, "mongo-go-driver": true, "PyMongo": true, "nodejs": false, "nodejs|mongosh": false} {
		client := raw(t, `{"driver": {"name": "`+name+`", "version": "7.9.0"}}`)
		reply := s.answer(context.Background(), &wire.Request{Command: "hello", DB: "admin", Body: raw(t, `{"hello": 1}`)}, peer{id: 7, client: client})
		if _, is := reply.Lookup("topologyVersion").DocumentOK(); is != waits || reply.Lookup("msg").StringValue() != "isdbgrid" {
			t.Errorf("driver %q: %v", name, reply)
		}
	}
}

// An error that drivers take for a change of the server is a new version, and wakes the monitors
// that wait: they find the server as it was, and go on. A driver whose monitor polls is not told.
func TestErrorsThatChangeTheServerWakeMonitors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(routertest.New(t, routertest.Options{}).Router, nil)
		body, err := bson.Marshal(bson.D{{Key: "hello", Value: 1}, {Key: "topologyVersion", Value: bson.D{{Key: "processId", Value: s.topology.process}, {Key: "counter", Value: int64(0)}}},
			{Key: "maxAwaitTimeMS", Value: 10_000}, {Key: "$db", Value: "admin"}})
		if err != nil {
			t.Fatal(err)
		}
		node, _ := bson.Marshal(bson.D{{Key: "driver", Value: bson.D{{Key: "name", Value: "nodejs"}}}})
		start := time.Now()
		go func() {
			time.Sleep(time.Second)
			s.topology.tell(mongoerr.New(mongoerr.RetryableInternal, "x"), peer{client: node})
			s.topology.tell(mongoerr.New(mongoerr.ExceededTimeLimit, "x"), peer{})
			time.Sleep(time.Second)
			e := s.topology.tell(mongoerr.New(mongoerr.RetryableInternal, "x"), peer{})
			if n := bson.Raw(e.Info).Lookup("topologyVersion", "counter").Int64(); n != 1 {
				t.Errorf("version %d with the error", n)
			}
		}()
		reply := s.Do(context.Background(), body)
		if took := time.Since(start); took != 2*time.Second || reply.Lookup("ok").Double() != 1 || reply.Lookup("topologyVersion", "counter").Int64() != 1 {
			t.Errorf("%v after %v", reply, took)
		}
	})
}
