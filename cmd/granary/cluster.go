package main

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

// noAddress is the error about a shard that nobody but its holder can be asked for.
func noAddress(h *manifest.Shard) error {
	return fmt.Errorf("%s is held by %s, which has no address for others: stop that process, and start granary local or granary writer of this version", h.ID, h.Holder)
}

// withRouter runs a command through a router of its own, which asks the processes that hold
// shards.
func withRouter(ctx context.Context, cmd *cli.Command, do func(ctx context.Context, b bucket.Bucket, r *router.Router) error) error {
	return withServing(ctx, cmd, func(ctx context.Context, b bucket.Bucket, r *localstack.Router) error { return do(ctx, b, r.Router) })
}

// withServing is withRouter for what has commands answered as well.
func withServing(ctx context.Context, cmd *cli.Command, do func(ctx context.Context, b bucket.Bucket, r *localstack.Router) error) error {
	return withReading(ctx, cmd, func(ctx context.Context, b bucket.Bucket, r *localstack.Router) error {
		for _, s := range r.Root.State().Shards() {
			if s.Status != manifest.ShardFree && s.Address == "" {
				return noAddress(s)
			}
		}
		return do(ctx, b, r)
	})
}

// withReading is withServing for what asks no process that holds shards.
func withReading(ctx context.Context, cmd *cli.Command, do func(ctx context.Context, b bucket.Bucket, r *localstack.Router) error) error {
	h := host.System()
	b, _, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	secret, err := sharedSecret()
	if err != nil {
		return err
	}
	network := rpc.NewHTTPDialer(secret, h, nil)
	defer network.Close()
	r, err := localstack.OpenRouter(ctx, b, h, network, localstack.Options{Program: version(), OpenLocation: openLocation(h)})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(ctx) }()
	return do(ctx, b, r)
}

// do has a router of this process answer a command, which is Extended JSON. Errors: those that the
// reply speaks of.
func do(ctx context.Context, r *localstack.Router, text string) (reply router.Document, err error) {
	docs, err := router.ParseDocuments([]byte(text))
	if err != nil {
		return nil, err
	}
	reply = r.Commands.Do(ctx, docs[0])
	if ok, _ := reply.Lookup("ok").AsInt64OK(); ok != 1 {
		text, _ := reply.Lookup("errmsg").StringValueOK()
		name, _ := reply.Lookup("codeName").StringValueOK()
		return nil, fmt.Errorf("%s: %s", name, text)
	}
	return reply, nil
}
