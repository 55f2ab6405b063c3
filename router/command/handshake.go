package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
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

// hello answers without topologyVersion: clients then poll, and do not wait for changes.
func (s *Commands) hello(_ context.Context, c *call) (bson.Raw, error) {
	b := build()
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
