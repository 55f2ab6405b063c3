package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

// What split, move and merge have in common: the collection, documents on the command line, and
// a router of their own that asks the writers.

// chunkWait bounds one of these commands.
const chunkWait = 30 * time.Second

func namespaceFlag() cli.Flag {
	return &cli.StringFlag{Name: "ns", Required: true, Usage: "the collection: DATABASE.COLLECTION"}
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "show what would be done, and do nothing"}
}

func boundsFlag(what string) cli.Flag {
	return &cli.StringFlag{Name: "bounds", Usage: what + `: '[{"k": 1}, {"k": 5}]', the upper one exclusive`}
}

// chunkCommand is one of these commands under way.
type chunkCommand struct {
	cmd    *cli.Command
	ns     router.Namespace
	bucket *store
	root   *manifest.Root
	dialer *rpc.HTTPDialer
	router *router.Router
}

// namespaceOf reads a flag that names a collection.
func namespaceOf(cmd *cli.Command, flag string) (router.Namespace, error) {
	db, coll, ok := strings.Cut(cmd.String(flag), ".")
	if !ok || db == "" || coll == "" {
		return router.Namespace{}, usage("--%s %q: name a collection as DATABASE.COLLECTION", flag, cmd.String(flag))
	}
	return router.Namespace{Database: db, Collection: coll}, nil
}

func openChunks(ctx context.Context, cmd *cli.Command) (*chunkCommand, error) {
	ns, err := namespaceOf(cmd, "ns")
	if err != nil {
		return nil, err
	}
	secret, err := sharedSecret()
	if err != nil {
		return nil, err
	}
	h := host.System()
	c := &chunkCommand{cmd: cmd, ns: ns}
	if c.bucket, c.root, err = openCluster(ctx, cmd, h); err != nil {
		return nil, err
	}
	c.dialer = rpc.NewHTTPDialer(secret, h, nil)
	c.router = router.New(router.Config{
		Root: c.root, Dialer: c.dialer, Host: h, Store: reader.NewStore(c.bucket.Open, segment.NewCache(8<<20)),
		Settings: router.Settings{Patience: chunkWait},
	})
	return c, nil
}

func (c *chunkCommand) close() {
	c.dialer.Close()
	_ = c.bucket.Close()
}

// reachable refuses shards that no writer can be asked for: it would take long to find out.
func (c *chunkCommand) reachable(chunks []*manifest.Chunk, to ...manifest.ShardID) error {
	shards := to
	for _, chunk := range chunks {
		shards = append(shards, chunk.Shard)
	}
	for _, id := range shards {
		switch h := c.root.State().Shard(id); {
		case h == nil:
		case h.Status == manifest.ShardFree:
			return fmt.Errorf("no writer holds %s, and its owner does this: start one with: granary writer --store %s", id, c.cmd.String("store"))
		case h.Address == "":
			return noAddress(h)
		}
	}
	return nil
}

// documents reads documents of the command line.
func documents(flag string, text []byte) (router.Documents, error) {
	docs, err := router.ParseDocuments(text)
	if err != nil {
		return nil, usage("--%s: %v", flag, err)
	}
	return docs, nil
}

// oneDocument reads a flag that is a document; "" is none.
func oneDocument(cmd *cli.Command, flag string) (router.Documents, error) {
	text := cmd.String(flag)
	if text == "" {
		return nil, nil
	}
	docs, err := documents(flag, []byte(text))
	if err == nil && len(docs) != 1 {
		err = usage(`--%s %s: one document is expected, '{"k": 1}'`, flag, text)
	}
	return docs, err
}

// whereOf reads --find or --bounds.
func whereOf(cmd *cli.Command) (at router.Where, err error) {
	find, err := oneDocument(cmd, "find")
	if err != nil {
		return at, err
	}
	if find != nil {
		at.Find = find[0]
		return at, nil
	}
	docs, err := documents("bounds", []byte(cmd.String("bounds")))
	if err != nil {
		return at, err
	}
	if at.Bounds, err = docs.Bounds(); err != nil {
		return at, usage("--bounds: %v", err)
	}
	return at, nil
}

// readPoints reads the documents of a file; "-" is the standard input.
func readPoints(path string) (router.Documents, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, usage("--points: %v", err)
	}
	docs, err := documents("points", text)
	if err == nil && len(docs) == 0 {
		err = usage("--points %s: there is no document in it; one a line, or an array of them", path)
	}
	return docs, err
}

// chunkLine is a chunk as these commands show it; bounds are Extended JSON.
type chunkLine struct {
	Min   json.RawMessage  `json:"min"`
	Max   json.RawMessage  `json:"max"`
	Shard manifest.ShardID `json:"shard"`
	Rows  int64            `json:"rows"` // in segments
	Bytes int64            `json:"bytes"`
}

func lineOf(chunk *manifest.Chunk) chunkLine {
	return chunkLine{Min: router.ExtendedJSON(chunk.MinBSON), Max: router.ExtendedJSON(chunk.MaxBSON), Shard: chunk.Shard, Rows: chunk.Rows, Bytes: chunk.Bytes}
}

func linesOf(chunks []*manifest.Chunk) []chunkLine {
	lines := []chunkLine{}
	for _, chunk := range chunks {
		lines = append(lines, lineOf(chunk))
	}
	return lines
}

// done is what a command did, or would do.
type done struct {
	Namespace string           `json:"ns"`
	DryRun    bool             `json:"dryRun"`
	To        manifest.ShardID `json:"to,omitempty"`
	// Chunks are those that are cut, moved or merged, as they were.
	Chunks []chunkLine `json:"chunks"`
	// Points are where they are cut; Known are points that were bounds already.
	Points []json.RawMessage `json:"points,omitempty"`
	Known  int               `json:"known,omitempty"`

	verb string // "cut", "moved", "merged"
}

// show prints what was done, in the form that was asked for.
func (c *chunkCommand) show(d done) error {
	d.Namespace, d.DryRun = c.ns.String(), c.cmd.Bool("dry-run")
	out := c.cmd.Root().Writer
	if c.cmd.String("output") == "json" {
		return printJSON(out, d)
	}
	verb := d.verb
	if d.DryRun {
		verb = "would be " + verb
	}
	for _, chunk := range d.Chunks {
		to := ""
		if d.To != "" {
			to = " to " + string(d.To)
		}
		fmt.Fprintf(out, "%s: [%s, %s) of %s%s\n", verb, chunk.Min, chunk.Max, chunk.Shard, to)
	}
	for _, p := range d.Points {
		fmt.Fprintf(out, "  at %s\n", p)
	}
	if d.Known > 0 {
		fmt.Fprintf(out, "%d points are bounds already\n", d.Known)
	}
	if len(d.Chunks) == 0 {
		fmt.Fprintln(out, "nothing to do")
	}
	return nil
}
