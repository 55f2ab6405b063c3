package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/urfave/cli/v3"
)

// newShards is the flag of processes that find an empty store.
func newShards() cli.Flag {
	return &cli.IntFlag{Name: "new-shards", Value: 3, Sources: env("new-shards"), Usage: "shards of a new cluster, when the store is empty; means nothing to one that exists"}
}

func writerCommand() *cli.Command {
	return &cli.Command{
		Name:  "writer",
		Usage: "run a process that holds shards",
		Description: `Holds shards and serves them to routers. Writers find one another through the store: they
share the shards evenly, take over those of a process that died, and hand theirs over on
SIGTERM. A new store is probed and initialised.

   granary writer --store dir:/srv/granary
   granary writer --store dir:/srv/granary --shards shard01,shard02 --listen 127.0.0.1:7018

Beyond one machine all writers and routers need the same secret in GRANARY_SECRET:

   granary writer --store dir:/srv/granary --listen 0.0.0.0:7017 --address 10.0.0.7:7017`,
		Flags: slices.Concat(serveFlags(forever), holdFlags(5*time.Second), paceFlags(), []cli.Flag{
			&cli.StringFlag{Name: "shards", Sources: env("writer-shards"), Usage: "only these shards, such as shard01,shard02, also from a writer that takes any"},
			&cli.BoolFlag{Name: "any", Sources: env("any"), Usage: "any shard that nobody serves, and an even share of all; the default without --shards"},
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:7017", Sources: env("listen"), Usage: "address for routers and other writers"},
			&cli.StringFlag{Name: "address", Sources: env("address"), Usage: "HOST:PORT at which others reach --listen, when it is another"},
			newShards(),
		}),
		Action: runWriter,
	}
}

func runWriter(ctx context.Context, cmd *cli.Command) error {
	role, secret, err := writerRole(cmd)
	if err != nil {
		return err
	}
	p, err := newProcess(ctx, cmd, cmd.Int("new-shards"))
	defer p.close()
	if err != nil {
		return p.up(ctx, err)
	}
	listener, err := p.listen("listen")
	if err != nil {
		return err
	}
	if role.Address, err = announced(cmd, listener); err != nil {
		return err
	}
	if err := p.reserve("whose routers reach it at "+role.Address, false); err != nil {
		return err
	}
	network := rpc.NewHTTPDialer(secret, p.host, nil)
	defer network.Close()
	w, err := localstack.OpenWriter(ctx, p.bucket, p.host, network, role, p.options)
	if err != nil {
		return p.up(ctx, err)
	}
	p.metered.watch(w.Base, w.Writer)
	served := make(chan error, 1)
	server := p.serveRPC(ctx, rpc.Handler(w.Writer, w.Member, secret, p.host, validateMessage, w.Limits()), listener, served)
	p.health.since = w.SinceStore
	p.announce("    a writer at %s", role.Address)
	return p.serve(ctx, served, "handing shards over, flushing, freeing", w.Close, server.Shutdown)
}

// writerRole reads what a writer is told.
func writerRole(cmd *cli.Command) (role localstack.WriterRole, secret string, err error) {
	if secret, err = sharedSecret(); err != nil {
		return role, "", err
	}
	if err := sharedStore(cmd); err != nil {
		return role, "", err
	}
	if err := secretOrLoopback(cmd, "listen", secret); err != nil {
		return role, "", err
	}
	if _, err := localstack.ShardNames(cmd.Int("new-shards")); err != nil {
		return role, "", usage("--new-%s", strings.TrimPrefix(err.Error(), "--"))
	}
	for name := range strings.SplitSeq(cmd.String("shards"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			role.Named = append(role.Named, manifest.ShardID(name))
		}
	}
	role.Any = cmd.Bool("any") || len(role.Named) == 0
	if cmd.Bool("any") && len(role.Named) > 0 {
		return role, "", usage("--any and --shards %s: say one of them", cmd.String("shards"))
	}
	return role, secret, nil
}

// sharedStore refuses a store that no other process sees.
func sharedStore(cmd *cli.Command) error {
	if cmd.String("store") == "mem:" {
		return usage("--store mem: is seen by one process only: name a directory, such as dir:./granary-data, or run granary local --store mem:")
	}
	return nil
}

// messageDepth is how deep a message between processes nests: a document, and what is around
// it.
const messageDepth = 110

// validateMessage is what every message of another process passes before anything looks into
// it.
func validateMessage(doc []byte) error {
	return document.Validate(doc, document.Limits{MaxBytes: rpc.MessageBytesMax, MaxDepth: messageDepth})
}

// serveRPC answers routers and other writers, and sends to served when that fails.
func (p *process) serveRPC(ctx context.Context, h http.Handler, l net.Listener, served chan<- error) *http.Server {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	go func() {
		if err := server.Serve(bound(l, connsMax)); !errors.Is(err, http.ErrServerClosed) {
			served <- err
		}
	}()
	return server
}
