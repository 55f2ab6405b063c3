package gc

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
)

var update = flag.Bool("update", false, "rewrite the scenarios in testdata")

// TestPlans runs the scenarios in testdata/plan.txt. A block is a command with its lines,
// "----", and what comes out:
//
//	new SHARD...   begins a cluster
//	edit           applies its lines as one edit, which happens at second N for version N
//	pin            pins the root as it is
//	unpin          drops all pins
//	plan SECOND    plans with a listing of wal/, one key a line; a/1/3 is wal/a/<1>/<3>, and
//	               a/1/3+ the same, larger than a seal
func TestPlans(t *testing.T) {
	const name = "testdata/plan.txt"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s := &scenario{t: t}
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		lines, _, _ := strings.Cut(block, "\n----")
		out.WriteString(strings.TrimSpace(lines+"\n----\n"+s.run(lines)) + "\n\n")
	}
	now := strings.TrimSpace(out.String()) + "\n"
	if *update {
		if err := os.WriteFile(name, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(now, "\n")); diff != "" && !*update {
		t.Errorf("%s: -file +run (go test -update rewrites it)\n%s", name, diff)
	}
}

type scenario struct {
	t    *testing.T
	s    *manifest.State
	pins []*manifest.State
}

func (s *scenario) run(block string) string {
	var lines []string
	for line := range strings.Lines(block) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	words := strings.Fields(lines[0])
	switch words[0] {
	case "new":
		var ids []manifest.ShardID
		for _, w := range words[1:] {
			ids = append(ids, manifest.ShardID(w))
		}
		s.s, s.pins = manifesttest.New(s.t, ids...), nil
	case "edit":
		s.s = manifesttest.Apply(s.t, s.s, strings.Join(lines[1:], "\n"))
	case "pin":
		s.pins = append(s.pins, s.s)
	case "unpin":
		s.pins = nil
	case "plan":
		second, err := strconv.Atoi(words[1])
		if err != nil {
			s.t.Fatal(err)
		}
		p := Make(append([]*manifest.State{s.s}, s.pins...), int64(second)*1000, 100*time.Second)
		return format(p, s.garbage(lines[1:]))
	default:
		s.t.Fatalf("unknown command %q", lines[0])
	}
	return ""
}

// garbage shows each shard's part of a listing to its plan, and what is not its part, too.
func (s *scenario) garbage(listing []string) (garbage []string) {
	for _, shard := range logs(s.s) {
		plan := logPlan{shard: shard}
		add := func(verb, key string) {
			if key != "" {
				shard, epoch, index, _ := manifest.ParseWALKey(key)
				garbage = append(garbage, fmt.Sprintf("%s %s/%d/%d", verb, shard, epoch, index))
			}
		}
		for _, word := range listing {
			word, large := strings.CutSuffix(word, "+")
			o := bucket.Attrs{Key: walKeys([]string{word})[0], Size: wal.SealBytes}
			if large {
				o.Size++
			}
			v := plan.next(o)
			add("look at", v.doubt)
			add("delete", v.garbage)
			if v.past {
				break
			}
		}
		add("look at", plan.end())
	}
	return garbage
}

// walKeys reads shard/epoch/index; what is no such thing stays as it is.
func walKeys(words []string) (keys []string) {
	for _, w := range words {
		f := strings.Split(w, "/")
		if len(f) == 3 {
			epoch, err1 := strconv.ParseUint(f[1], 10, 64)
			index, err2 := strconv.ParseUint(f[2], 10, 64)
			if err1 == nil && err2 == nil {
				w = manifest.WALKey(manifest.ShardID(f[0]), manifest.Epoch(epoch), index)
			}
		}
		keys = append(keys, w)
	}
	return keys
}

func format(p Plan, garbage []string) string {
	var b strings.Builder
	for _, g := range garbage {
		fmt.Fprintln(&b, g)
	}
	for _, d := range p.Segments {
		fmt.Fprintf(&b, "delete segment %x, dropped at %d\n", d.Segment.Random[15:], d.Version)
	}
	for _, d := range p.Shared {
		fmt.Fprintf(&b, "forget segment %x, dropped at %d\n", d.Segment.Random[15:], d.Version)
	}
	if p.Waiting > 0 {
		fmt.Fprintf(&b, "%d wait\n", p.Waiting)
	}
	return fmt.Sprintf("root %d\n%s", p.Root, b.String())
}
