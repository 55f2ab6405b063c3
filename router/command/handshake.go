package command

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// What a hello announces.
const (
	maxMessageBytes = 48_000_000
	maxWriteBatch   = 100_000
	minWireVersion  = 0
	maxWireVersion  = 25 // MongoDB 8.0
	sessionMinutes  = 30
)

// handshake is how a client gets to know the server: a sharded cluster's router.
func (s *Commands) handshake() []Command {
	return []Command{
		{Name: "hello", Help: "what this server is and can do", Fields: []string{"*"}, Run: s.hello},
		{Name: "isMaster", Aliases: []string{"ismaster"}, Help: "hello, in its old name", Fields: []string{"*"}, Run: s.hello},
		{Name: "ping", Help: "answers ok", Run: s.ping},
		{Name: "buildInfo", Aliases: []string{"buildinfo"}, Help: "the version of the server", Run: s.buildInfo},
		{Name: "connectionStatus", Help: "who this connection is authenticated as", Fields: []string{"showPrivileges"}, Run: s.connectionStatus},
		{Name: "whatsmyuri", Help: "the address this connection comes from", Run: s.whatsMyURI},
	}
}

// topology is what a router says of itself to the monitors of drivers. A monitor that has seen
// a version asks for the next one and waits: so it has a connection here all the time, and
// learns at once that the router stops, or that its process is gone.
//
// There is a new version also with each error that drivers take for a change of the server, and do
// not use it any more until they have heard from it: a monitor that waited on would hear nothing
// for ten seconds, and where there is no other router nobody could do anything.
type topology struct {
	process bson.ObjectID

	mu       sync.Mutex // held for a few instructions only
	counter  int64
	news     chan struct{} // closed when counter grows
	stopping bool
}

// Drain has every hello that waits, and every later one, answered by ShutdownInProgress: drivers
// go on with another router, before connections end.
func (s *Commands) Drain(context.Context) error {
	t := &s.topology
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopping {
		t.stopping = true
		t.next()
	}
	return nil
}

// next makes a new version, and answers those that wait for it. Requires: the mutex.
func (t *topology) next() {
	t.counter++
	close(t.news)
	t.news = make(chan struct{})
}

// version is the present topologyVersion; news is closed when it is no longer.
func (t *topology) version() (counter int64, news <-chan struct{}, stopping bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counter, t.news, t.stopping
}

// tell adds a new version to an error that drivers take for a change of the server. Whichever they
// hear of first, this or the hello that it wakes, the other changes nothing any more.
func (t *topology) tell(e *mongoerr.Error, p peer) *mongoerr.Error {
	if e.Code != mongoerr.RetryableInternal || p.polls() || len(e.Info) > 0 {
		return e
	}
	t.mu.Lock()
	t.next()
	t.mu.Unlock()
	told := *e
	told.Info = t.append(build()).Build()
	return &told
}

// polls says that the monitor of a client is to ask now and then, and never to wait. The driver of
// Node.js (7.9) does not retry a write whose connection broke when its monitor's broke first, which
// only a monitor that waits can: a write would fail with each router that dies.
func (p peer) polls() bool {
	driver, _ := p.client.Lookup("driver", "name").StringValueOK()
	return strings.HasPrefix(driver, "nodejs")
}

func (t *topology) append(b *bsoncore.DocumentBuilder) *bsoncore.DocumentBuilder {
	counter, _, _ := t.version()
	return b.AppendDocument("topologyVersion", build().AppendObjectID("processId", t.process).AppendInt64("counter", counter).Build())
}

// await keeps a hello until there is something new to tell, as long as its client wants.
func (s *Commands) await(ctx context.Context, c *call) {
	seen, wait := c.doc("topologyVersion"), c.value("maxAwaitTimeMS")
	if (seen == nil) != absent(wait) {
		c.fail(mongoerr.New(31368, "hello takes topologyVersion and maxAwaitTimeMS together, or neither"))
	}
	process, isID := seen.Lookup("processId").ObjectIDOK()
	counter, isLong := seen.Lookup("counter").Int64OK()
	if seen != nil && (!isID || !isLong) {
		c.fail(mongoerr.New(mongoerr.TypeMismatch, "hello.topologyVersion is {processId: ObjectId, counter: long}"))
	}
	present, news, _ := s.topology.version()
	if c.count("maxAwaitTimeMS", 0) == 0 || c.err != nil || process != s.topology.process || counter != present {
		return
	}
	ctx, cancel := s.host.WithTimeout(ctx, time.Duration(c.int("maxAwaitTimeMS"))*time.Millisecond)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-news:
	}
}

func (s *Commands) hello(ctx context.Context, c *call) (bson.Raw, error) {
	if s.await(ctx, c); c.err != nil {
		return nil, c.err
	}
	if _, _, stopping := s.topology.version(); stopping {
		e := mongoerr.New(mongoerr.ShutdownInProgress, "this router is stopping: use another one")
		e.Info = s.topology.append(build()).Build()
		return nil, e
	}
	b := build()
	if !c.peer.polls() {
		s.topology.append(b)
	}
	if c.cmd.Name != "hello" {
		b.AppendBoolean("ismaster", true)
	}
	b.AppendBoolean("isWritablePrimary", true).
		AppendBoolean("helloOk", true).
		AppendString("msg", "isdbgrid").
		AppendInt32("maxBsonObjectSize", 16<<20).
		AppendInt32("maxMessageSizeBytes", maxMessageBytes).
		AppendInt32("maxWriteBatchSize", maxWriteBatch).
		AppendDateTime("localTime", s.host.Wall().UnixMilli()).
		AppendInt32("logicalSessionTimeoutMinutes", sessionMinutes).
		AppendInt32("connectionId", int32(c.peer.id)).
		AppendInt32("minWireVersion", minWireVersion).
		AppendInt32("maxWireVersion", maxWireVersion).
		AppendBoolean("readOnly", false)
	return ok(b), nil
}

func (s *Commands) ping(context.Context, *call) (bson.Raw, error) { return okReply(), nil }

func (s *Commands) buildInfo(context.Context, *call) (bson.Raw, error) {
	array := values([]bson.RawValue{int32Value(8), int32Value(0), int32Value(0), int32Value(0)})
	b := build().
		AppendString("version", Version).
		AppendString("gitVersion", "granary "+s.options.Program).
		AppendArray("modules", stringArray()).
		AppendString("allocator", "go").
		AppendString("javascriptEngine", "none").
		AppendArray("versionArray", array).
		AppendInt32("bits", 64).
		AppendBoolean("debug", false).
		AppendInt32("maxBsonObjectSize", 16<<20).
		AppendArray("storageEngines", stringArray("granary"))
	return ok(b), nil
}

func (s *Commands) connectionStatus(context.Context, *call) (bson.Raw, error) {
	auth := build().AppendArray("authenticatedUsers", stringArray()).AppendArray("authenticatedUserRoles", stringArray())
	return ok(build().AppendDocument("authInfo", auth.Build())), nil
}

func (s *Commands) whatsMyURI(_ context.Context, c *call) (bson.Raw, error) {
	return ok(build().AppendString("you", c.peer.String())), nil
}

func int32Value(n int32) bson.RawValue {
	return bson.RawValue{Type: bson.TypeInt32, Value: []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}}
}
