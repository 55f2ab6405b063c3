package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/dirbucket"
	"github.com/granarydb/granary/chunkstore/bucket/diskcache"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router/command"
	"github.com/granarydb/granary/router/wire"
	"github.com/urfave/cli/v3"
)

// What local, writer and router have in common: flags, the way to the store, health, and the
// way from SIGTERM to the end.

// drainTime bounds the way from SIGTERM to the end of the process.
const drainTime = 25 * time.Second

// forever is the --wait of processes that somebody starts again anyway.
const forever = time.Duration(math.MaxInt64)

// serveFlags are those of every command that serves. wait is the default of --wait.
func serveFlags(wait time.Duration) []cli.Flag {
	text := wait.String()
	if wait == forever {
		text = "for ever"
	}
	return []cli.Flag{
		storeFlag(),
		&cli.DurationFlag{Name: "wait", Value: wait, DefaultText: text, Sources: env("wait"), Usage: "for how long to wait for a store that cannot be reached; 0s: fail at once"},
		&cli.StringFlag{Name: "admin", Value: "127.0.0.1:8081", Sources: env("admin"), Usage: "address of /livez, /readyz, /metrics and pprof; empty: none"},
		&cli.StringFlag{Name: "prices", Sources: env("prices"), Usage: "a JSON file with the store's prices, for the cost in /metrics; without one, S3 Standard's"},
		&cli.BoolFlag{Name: "insecure", Sources: env("insecure"), Usage: "listen beyond this machine without authentication"},
		&cli.IntFlag{Name: "cache-mb", Value: 64, Sources: env("cache-mb"), Validator: positive[int]("--cache-mb"), Usage: "memory for decoded segment blocks"},
		&cli.StringFlag{Name: "disk-cache", Sources: env("disk-cache"), Usage: "a directory for what was read of segments, so that the next process need not fetch it again; empty: none"},
		&cli.IntFlag{Name: "disk-cache-mb", Value: 4096, Sources: env("disk-cache-mb"), Validator: positive[int]("--disk-cache-mb"), Usage: "how much of it"},
		&cli.StringFlag{Name: "log", Value: "text", Sources: env("log"), Usage: "text or json, on stderr", Validator: oneOf("--log", "text", "json")},
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log more"},
	}
}

func mongoFlag() cli.Flag {
	return &cli.StringFlag{Name: "mongo", Value: "127.0.0.1:27017", Sources: env("mongo"), Usage: "address of the MongoDB wire protocol"}
}

// holdFlags are those of commands that hold shards.
func holdFlags(lease time.Duration) []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "lease", Value: lease, Sources: env("lease"), Validator: positive[time.Duration]("--lease"), Usage: "how long reads need no look at the store; a successor waits as long after a crash"},
		&cli.BoolFlag{Name: "upkeep", Value: true, Sources: env("upkeep"), Usage: "cut and merge the chunks of the shards held here"},
		&cli.BoolFlag{Name: "balancer", Value: true, Sources: env("balancer"), Usage: "take part in moving chunks to where they should be; sh.stopBalancer() stops it for all"},
		&cli.IntFlag{Name: "memtable-mb", Value: 64, Sources: env("memtable-mb"), Validator: positive[int]("--memtable-mb"), Usage: "memory for rows that are in the log only, all shards together"},
	}
}

// process is one that serves: what it has before its role begins.
type process struct {
	cmd     *cli.Command
	host    host.Host
	log     *slog.Logger
	metered *metered
	health  *health
	bucket  bucket.Bucket
	admin   string // where its admin listener is; "": nowhere
	options localstack.Options
	closing []func()
}

// newProcess listens for admin, and opens the store. shards is what a new cluster begins
// with. The caller closes it, also after an error.
func newProcess(ctx context.Context, cmd *cli.Command, shards int) (*process, error) {
	p := &process{cmd: cmd, host: host.System(), log: newLogger(cmd), health: &health{}}
	if err := loopbackOnly(cmd, "admin"); err != nil {
		return p, err
	}
	prices, err := loadPrices(cmd.String("prices"))
	if err != nil {
		return p, err
	}
	pot, err := limitMemory(int64(cmd.Int("memtable-mb"))<<20, int64(cmd.Int("cache-mb"))<<20)
	if err != nil {
		return p, err
	}
	p.metered = newMetered(prices)
	elsewhere := openLocation(p.host, p.metered.wrap)
	p.options = localstack.Options{
		Shards: shards, Lease: cmd.Duration("lease"), Wait: cmd.Duration("wait"), Log: p.log, Program: version(),
		NoBalancer:    !cmd.Bool("balancer"),
		OpenLocation:  elsewhere,
		MemtableBytes: int64(cmd.Int("memtable-mb")) << 20, CacheBytes: int64(cmd.Int("cache-mb")) << 20,
		Pot: pot, Lag: admission.RuntimeLag(),
	}
	p.options.CompactBytes, p.options.CompactRequests = paceOf(cmd)
	if !cmd.Bool("upkeep") {
		p.options.UpkeepEvery = -1
	}
	admin, stop, err := serveAdmin(cmd.String("admin"), p.health, p.metered, p.log)
	if err != nil {
		return p, err
	}
	p.admin = admin
	p.atClose(stop)
	err = localstack.Patiently(ctx, p.host, p.options, cmd.String("store"), func() (err error) {
		p.bucket, err = openStore(ctx, cmd, p.host, p.metered.wrap)
		return err
	})
	if err == nil {
		p.cacheOnDisk()
		p.atClose(func() { _ = p.bucket.Close() })
	}
	return p, err
}

// cacheOnDisk puts a cache before the store. The process runs without, where it cannot have one.
func (p *process) cacheOnDisk() {
	dir := p.cmd.String("disk-cache")
	if dir == "" {
		return
	}
	c, err := diskcache.Open(p.bucket, p.host, dir, &diskcache.Options{BudgetBytes: int64(p.cmd.Int("disk-cache-mb")) << 20, Log: p.log})
	if err != nil {
		p.log.Warn("running without the disk cache", "dir", dir, "cause", err)
		return
	}
	p.bucket = c
	p.metered.disk.Store(c)
}

// reserve makes processes of one machine that would take the same shards from each other know
// of one another: a local wants a directory alone, writers share it. doing says what to tell
// the one that comes later.
func (p *process) reserve(doing string, alone bool) error {
	dir, ok := strings.CutPrefix(p.cmd.String("store"), "dir:")
	if !ok {
		return nil
	}
	note := fmt.Sprintf("granary %s, process %d, %s", p.cmd.Name, os.Getpid(), doing)
	release, err := dirbucket.Reserve(dir, note, alone)
	if err != nil {
		return fmt.Errorf("--store: %w; stop that process, or name another directory: granary %s --store dir:./other", err, p.cmd.Name)
	}
	p.atClose(release)
	return nil
}

func (p *process) atClose(f func()) { p.closing = append(p.closing, f) }

func (p *process) close() {
	for i := len(p.closing) - 1; i >= 0; i-- {
		p.closing[i]()
	}
}

// listen listens where a flag says; the process owns the listener until it is served.
func (p *process) listen(flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", p.cmd.String(flag))
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w; another address: granary %s --%s 127.0.0.1:27018", flag, p.cmd.String(flag), err, p.cmd.Name, flag)
	}
	p.atClose(func() { _ = l.Close() })
	return l, nil
}

// up judges an error of the start: a process that was told to stop before it was up has not
// failed.
func (p *process) up(ctx context.Context, err error) error {
	var c coded
	switch {
	case err == nil || errors.As(err, &c):
		return err
	case ctx.Err() != nil:
		return nil
	case p.bucket == nil:
		return err
	}
	return fmt.Errorf("%s: %w", p.bucket, err)
}

// serve is ready until ctx ends or the server fails, then does what stops the process, in
// order, within drainTime.
func (p *process) serve(ctx context.Context, served <-chan error, farewell string, stops ...func(context.Context) error) error {
	p.health.ready.Store(true)
	var failed error
	select {
	case <-ctx.Done():
		p.log.Info("stopping: " + farewell + "; a second signal ends at once")
	case failed = <-served:
	}
	p.health.ready.Store(false)
	drain, cancel := p.host.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	errs := []error{failed}
	for _, stop := range stops {
		errs = append(errs, stop(drain))
	}
	return errors.Join(errs...)
}

// serveMongo serves the wire protocol, and sends to served when that ends.
func (p *process) serveMongo(ctx context.Context, commands *command.Commands, l net.Listener, served chan<- error) *wire.Server {
	server := wire.NewServer(commands, wire.Options{
		Host: p.host, Log: p.log, Validate: validate, Memory: p.options.Pot.Account("messages", 60),
	})
	p.metered.server.Store(server)
	go func() { served <- server.Serve(context.WithoutCancel(ctx), l) }()
	return server
}

// announce prints what serves, and where health is.
func (p *process) announce(format string, args ...any) {
	out := p.cmd.Root().Writer
	fmt.Fprintf(out, "granary %s serves %s\n\n", version(), p.bucket)
	fmt.Fprintf(out, format+"\n\n", args...)
	if p.admin != "" {
		fmt.Fprintf(out, "health and metrics: http://%s/readyz http://%s/metrics\n", p.admin, p.admin)
	}
}

// validate is what every document from a client passes before anything looks into it.
func validate(doc []byte, maxBytes, maxDepth int) error {
	return document.Validate(doc, document.Limits{MaxBytes: maxBytes, MaxDepth: maxDepth})
}
