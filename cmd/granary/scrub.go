package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

func scrubCommand() *cli.Command {
	return &cli.Command{
		Name:  "scrub",
		Usage: "read every byte now and then, slowly, beside a running cluster",
		Description: `Finds bits that rot while there is a backup that has them. Reads only. With --state, a scrub that
was ended goes on where it was. Exit code 3 when something is wrong; problems are those of
granary fsck.

   granary scrub --store s3://prod/granary --rate-mb 20 --state scrub.json
   granary scrub --store s3://prod/granary --rate-mb 20 --state scrub.json --every 168h -o json`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(),
			&cli.IntFlag{Name: "rate-mb", Value: 20, Validator: positive[int]("--rate-mb"), Usage: "megabytes read per second, on average, at most"},
			&cli.StringFlag{Name: "state", Usage: "a file that says how far it got"},
			&cli.DurationFlag{Name: "every", Usage: "begin another round this long after the last began; without, one round"},
		},
		Action: runScrub,
	}
}

func runScrub(ctx context.Context, cmd *cli.Command) error {
	if cmd.Duration("every") < 0 {
		return usage("--every %v: more than 0", cmd.Duration("every"))
	}
	h := host.System()
	b, c, err := openChecker(ctx, cmd, h, int64(cmd.Int("rate-mb"))<<20)
	if err != nil {
		return err
	}
	defer b.Close()
	if isTerminal(os.Stderr) {
		c.Progress = func(done, total int) { fmt.Fprintf(os.Stderr, "\r%d of %d segments", done, total) }
		defer fmt.Fprintln(os.Stderr)
	}
	s := &scrub{Checker: c, host: h, state: cmd.String("state")}
	for {
		began, r, err := s.round(ctx)
		if errors.Is(err, errkind.NotFound) {
			return neverMade(cmd)
		}
		if err != nil {
			return err
		}
		found := reported(cmd, r)
		wait := cmd.Duration("every") - h.Wall().Sub(began)
		if cmd.Duration("every") == 0 || found != nil && exitCode(found) != codePartial || h.Sleep(ctx, max(wait, 0)) != nil {
			return found
		}
	}
}

// noteEvery is the time between two notes of how far a scrub got: what it reads again, at most,
// when it was killed.
const noteEvery = 5 * time.Second

// scrub is rounds over a store, and the file that says how far the present one got.
type scrub struct {
	*fsck.Checker
	host  host.Host
	state string // "": none
}

// round begins a round, or goes on with the one that the file tells of.
func (s *scrub) round(ctx context.Context) (began time.Time, r *fsck.Report, err error) {
	mark, err := s.load()
	if err != nil {
		return began, nil, err
	}
	if mark.Began == 0 {
		mark.Began = s.host.Wall().UnixMilli()
	}
	last, noted := mark, s.host.Mono()
	r, err = s.Scrub(ctx, mark, func(m fsck.Mark) error {
		if last = m; s.host.Mono() < noted+noteEvery {
			return nil
		}
		noted = s.host.Mono()
		return s.save(m)
	})
	if err != nil {
		return began, r, errors.Join(err, s.save(last))
	}
	return time.UnixMilli(mark.Began), r, s.save(fsck.Mark{})
}

func (s *scrub) load() (m fsck.Mark, err error) {
	if s.state == "" {
		return m, nil
	}
	text, err := os.ReadFile(s.state)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, fmt.Errorf("--state %s: %w; remove it to begin a new round", s.state, err)
	}
	return m, nil
}

// save replaces the file as a whole, so that a crash leaves the one before.
func (s *scrub) save(m fsck.Mark) error {
	if s.state == "" {
		return nil
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(s.state), "."+filepath.Base(s.state)+".next")
	if err = os.WriteFile(next, text, 0o600); err == nil {
		err = os.Rename(next, s.state)
	}
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	return nil
}
