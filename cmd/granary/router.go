package main

import (
	"context"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/urfave/cli/v3"
)

func routerCommand() *cli.Command {
	return &cli.Command{
		Name:  "router",
		Usage: "run a process that serves drivers and holds nothing",
		Description: `Serves the MongoDB wire protocol on a store whose shards are held by granary writer. It
keeps nothing: run as many as you like, and give drivers the addresses of several.

   granary router --store dir:/srv/granary
   granary router --store dir:/srv/granary --mongo 127.0.0.1:27018 --admin 127.0.0.1:8082
   mongosh mongodb://127.0.0.1:27017,127.0.0.1:27018/`,
		Flags: slices.Concat(serveFlags(forever), []cli.Flag{
			mongoFlag(), newShards(),
			&cli.StringFlag{Name: "zone", Sources: env("zone"), Usage: "the zone this router is in: collections that it makes begin on a shard of it, unless a zone range says where they belong"},
		}),
		Action: runRouter,
	}
}

func runRouter(ctx context.Context, cmd *cli.Command) error {
	if err := loopbackOnly(cmd, "mongo"); err != nil {
		return err
	}
	secret, err := sharedSecret()
	if err != nil {
		return err
	}
	if err := sharedStore(cmd); err != nil {
		return err
	}
	if _, err := localstack.ShardNames(cmd.Int("new-shards")); err != nil {
		return usage("--new-%s", strings.TrimPrefix(err.Error(), "--"))
	}
	p, err := newProcess(ctx, cmd, cmd.Int("new-shards"))
	defer p.close()
	if err != nil {
		return p.up(ctx, err)
	}
	listener, err := p.listen("mongo")
	if err != nil {
		return err
	}
	p.options.Zone = cmd.String("zone")
	p.options.Address = listener.Addr().String()
	network := rpc.NewHTTPDialer(secret, p.host, nil)
	defer network.Close()
	r, err := localstack.OpenRouter(ctx, p.bucket, p.host, network, p.options)
	if err != nil {
		return p.up(ctx, err)
	}
	p.metered.watch(r.Base, nil)
	p.metered.router.Store(r.Router)
	served := make(chan error, 1)
	server := p.serveMongo(ctx, r.Commands, listener, served)
	p.health.since = r.SinceStore
	p.announce("    mongosh mongodb://%s/", listener.Addr())
	return p.serve(ctx, served, "draining connections", r.Commands.Drain, server.Drain, r.Close)
}
