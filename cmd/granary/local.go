package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/urfave/cli/v3"
)

func localCommand() *cli.Command {
	return &cli.Command{
		Name:  "local",
		Usage: "run every role in one process",
		Description: `Serves the MongoDB wire protocol on a store; a new store is probed and initialised.
Survives kill -9: what was acknowledged is in the store, and the next start serves it. Commands
on the same store, and routers of this machine, ask it for what it holds.

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
	peers, secret, err := p.listenForPeers()
	if err != nil {
		return err
	}
	if peers != nil {
		network := rpc.NewHTTPDialer(secret, p.host, nil)
		defer network.Close()
		p.options.PeerAddress, p.options.Net = peers.Addr().String(), network
	}
	if err := p.reserve("which serves mongodb://"+p.options.Address+"/", true); err != nil {
		return err
	}
	stack, err := localstack.Open(ctx, p.bucket, p.host, p.options)
	if err != nil {
		return p.up(ctx, err)
	}
	p.metered.watch(stack.Base, stack.Writer)
	p.metered.router.Store(stack.Router)
	served := make(chan error, 2)
	stops := []func(context.Context) error{stack.Commands.Drain, p.serveMongo(ctx, stack.Commands, listener, served).Drain}
	if peers != nil {
		handler := rpc.Handler(stack.Writer, stack.Member, secret, p.host, validateMessage, stack.Limits())
		stops = append(stops, p.serveRPC(ctx, handler, peers, served).Shutdown)
	}
	p.health.since = stack.SinceStore
	p.announce("    mongosh mongodb://%s/", listener.Addr())
	return p.serve(ctx, served, "draining connections, flushing, freeing shards", append(stops, stack.Close)...)
}

// listenForPeers listens, on this machine alone, for commands such as granary move, and for
// routers, that ask the process about its shards; nil where nobody could know of it.
func (p *process) listenForPeers() (l net.Listener, secret string, err error) {
	if p.cmd.String("store") == "mem:" {
		return nil, "", nil
	}
	if secret, err = sharedSecret(); err != nil {
		return nil, "", err
	}
	if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, "", fmt.Errorf("listen for other processes of this machine: %w", err)
	}
	p.atClose(func() { _ = l.Close() })
	return l, secret, nil
}
