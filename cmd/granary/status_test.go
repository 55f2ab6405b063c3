package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// alarmed is a writer that found something corrupt.
type alarmed struct{ rpc.Owner }

func (alarmed) Claim(context.Context, *rpc.ClaimRequest) (*rpc.ClaimReply, error) { return nil, nil }

func (alarmed) Ping(context.Context, *rpc.PingRequest) (*rpc.PingReply, error) {
	return &rpc.PingReply{Self: rpc.Process{Holder: "p1"}, Corrupt: 3, CorruptAgeMillis: 2500, CorruptLast: "segment s.a.1: corrupt"}, nil
}

// A writer that found stored bytes that are not what was written is the first thing that status
// says, with what to do.
func TestStatusSaysWhoFoundDamage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := host.System()
	server := &http.Server{Handler: rpc.Handler(alarmed{}, alarmed{}, "", h, func([]byte) error { return nil }, rpc.Limits{})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	state := manifesttest.New(t, "a")
	state = manifesttest.Apply(t, state, "claim a epoch=0 holder=p1 address="+l.Addr().String())
	ask := newAsker("", h)
	defer ask.Close()
	s := statusOf(state)
	s.Store = "dir:x"
	s.ask(t.Context(), ask, state)
	want := alarmStatus{"p1", l.Addr().String(), 3, "segment s.a.1: corrupt", 2500}
	if len(s.Alarms) != 1 || s.Alarms[0] != want {
		t.Fatalf("%+v", s.Alarms)
	}
	var out strings.Builder
	if err := printStatus(&out, s); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ALARM: the writer at " + l.Addr().String() + " found 3 times", "the last 2.5s ago", "segment s.a.1: corrupt", "run granary fsck --store dir:x"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not said:\n%s", line, out.String())
		}
	}
	if strings.Index(out.String(), "ALARM") > strings.Index(out.String(), "SHARD") {
		t.Error("the alarm is not the first thing")
	}
}
