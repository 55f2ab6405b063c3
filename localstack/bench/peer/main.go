package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

var (
	binary  = flag.String("granary", "", "the granary binary; empty: it is built")
	results = flag.String("results", "", "write the table to this file instead of standard output")
	rounds  = flag.Int("rounds", 5, "how often each side has its turn")
	turn    = flag.Duration("turn", 3*time.Second, "how long a turn is")
	dir     = flag.String("dir", "", "where both sides keep their data, on one disk; empty: a temporary directory")
)

// side is one of the two databases.
type side interface {
	// insert stores a batch of documents whose keys begin at first, durably.
	insert(ctx context.Context, client int, first int64) error
	// lookup reads the document with a key, and fails when it is not there.
	lookup(ctx context.Context, client int, key int64) error
	close()
}

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	base, err := os.MkdirTemp(*dir, "peer")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	if err := os.Chmod(base, 0o755); err != nil { // the other user must get through
		return err
	}
	g, err := startGranary(ctx, base)
	if err != nil {
		return fmt.Errorf("granary: %w", err)
	}
	defer g.close()
	p, err := startPostgres(ctx, base)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	defer p.close()
	table, err := compare(ctx, [2]side{g, p})
	if err != nil {
		return err
	}
	text := report(table, p.version)
	if *results == "" {
		fmt.Print(text)
		return nil
	}
	return os.WriteFile(*results, []byte(text), 0o644)
}

// row is one line of the table: what each side did per second in each round.
type row struct {
	name string
	per  [2][]float64
}

func (r row) ratio() float64 {
	var ratios []float64
	for i := range r.per[0] {
		ratios = append(ratios, r.per[0][i]/r.per[1][i])
	}
	return median(ratios)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// report is the table in Markdown, with all that its figures depend on.
func report(table []row, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Beside PostgreSQL\n\nMade by `go run .` in `localstack/bench/peer`; not written by hand.\n\n")
	fmt.Fprintf(&b, "* %s\n* %d processors, %s, %s\n* %s\n* both durable, both on %s, %d rounds of %v a side, in turns\n\n",
		version, runtime.NumCPU(), processor(), memory(), commit(), fileSystem(), *rounds, *turn)
	fmt.Fprintf(&b, "| through the Go driver | granary, per s | PostgreSQL, per s | ratio |\n|---|---:|---:|---:|\n")
	for _, r := range table {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.2f |\n", r.name, median(r.per[0]), median(r.per[1]), r.ratio())
	}
	return b.String()
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "commit unknown"
	}
	return "commit " + strings.TrimSpace(string(out))
}

func processor() string { return field("/proc/cpuinfo", "model name") }
func memory() string    { return field("/proc/meminfo", "MemTotal") + " memory" }

func field(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

func fileSystem() string {
	at := *dir
	if at == "" {
		at = os.TempDir()
	}
	at, _ = filepath.Abs(at)
	out, err := exec.Command("df", "--output=fstype", at).Output()
	if lines := strings.Fields(string(out)); err == nil && len(lines) == 2 {
		return lines[1]
	}
	return "one file system"
}
