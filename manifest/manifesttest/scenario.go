package manifesttest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
)

// New is the first state of a cluster with these shards.
func New(tb testing.TB, shards ...manifest.ShardID) *manifest.State {
	tb.Helper()
	cell := &MemCell{}
	s, err := manifest.Create(tb.Context(), cell, Host(1), manifest.InitOptions{Shards: shards})
	if err != nil {
		tb.Fatalf("create: %v", err)
	}
	return s
}

// Apply is s after an edit written as text, one change a line.
func Apply(tb testing.TB, s *manifest.State, text string) *manifest.State {
	tb.Helper()
	e, err := ParseEdit(s, text)
	if err != nil {
		tb.Fatal(err)
	}
	next, err := manifest.Apply(s, e, Nonce(s.Version()+1))
	if err != nil {
		tb.Fatalf("apply %s: %v", text, err)
	}
	return next
}

// twoDays is what clocks may be apart: it has passed for an edit with the line "later".
const twoDays = 48 * 60 * 60 * 1000

// ParseEdit reads an edit, one change a line. Its Op is made from the version of s.
func ParseEdit(s *manifest.State, text string) (manifest.Edit, error) {
	e := manifest.Edit{Op: manifest.OpID(Nonce(s.Version() + 1)), Millis: int64(s.Version()) * 1000}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "later" {
			e.Millis += twoDays
			continue
		}
		if line == "" {
			continue
		}
		c, err := ParseChange(s, line)
		if err != nil {
			return e, err
		}
		e.Changes = append(e.Changes, c)
	}
	return e, nil
}

// Nonce makes a nonce that is fresh for a version.
func Nonce(v manifest.Version) (n [16]byte) {
	copy(n[:], fmt.Sprintf("nonce %d", v))
	return n
}

// Run runs the scenarios in the files that match glob, each file as a subtest. With update
// it rewrites them.
func Run(t *testing.T, glob string, update bool) {
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", glob, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			was, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			now := runFile(t, string(was))
			if update {
				if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if now != string(was) {
				t.Errorf("%s: -file +run (go test -update rewrites it)\n%s", file, Diff(string(was), now))
			}
		})
	}
}

// runFile runs a scenario, and returns it with what came out.
//
// A block is comment lines, a command with its lines, "----", the outcome, an empty line.
// The commands: "new shards..." begins a cluster; "edit" applies its lines as one edit and
// shows what changed; "state" shows the state.
func runFile(t *testing.T, text string) string {
	var out strings.Builder
	w := &world{t: t}
	var block []string
	inOutcome := false
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			inOutcome = true
			for _, l := range block {
				out.WriteString(l + "\n")
			}
			out.WriteString("----\n" + w.run(block) + "\n")
			block = nil
		case line == "":
			inOutcome = false
		case !inOutcome && strings.HasPrefix(line, "#") && len(block) == 0:
			out.WriteString(line + "\n")
		case !inOutcome:
			block = append(block, line)
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

type world struct {
	t *testing.T
	s *manifest.State
}

func (w *world) run(block []string) string {
	command := strings.Fields(block[0])
	switch command[0] {
	case "new":
		var ids []manifest.ShardID
		for _, id := range command[1:] {
			ids = append(ids, manifest.ShardID(id))
		}
		w.s = New(w.t, ids...)
		return ""
	case "state":
		return Format(w.s)
	case "edit", "quiet":
		e, err := ParseEdit(w.s, strings.Join(block[1:], "\n"))
		if err != nil {
			w.t.Fatal(err)
		}
		next, err := manifest.Apply(w.s, e, Nonce(w.s.Version()+1))
		if err != nil {
			return err.Error() + "\n"
		}
		Check(w.t, w.s, next)
		diff := Diff(Format(w.s), Format(next))
		w.s = next
		if command[0] == "quiet" {
			return ""
		}
		return diff
	}
	w.t.Fatalf("unknown command %q", block[0])
	return ""
}

// Check fails the test when next, made from was, breaks an invariant, or does not come back
// from the codec as it was.
func Check(tb testing.TB, was, next *manifest.State) {
	tb.Helper()
	if err := manifest.Validate(next); err != nil {
		tb.Errorf("invalid state: %v\n%s", err, Format(next))
	}
	if err := manifest.ValidateStep(was, next); err != nil {
		tb.Errorf("invalid step: %v\n%s", err, Diff(Format(was), Format(next)))
	}
	if !next.Spread() { // pages of other locations do not ride in the root: a Root writes them first
		CheckCodec(tb, next, nil)
	}
}

// CheckCodec fails the test when s, encoded and decoded (with the pages of have), is not s.
func CheckCodec(tb testing.TB, s, have *manifest.State) {
	tb.Helper()
	object, err := manifest.EncodeRoot(s)
	if err != nil {
		tb.Fatalf("encode: %v", err)
	}
	m, err := manifest.DecodeRoot(object)
	if err != nil {
		tb.Fatalf("decode: %v", err)
	}
	back, err := m.State(have, nil)
	if err != nil {
		tb.Fatalf("decode: %v", err)
	}
	again, err := manifest.EncodeRoot(back)
	if err != nil {
		tb.Fatalf("encode again: %v", err)
	}
	if !bytes.Equal(object, again) {
		tb.Errorf("root changed on its way through the codec:\n%s", Diff(Format(s), Format(back)))
	}
}
