package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router/wire"
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
		Flags: []cli.Flag{
			storeFlag(),
			&cli.IntFlag{Name: "shards", Value: 3, Sources: env("shards"), Usage: "shards of a new cluster; means nothing to one that exists"},
			&cli.StringFlag{Name: "mongo", Value: "127.0.0.1:27017", Sources: env("mongo"), Usage: "address of the MongoDB wire protocol"},
			&cli.StringFlag{Name: "admin", Value: "127.0.0.1:8081", Sources: env("admin"), Usage: "address of /livez, /readyz, /metrics and pprof; empty: none"},
			&cli.BoolFlag{Name: "insecure", Sources: env("insecure"), Usage: "listen beyond this machine although there is no authentication yet"},
			&cli.DurationFlag{Name: "lease", Value: time.Second, Sources: env("lease"), Validator: positive[time.Duration]("--lease"), Usage: "how long reads need no look at the store; a start after a crash waits as long"},
			&cli.IntFlag{Name: "memtable-mb", Value: 64, Sources: env("memtable-mb"), Validator: positive[int]("--memtable-mb"), Usage: "memory for rows that are in the log only, all shards together"},
			&cli.IntFlag{Name: "cache-mb", Value: 64, Sources: env("cache-mb"), Validator: positive[int]("--cache-mb"), Usage: "memory for decoded segment blocks"},
			&cli.StringFlag{Name: "log", Value: "text", Sources: env("log"), Usage: "text or json, on stderr", Validator: oneOf("--log", "text", "json")},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log more"},
		},
		Action: runLocal,
	}
}

// drainTime bounds the way from SIGTERM to the end of the process.
const drainTime = 25 * time.Second

func runLocal(ctx context.Context, cmd *cli.Command) error {
	for _, flag := range []string{"mongo", "admin"} {
		if err := loopbackOnly(cmd, flag); err != nil {
			return err
		}
	}
	if _, err := localstack.ShardNames(cmd.Int("shards")); err != nil {
		return usage("%v", err)
	}
	h, log := host.System(), newLogger(cmd)
	metered := newMetered()
	b, err := openStore(ctx, cmd, h, metered.wrap)
	if err != nil {
		return err
	}
	defer b.Close()
	health := &health{}
	admin, stopAdmin, err := serveAdmin(cmd.String("admin"), health, metered, log)
	if err != nil {
		return err
	}
	defer stopAdmin()
	listener, err := net.Listen("tcp", cmd.String("mongo"))
	if err != nil {
		return fmt.Errorf("--mongo %s: %w; another address: granary local --mongo 127.0.0.1:27018", cmd.String("mongo"), err)
	}
	limitMemory(cmd)
	stack, err := localstack.Open(ctx, b, h, localstack.Options{
		Shards: cmd.Int("shards"), Lease: cmd.Duration("lease"), Log: log,
		Address: listener.Addr().String(), Program: version(),
		MemtableBytes: int64(cmd.Int("memtable-mb")) << 20, CacheBytes: int64(cmd.Int("cache-mb")) << 20,
	})
	if err != nil {
		_ = listener.Close()
		if ctx.Err() != nil {
			return nil // told to stop before it was up
		}
		return fmt.Errorf("%s: %w", b, err)
	}
	metered.watch(stack)
	server := wire.NewServer(stack.Commands, wire.Options{Host: h, Log: log, Validate: validate})
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.WithoutCancel(ctx), listener) }()
	health.ready.Store(true)
	announce(cmd, b.String(), listener.Addr().String(), admin)

	var failed error
	select {
	case <-ctx.Done():
		log.Info("stopping: draining connections, flushing, freeing shards")
	case failed = <-served:
	}
	health.ready.Store(false)
	drain, cancel := h.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	return errors.Join(failed, server.Drain(drain), stack.Close(drain))
}

// memoryBeside is what the process needs besides memtables and cache: requests under way,
// retry ids, segments being built.
const memoryBeside = 192 << 20

// limitMemory makes the collector work before the heap has doubled, unless GOMEMLIMIT says
// otherwise.
func limitMemory(cmd *cli.Command) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(cmd.Int("memtable-mb")+cmd.Int("cache-mb"))<<20 + memoryBeside)
	}
}

// validate is what every document from a client passes before anything looks into it.
func validate(doc []byte, maxBytes, maxDepth int) error {
	return document.Validate(doc, document.Limits{MaxBytes: maxBytes, MaxDepth: maxDepth})
}

// announce prints where to connect and the line to paste.
func announce(cmd *cli.Command, store, addr, admin string) {
	fmt.Fprintf(cmd.Root().Writer, "granary %s serves %s\n\n    mongosh mongodb://%s/\n\n", version(), store, addr)
	if admin != "" {
		fmt.Fprintf(cmd.Root().Writer, "health and metrics: http://%s/readyz http://%s/metrics\n", admin, admin)
	}
}

// loopbackOnly refuses an address beyond this machine: nobody is asked for a password yet.
func loopbackOnly(cmd *cli.Command, flag string) error {
	addr := cmd.String(flag)
	if addr == "" || cmd.Bool("insecure") {
		return nil
	}
	name, _, err := net.SplitHostPort(addr)
	if err != nil {
		return usage("--%s %q: %v: an address is HOST:PORT, such as 127.0.0.1:27017", flag, addr, err)
	}
	if ip := net.ParseIP(name); name == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return usage("--%s %s is not on this machine, and there is no authentication yet: use 127.0.0.1, or say --insecure", flag, addr)
}
