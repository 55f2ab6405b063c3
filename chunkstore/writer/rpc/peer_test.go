package rpc_test

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func genProcess(t *rapid.T) rpc.Process {
	p := rpc.Process{
		Holder: rapid.StringN(0, 8, 20).Draw(t, "holder"), Address: rapid.StringN(0, 8, 20).Draw(t, "address"),
		Any: rapid.Bool().Draw(t, "any"), Leaving: rapid.Bool().Draw(t, "leaving"),
	}
	for _, s := range rapid.SliceOfN(rapid.StringMatching(`shard[0-9]{2}`), 0, 3).Draw(t, "named") {
		p.Named = append(p.Named, manifest.ShardID(s))
	}
	return p
}

// What processes say to one another survives the wire, and is a valid document.
func TestPeerMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ping := &rpc.PingRequest{Header: genHeader.Draw(t, "h"), From: genProcess(t)}
		reply := &rpc.PingReply{Self: genProcess(t), RootVersion: manifest.Version(rapid.Uint64().Draw(t, "root")), FlushedBytes: rapid.Int64().Draw(t, "flushed"), MergedBytes: rapid.Int64().Draw(t, "merged")}
		for range rapid.IntRange(0, 3).Draw(t, "peers") {
			reply.Peers = append(reply.Peers, genProcess(t))
		}
		for range rapid.IntRange(0, 3).Draw(t, "shards") {
			reply.Shards = append(reply.Shards, rpc.HeldShard{
				ID: "shard01", Epoch: manifest.Epoch(rapid.Uint64().Draw(t, "epoch")), Phase: "serving",
				LeaseLeftMillis: rapid.Int64().Draw(t, "left"), AckAgeMillis: rapid.Int64Min(-1).Draw(t, "age"), Unflushed: rapid.Int64().Draw(t, "bytes"),
			})
		}
		if rapid.Bool().Draw(t, "alarm") {
			reply.Corrupt, reply.CorruptAgeMillis, reply.CorruptLast = rapid.Int64Min(1).Draw(t, "corrupt"), rapid.Int64().Draw(t, "ago"), "segment x: corrupt"
		}
		claim := &rpc.ClaimRequest{Header: genHeader.Draw(t, "h")}
		claimed := &rpc.ClaimReply{Epoch: manifest.Epoch(rapid.Uint64().Draw(t, "epoch"))}
		roundTrip(t, ping, &rpc.PingRequest{})
		roundTrip(t, reply, &rpc.PingReply{})
		roundTrip(t, claim, &rpc.ClaimRequest{})
		roundTrip(t, claimed, &rpc.ClaimReply{})
	})
}

func roundTrip(t *rapid.T, from, to interface {
	Append([]byte) []byte
	Parse([]byte) error
}) {
	body := from.Append(nil)
	if err := valid(body); err != nil {
		t.Fatalf("%T: %v", from, err)
	}
	if err := to.Parse(body); err != nil {
		t.Fatalf("%T: %v", from, err)
	}
	if diff := cmp.Diff(from, to); diff != "" {
		t.Fatalf("%T, -sent +parsed:\n%s", from, diff)
	}
}

// A field that is not known is refused, at every depth.
func TestPeerMessagesRefuseUnknownFields(t *testing.T) {
	odd := bson.D{{Key: "odd", Value: 1}}
	list := bson.A{odd}
	for _, c := range []struct {
		to interface{ Parse([]byte) error }
		d  bson.D
	}{
		{&rpc.PingRequest{}, odd},
		{&rpc.PingRequest{}, bson.D{{Key: "from", Value: odd}}},
		{&rpc.PingRequest{}, bson.D{{Key: "from", Value: bson.D{{Key: "named", Value: list}}}}},
		{&rpc.PingReply{}, append(bson.D{{Key: "ok", Value: 1.0}}, odd...)},
		{&rpc.PingReply{}, bson.D{{Key: "ok", Value: 1.0}, {Key: "peers", Value: list}}},
		{&rpc.PingReply{}, bson.D{{Key: "ok", Value: 1.0}, {Key: "shards", Value: list}}},
		{&rpc.PingReply{}, bson.D{{Key: "ok", Value: 1.0}, {Key: "self", Value: 7}}},
		{&rpc.ClaimRequest{}, odd},
		{&rpc.ClaimReply{}, append(bson.D{{Key: "ok", Value: 1.0}}, odd...)},
	} {
		if err := c.to.Parse(doc(c.d...)); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%T of %v: %v", c.to, c.d, err)
		}
	}
}

// anybody is a peer that answers.
type anybody struct{ err error }

func (a anybody) Ping(_ context.Context, r *rpc.PingRequest) (*rpc.PingReply, error) {
	return &rpc.PingReply{Self: r.From}, a.err
}

func (a anybody) Claim(_ context.Context, r *rpc.ClaimRequest) (*rpc.ClaimReply, error) {
	return &rpc.ClaimReply{Epoch: manifest.Epoch(len(r.Shard))}, a.err
}

// Peers talk over HTTP with the same secret as everybody; where nobody listens is told from
// where nobody answers.
func TestPeersTalkOverHTTP(t *testing.T) {
	s := httptest.NewServer(rpc.Handler(&owner{}, anybody{}, "secret", host.System(), valid, rpc.Limits{}))
	defer s.Close()
	at := s.Listener.Addr().String()
	d := rpc.NewHTTPDialer("secret", host.System(), nil)
	defer d.Close()
	peer, err := d.DialPeer(at)
	if err != nil {
		t.Fatal(err)
	}
	pinged, err := peer.Ping(t.Context(), &rpc.PingRequest{From: rpc.Process{Holder: "me", Any: true}})
	if err != nil || pinged.Self.Holder != "me" || !pinged.Self.Any {
		t.Errorf("ping: %+v, %v", pinged, err)
	}
	claimed, err := peer.Claim(t.Context(), &rpc.ClaimRequest{Header: rpc.Header{Shard: "shard01"}})
	if err != nil || claimed.Epoch != 7 {
		t.Errorf("claim: %+v, %v", claimed, err)
	}
	stranger, _ := rpc.NewHTTPDialer("guess", host.System(), nil).DialPeer(at)
	if _, err := stranger.Ping(t.Context(), &rpc.PingRequest{}); !errors.Is(err, rpc.Stranger) || errors.Is(err, rpc.Unreachable) {
		t.Errorf("with another secret: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone, _ := d.DialPeer(l.Addr().String())
	l.Close()
	if _, err := gone.Ping(t.Context(), &rpc.PingRequest{}); !rpc.NobodyListens(err) || !errors.Is(err, rpc.Unreachable) {
		t.Errorf("where nobody listens: %v", err)
	}
	if _, err := d.DialPeer(""); !errors.Is(err, rpc.Unreachable) {
		t.Errorf("without an address: %v", err)
	}
}

// A process that is no peer does not answer as one.
func TestOwnersAloneAreNoPeers(t *testing.T) {
	s := httptest.NewServer(rpc.Handler(&owner{}, nil, "", host.System(), valid, rpc.Limits{}))
	defer s.Close()
	d := rpc.NewHTTPDialer("", host.System(), nil)
	defer d.Close()
	peer, _ := d.DialPeer(s.Listener.Addr().String())
	if _, err := peer.Ping(t.Context(), &rpc.PingRequest{}); !errors.Is(err, errkind.Invalid) {
		t.Error(err)
	}
}
