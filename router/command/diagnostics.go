package command

import (
	"context"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// diagnostics is what tools ask to show, and little else.
func (s *Commands) diagnostics() []Command {
	return []Command{
		{Name: "serverStatus", Help: "figures of this process", Fields: []string{"*"}, Run: s.serverStatus},
		{Name: "hostInfo", Help: "the machine", Admin: true, Run: s.hostInfo},
		{Name: "getParameter", Help: "settings that clients look at", Admin: true, Fields: []string{"*"}, Run: s.getParameter},
		{Name: "getLog", Help: "recent log lines: there are none here", Admin: true, Run: s.getLog},
		{Name: "getCmdLineOpts", Help: "how the process was started", Admin: true, Run: s.getCmdLineOpts},
		{Name: "currentOp", Help: "commands under way in this router", Admin: true, Fields: []string{"*"}, Run: s.currentOp},
		{Name: "killOp", Help: "ends what gives a collection another shard key", Admin: true, Fields: []string{"op"}, Run: s.killOp},
		{Name: "listCommands", Help: "the commands", Run: s.listCommands},
		{Name: "atlasVersion", Help: "tells that this is not Atlas", Run: s.atlasVersion},
	}
}

func (s *Commands) serverStatus(context.Context, *call) (bson.Raw, error) {
	up := s.host.Mono() - s.started
	open, opened, timedOut := s.cursors.figures()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	b := build().
		AppendString("host", s.options.Address).
		AppendString("version", Version).
		AppendString("process", "mongos").
		AppendInt64("pid", int64(os.Getpid())).
		AppendInt64("uptime", int64(up/time.Second)).
		AppendInt64("uptimeMillis", up.Milliseconds()).
		AppendInt64("uptimeEstimate", int64(up/time.Second)).
		AppendDateTime("localTime", s.host.Wall().UnixMilli()).
		AppendDocument("opcounters", build().
			AppendInt64("insert", s.counts.insert.Load()).
			AppendInt64("query", s.counts.query.Load()).
			AppendInt64("update", s.counts.update.Load()).
			AppendInt64("delete", s.counts.delete.Load()).
			AppendInt64("getmore", s.counts.getmore.Load()).
			AppendInt64("command", s.counts.command.Load()).Build()).
		AppendDocument("mem", build().
			AppendInt32("bits", 64).
			AppendInt32("resident", int32(mem.Sys>>20)).
			AppendInt32("virtual", int32(mem.Sys>>20)).
			AppendBoolean("supported", true).Build()).
		AppendDocument("metrics", build().
			AppendDocument("cursor", build().
				AppendInt64("timedOut", timedOut).
				AppendInt64("totalOpened", opened).
				AppendDocument("open", build().AppendInt64("total", open).Build()).Build()).Build())
	if st := s.router.Root().State(); st != nil {
		b.AppendDocument("sharding", build().AppendInt64("rootVersion", int64(st.Version())).Build())
	}
	granary := build().AppendArray("bounds", s.bounds())
	s.appendSharding(b, granary)
	b.AppendDocument("granary", granary.Build())
	return ok(b), nil
}

// bounds is what is bounded in this process, and how far it is used.
func (s *Commands) bounds() []byte {
	var docs []bson.Raw
	list := []admission.Bound{}
	if s.options.Gate != nil {
		list = append(list, s.options.Gate.Bound())
	}
	if s.options.Bounds != nil {
		list = append(list, s.options.Bounds()...)
	}
	for _, b := range list {
		docs = append(docs, bson.Raw(build().
			AppendString("name", b.Name).
			AppendInt64("used", b.Used).
			AppendInt64("limit", b.Limit).
			AppendInt64("waiting", b.Waiting).
			AppendInt64("refused", b.Refused).Build()))
	}
	return array(docs)
}

func (s *Commands) hostInfo(context.Context, *call) (bson.Raw, error) {
	b := build().
		AppendDocument("system", build().
			AppendDateTime("currentTime", s.host.Wall().UnixMilli()).
			AppendString("hostname", s.options.Address).
			AppendInt32("cpuAddrSize", 64).
			AppendInt32("numCores", int32(runtime.NumCPU())).
			AppendString("cpuArch", runtime.GOARCH).Build()).
		AppendDocument("os", build().AppendString("type", runtime.GOOS).AppendString("name", runtime.GOOS).Build()).
		AppendDocument("extra", build().Build())
	return ok(b), nil
}

// getParameter knows what clients read at their start.
func (s *Commands) getParameter(_ context.Context, c *call) (bson.Raw, error) {
	known := map[string]bson.RawValue{
		"featureCompatibilityVersion": {Type: bson.TypeEmbeddedDocument, Value: build().AppendString("version", Version[:3]).Build()},
		"authenticationMechanisms":    {Type: bson.TypeArray, Value: stringArray()},
		"requireApiVersion":           {Type: bson.TypeBoolean, Value: []byte{0}},
	}
	names := []string{"authenticationMechanisms", "featureCompatibilityVersion", "requireApiVersion"}
	all, _ := c.fields[0].value.StringValueOK()
	b := build()
	n := 0
	for _, name := range names {
		if all == "*" || slices.ContainsFunc(c.fields[1:], func(f field) bool { return string(f.name) == name }) {
			b.AppendValue(name, core(known[name]))
			n++
		}
	}
	if n == 0 {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "no option found to get")
	}
	return ok(b), nil
}

func (s *Commands) getLog(_ context.Context, c *call) (bson.Raw, error) {
	name, _ := c.fields[0].value.StringValueOK()
	switch name {
	case "*":
		return ok(build().AppendArray("names", stringArray("global", "startupWarnings"))), nil
	case "global", "startupWarnings":
		return ok(build().AppendInt32("totalLinesWritten", 0).AppendArray("log", stringArray())), nil
	}
	return nil, mongoerr.New(mongoerr.OperationFailed, "No log named '%s'", name)
}

func (s *Commands) getCmdLineOpts(context.Context, *call) (bson.Raw, error) {
	return ok(build().AppendArray("argv", stringArray("granary")).AppendDocument("parsed", build().Build())), nil
}

func (s *Commands) currentOp(ctx context.Context, c *call) (bson.Raw, error) {
	list, err := s.operations(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	return ok(build().AppendArray("inprog", array(list))), nil
}

func (s *Commands) listCommands(context.Context, *call) (bson.Raw, error) {
	list := build()
	for _, c := range s.List() {
		list.AppendDocument(c.Name, build().AppendString("help", c.Help).AppendBoolean("adminOnly", c.Admin).Build())
	}
	return ok(build().AppendDocument("commands", list.Build())), nil
}

// atlasVersion: mongosh asks it of every server, and takes this for an answer.
func (s *Commands) atlasVersion(context.Context, *call) (bson.Raw, error) {
	return nil, mongoerr.New(mongoerr.CommandNotFound, "no such command: 'atlasVersion'")
}
