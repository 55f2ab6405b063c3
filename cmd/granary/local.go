package main

import (
	"context"
	"slices"
	"time"

	"github.com/granarydb/granary/localstack"
	"github.com/urfave/cli/v3"
)

func localCommand() *cli.Command {
	return &cli.Command{
		Name:  "local",
		Usage: "run every role in one process",
		Description: `Serves the MongoDB wire protocol on a store; a new store is probed and initialised.
Survives kill -9: what was acknowledged is in the store, and the next start serves it.

   granary local
   granary local --store dir:/var/lib/granary --mongo 127.0.0.1:27018`,
		Flags: slices.Concat(serveFlags(0), holdFlags(time.Second), paceFlags(), []cli.Flag{
			mongoFlag(),
			&cli.IntFlag{Name: "shards", Value: 3, Sources: env("shards"), Usage: "shards of a new cluster; means nothing to one that exists"},
		}),
		Action: runLocal,
	}
}

func runLocal(ctx context.Context, cmd *cli.Command) error {
	if err := loopbackOnly(cmd, "mongo"); err != nil {
		return err
	}
	if _, err := localstack.ShardNames(cmd.Int("shards")); err != nil {
		return usage("%v", err)
	}
	p, err := newProcess(ctx, cmd, cmd.Int("shards"))
	defer p.close()
	if err != nil {
		return p.up(ctx, err)
	}
	listener, err := p.listen("mongo")
	if err != nil {
		return err
	}
	p.options.Address = listener.Addr().String()
	if err := p.reserve("which serves mongodb://"+p.options.Address+"/", true); err != nil {
		return err
	}
	stack, err := localstack.Open(ctx, p.bucket, p.host, p.options)
	if err != nil {
		return p.up(ctx, err)
	}
	p.metered.watch(stack.Base, stack.Writer)
	p.metered.router.Store(stack.Router)
	server, served := p.serveMongo(ctx, stack.Commands, listener)
	p.health.since = stack.SinceStore
	p.announce("    mongosh mongodb://%s/", listener.Addr())
	return p.serve(ctx, served, "draining connections, flushing, freeing shards", stack.Commands.Drain, server.Drain, stack.Close)
}
