package rpc_test

import (
	"errors"
	"testing"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
)

// Requests and replies pass as they are; a holder that went is Unreachable, also for those
// who dialled it before.
func TestLocalHandsRequestsOver(t *testing.T) {
	l := rpc.NewLocal(nil)
	o := &owner{}
	l.Add("holder-a", o)
	remote, err := l.Dial("shard01", "holder-a", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, q := range requests() {
		o.reply = fresh[pairs[name]]()
		got, err := send(t.Context(), remote, q)
		if err != nil || got != o.reply || o.got != any(q) {
			t.Errorf("%s: not the same: %v", name, err)
		}
	}
	o.err = errkind.Fenced
	if _, err := remote.Flush(t.Context(), &rpc.FlushRequest{}); err != errkind.Fenced {
		t.Error(err)
	}
	n := o.calls.Load()
	l.Remove("holder-a")
	for name, q := range requests() {
		if _, err := send(t.Context(), remote, q); !errors.Is(err, rpc.Unreachable) || o.calls.Load() != n {
			t.Errorf("%s after the holder went: %v", name, err)
		}
	}
	if _, err := l.Dial("shard01", "holder-a", ""); !errors.Is(err, rpc.Unreachable) || !errors.Is(err, errkind.Throttled) {
		t.Error(err)
	}
	if rpc.Unreachable.Error() != "unreachable" {
		t.Error(rpc.Unreachable)
	}
}

// Holders elsewhere are dialled by the other Dialer.
func TestLocalKnowsWhomToAsk(t *testing.T) {
	here, there := rpc.NewLocal(nil), rpc.NewLocal(nil)
	there.Add("b", &owner{})
	l := rpc.NewLocal(there)
	here.Add("a", &owner{})
	l.Add("a", &owner{})
	for _, holder := range []string{"a", "b"} {
		o, err := l.Dial("shard01", holder, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Flush(t.Context(), &rpc.FlushRequest{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Dial("shard01", "c", ""); !errors.Is(err, rpc.Unreachable) {
		t.Error(err)
	}
}
