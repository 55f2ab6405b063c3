package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

// env names the environment variable of a flag.
func env(name string) cli.ValueSourceChain {
	return cli.EnvVars("GRANARY_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}

func storeFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "store", Value: "dir:./granary-data", Sources: env("store"),
		Usage: "where the data is: dir:PATH, or mem: (gone with the process)",
	}
}

// outputFlag chooses one of the formats that a command has; without any, table and json.
func outputFlag(formats ...string) cli.Flag {
	if formats == nil {
		formats = []string{"table", "json"}
	}
	last := len(formats) - 1
	return &cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: "table", Sources: env("output"),
		Usage:     strings.Join(formats[:last], ", ") + " or " + formats[last],
		Validator: oneOf("--output", formats...),
	}
}

// oneOf accepts a few words only.
func oneOf(flag string, words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%s is one of %s", flag, strings.Join(words, ", "))
		}
		return nil
	}
}

// positive refuses zero, which would silently mean the default, and less.
func positive[T int | time.Duration](flag string) func(T) error {
	return func(v T) error {
		if v <= 0 {
			return fmt.Errorf("%s %v: more than 0", flag, v)
		}
		return nil
	}
}

// requestLimit is how long a store may take to answer a small request before it is taken for
// one that never will.
const requestLimit = 10 * time.Second

// openStore opens the store of a command. Every request has a deadline, reads are retried, and
// those of a store beyond this machine that take long are sent a second time; below is put
// between the store and all of that.
func openStore(ctx context.Context, cmd *cli.Command, h host.Host, below ...func(bucket.Bucket) bucket.Bucket) (bucket.Bucket, error) {
	b, err := openURL(ctx, cmd.String("store"), h, below...)
	if errors.Is(err, errkind.Invalid) {
		return nil, coded{fmt.Errorf("--store: %w", err), codeUsage}
	}
	return b, err
}

func openURL(ctx context.Context, url string, h host.Host, below ...func(bucket.Bucket) bucket.Bucket) (bucket.Bucket, error) {
	b, err := open.URL(ctx, url, h)
	if err != nil {
		return nil, err
	}
	for _, f := range below {
		b = f(b)
	}
	b = layer.Deadline(b, h, requestLimit)
	if scheme, _, _ := strings.Cut(url, ":"); scheme != "dir" && scheme != "mem" {
		b = layer.Hedge(b, h, nil)
	}
	return layer.Retry(b, h, nil), nil
}

// openLocation opens the buckets of shards with a location of their own, with the same layers
// but for a cache on disk: what is to stay in one place is not spread over disks of others.
// Every process has to find the same bucket under the same URL.
func openLocation(h host.Host, below ...func(bucket.Bucket) bucket.Bucket) places.Opener {
	return func(ctx context.Context, url string) (bucket.Bucket, error) {
		path, isDir := strings.CutPrefix(url, "dir:")
		switch {
		case strings.HasPrefix(url, "mem:"):
			return nil, fmt.Errorf("location %q: %w: memory is another one in every process", url, errkind.Invalid)
		case isDir && !strings.HasPrefix(path, "/"):
			return nil, fmt.Errorf("location %q: %w: a relative path is another one in every process; type dir:/PATH", url, errkind.Invalid)
		}
		return openURL(ctx, url, h, below...)
	}
}

// store is a store that holds a cluster, with the locations of its shards.
type store struct {
	bucket.Bucket
	*places.Places
}

// Close closes all of them.
func (s *store) Close() error { return errors.Join(s.Places.Close(), s.Bucket.Close()) }

// openCluster opens a store that must hold a cluster. It makes no directory where there is
// none.
func openCluster(ctx context.Context, cmd *cli.Command, h host.Host) (*store, *manifest.Root, error) {
	b, err := openExisting(ctx, cmd, h)
	if err != nil {
		return nil, nil, err
	}
	s := &store{b, places.New(b, openLocation(h), h, &manifest.RootOptions{HistoryEvery: manifest.HistoryEveryDefault})}
	root := s.Root()
	if _, _, err := root.Load(ctx); err != nil {
		if errors.Is(err, errkind.NotFound) {
			err = noCluster(ctx, cmd, b)
		}
		_ = s.Close()
		return nil, nil, err
	}
	return s, root, nil
}

// noCluster says why a store has no root.
func noCluster(ctx context.Context, cmd *cli.Command, b bucket.Bucket) error {
	if err := localstack.NeverHeld(ctx, b); err != nil {
		return err
	}
	return neverMade(cmd)
}

func neverMade(cmd *cli.Command) error {
	url := cmd.String("store")
	return fmt.Errorf("%s holds no cluster: make one with: granary init --store %s", url, url)
}

// openExisting opens a store that is there, whatever it holds.
func openExisting(ctx context.Context, cmd *cli.Command, h host.Host) (bucket.Bucket, error) {
	url := cmd.String("store")
	if url == "mem:" {
		return nil, usage("--store mem: is empty in every new process: name a directory, such as dir:./granary-data")
	}
	if path, ok := strings.CutPrefix(url, "dir:"); ok && path != "" {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil, neverMade(cmd)
		}
	}
	return openStore(ctx, cmd, h)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func newLogger(cmd *cli.Command) *slog.Logger {
	level := slog.LevelInfo
	if cmd.Bool("verbose") {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	out := cmd.Root().ErrWriter
	if cmd.String("log") == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}
