package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func findCommand() *cli.Command {
	return &cli.Command{
		Name:  "find",
		Usage: "print documents, as they are now or were at a snapshot",
		Description: `One document a line, as Extended JSON: what find in mongosh would return.

   granary find --ns shop.orders --filter '{"customer": 1234}' --sort '{"_id": -1}' --limit 5
   granary find --ns shop.orders --at monday --filter '{"customer": 1234}'
   granary find --ns shop.orders --at 2026-03-01T10:00:00Z`,
		Flags: append(queryFlags(),
			&cli.StringFlag{Name: "projection", Usage: "which fields: a document"},
			&cli.Int64Flag{Name: "limit", Value: 20, Usage: "at most so many; 0: all"},
		),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			w := &lines{out: bufio.NewWriter(cmd.Root().Writer)}
			if err := query(ctx, cmd, w); err != nil {
				return err
			}
			return w.out.Flush()
		},
	}
}

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write a collection to a file, as it is now or was at a snapshot",
		Description: `One document a line, as canonical Extended JSON, which keeps every type: what mongoimport reads.
A file has its name when all of it is there. Without --at the documents are read one after the
other while others write; with it they are of one moment.

   granary export --ns shop.orders --at monday --out orders.jsonl
   granary export --ns shop.orders --filter '{"year": 2025}' | gzip > orders.jsonl.gz`,
		Flags: append(queryFlags(),
			&cli.StringFlag{Name: "out", Value: "-", Usage: "the file; -: standard output"},
		),
		Action: runExport,
	}
}

// queryFlags are what find and export have in common.
func queryFlags() []cli.Flag {
	return []cli.Flag{
		storeFlag(), namespaceFlag(),
		&cli.StringFlag{Name: "at", Usage: "the name of a snapshot (granary snapshot list), or a time such as 2026-03-01T10:00:00Z (granary history); without, what is there now"},
		&cli.StringFlag{Name: "filter", Usage: "which documents: a document; without, all"},
		&cli.StringFlag{Name: "sort", Usage: "in which order: a document"},
	}
}

// lines writes documents, one a line.
type lines struct {
	out       *bufio.Writer
	canonical bool
	n         int64
	progress  io.Writer // nil: none
}

func (w *lines) write(doc router.Document) error {
	text, err := router.DocumentJSON(doc, w.canonical)
	if err != nil {
		return err
	}
	if _, err := w.out.Write(append(text, '\n')); err != nil {
		return err
	}
	if w.n++; w.progress != nil && w.n%10_000 == 0 {
		fmt.Fprintf(w.progress, "\r%d documents", w.n)
	}
	return nil
}

// runExport writes a file under another name until all of it is there.
func runExport(ctx context.Context, cmd *cli.Command) error {
	w := &lines{canonical: true}
	if isTerminal(os.Stderr) {
		w.progress = cmd.Root().ErrWriter
		defer fmt.Fprintln(w.progress)
	}
	path := cmd.String("out")
	if path == "-" {
		w.out = bufio.NewWriter(cmd.Root().Writer)
		if err := query(ctx, cmd, w); err != nil {
			return err
		}
		return w.out.Flush()
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	w.out = bufio.NewWriter(file)
	err = query(ctx, cmd, w)
	if err == nil {
		err = w.out.Flush()
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	fmt.Fprintf(cmd.Root().ErrWriter, "%d documents in %s\n", w.n, path)
	return nil
}

// query asks for what the flags say and writes it.
func query(ctx context.Context, cmd *cli.Command, w *lines) error {
	ns, err := namespaceOf(cmd, "ns")
	if err != nil {
		return err
	}
	find := []string{fmt.Sprintf(`"find": %q, "$db": %q`, ns.Collection, ns.Database)}
	for _, field := range []string{"filter", "sort", "projection"} {
		docs, err := oneDocument(cmd, field)
		if err != nil {
			return err
		}
		if docs == nil {
			continue
		}
		text, err := router.DocumentJSON(docs[0], true)
		if err != nil {
			return err
		}
		find = append(find, fmt.Sprintf("%q: %s", field, text))
	}
	if n := cmd.Int64("limit"); n > 0 {
		find = append(find, fmt.Sprintf(`"limit": %d`, n))
	}
	read := func(ctx context.Context, _ bucket.Bucket, r *localstack.Router) error {
		return readAll(ctx, r, ns, find, w)
	}
	if name := cmd.String("at"); name != "" {
		return withReading(ctx, cmd, func(ctx context.Context, b bucket.Bucket, r *localstack.Router) error {
			pin, err := router.PinOf(r.Root.State(), name)
			if err != nil {
				return err
			}
			at := pin.Version
			find = append(find, fmt.Sprintf(`"readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}`, at>>32, uint32(at)))
			return read(ctx, b, r)
		})
	}
	return withServing(ctx, cmd, read)
}

// readAll sends a find, given by its fields, and follows the cursor to its end. A collection that
// is not there has no documents.
func readAll(ctx context.Context, r *localstack.Router, ns router.Namespace, find []string, w *lines) error {
	next, batch := strings.Join(find, ", "), "firstBatch"
	for {
		reply, err := do(ctx, r, "{"+next+"}")
		if err != nil {
			return err
		}
		docs, err := reply.Lookup("cursor", batch).Array().Values()
		if err != nil {
			return err
		}
		for _, doc := range docs {
			if err := w.write(doc.Document()); err != nil {
				return err
			}
		}
		id, _ := reply.Lookup("cursor", "id").AsInt64OK()
		if id == 0 {
			return nil
		}
		next, batch = fmt.Sprintf(`"getMore": {"$numberLong": "%d"}, "collection": %q, "$db": %q`, id, ns.Collection, ns.Database), "nextBatch"
	}
}
