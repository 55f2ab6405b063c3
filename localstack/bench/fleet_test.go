package bench

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// fleet is a router and writers with a shard each, which talk over loopback.
type fleet struct {
	writers []*localstack.Writer
	client  *mongo.Client
}

// startFleet runs one on a store until the test ends.
func startFleet(tb testing.TB, store bucket.Bucket, writers int, o localstack.Options) *fleet {
	tb.Helper()
	o.NoBalancer = true // chunks stay where they were put
	f := &fleet{}
	dialer := rpc.NewHTTPDialer("", host.System(), nil)
	tb.Cleanup(dialer.Close)
	for i := range writers {
		f.writers = append(f.writers, serveWriter(tb, store, dialer, shardName(i), o))
	}
	r, err := localstack.OpenRouter(tb.Context(), store, host.System(), dialer, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close(context.Background()) })
	f.client = serve(tb, r.Commands)
	return f
}

func shardName(i int) manifest.ShardID { return manifest.ShardID(fmt.Sprintf("shard%02d", i+1)) }

// serveWriter runs a writer for one shard until the test ends.
func serveWriter(tb testing.TB, store bucket.Bucket, dialer *rpc.HTTPDialer, shard manifest.ShardID, o localstack.Options) *localstack.Writer {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	role := localstack.WriterRole{Address: l.Addr().String(), Named: []manifest.ShardID{shard}}
	w, err := localstack.OpenWriter(tb.Context(), store, host.System(), dialer, role, o)
	if err != nil {
		tb.Fatal(err)
	}
	check := func(doc []byte) error { return document.Validate(doc, document.Limits{}) }
	server := &http.Server{Handler: rpc.Handler(w.Writer, w.Member, "", host.System(), check, w.Limits())}
	go func() { _ = server.Serve(l) }()
	tb.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			tb.Error(err)
		}
		_ = server.Close()
	})
	return w
}

// spread makes a collection with one chunk for each writer.
func (f *fleet) spread(tb testing.TB, ns string) *mongo.Collection {
	tb.Helper()
	err := f.client.Database("admin").RunCommand(tb.Context(), bson.D{
		{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}, {Key: "numInitialChunks", Value: len(f.writers)},
	}).Err()
	if err != nil {
		tb.Fatal(err)
	}
	db, name, _ := strings.Cut(ns, ".")
	return f.client.Database(db).Collection(name)
}

// flush has every writer bring what it acknowledged into segments.
func (f *fleet) flush(tb testing.TB) {
	tb.Helper()
	for i, w := range f.writers {
		if _, err := w.Writer.Flush(tb.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: shardName(i)}}); err != nil {
			tb.Fatal(err)
		}
	}
}
