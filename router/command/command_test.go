package command

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/router/routertest"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite testdata")

func raw(t testing.TB, json string) bson.Raw {
	t.Helper()
	var d bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatalf("%s: %v", json, err)
	}
	return d
}

// TestSessionsAreAsWritten runs the files of testdata: each is what one client of a fresh
// cluster sends and gets. "use db" chooses the database, a line that begins with { is a
// command, "stop" ends all writers; the indented lines below are the reply.
// What differs from run to run is masked, and $CURSOR is the last cursor id that was seen.
func TestSessionsAreAsWritten(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no testdata", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			t.Parallel()
			in, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var out string
			synctest.Test(t, func(t *testing.T) { out = play(t, string(in)) })
			if *update {
				if err := os.WriteFile(name, []byte(out), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(string(in), out); d != "" {
				t.Errorf("replies differ (-written +now), -update rewrites:\n%s", d)
			}
		})
	}
}

func play(t *testing.T, script string) string {
	c := routertest.New(t, routertest.Options{})
	s := New(c.Router, &Options{Program: "test"})
	defer s.cursors.closeAll(context.Background())
	var out strings.Builder
	db, cursor := "db", "0"
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		switch {
		case strings.HasPrefix(line, "use "):
			db = line[len("use "):]
		case line == "stop":
			for _, h := range c.State().Shards() {
				c.Stop(h.ID)
			}
		case strings.HasPrefix(line, "{"):
			body := raw(t, strings.ReplaceAll(line, "$CURSOR", fmt.Sprintf(`{"$numberLong": %q}`, cursor)))
			e, err := body.IndexErr(0)
			if err != nil {
				t.Fatal(err)
			}
			reply := s.answer(context.Background(), &wire.Request{Command: e.Key(), DB: db, Body: body}, peer{id: 7})
			if err := reply.Validate(); err != nil {
				t.Fatalf("%s: the reply is no document: %v", line, err)
			}
			if id, ok := reply.Lookup("cursor", "id").Int64OK(); ok && id != 0 {
				cursor = fmt.Sprint(id)
			}
			json, err := bson.MarshalExtJSON(reply, false, false)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&out, "  "+mask(string(json)))
		}
	}
	return out.String()
}

var masks = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`\{"\$oid":"[0-9a-f]{24}"\}`), `OID`},
	{regexp.MustCompile(`ObjectId\('[0-9a-f]{24}'\)`), `OID`},
	{regexp.MustCompile(`\{"\$binary":\{"base64":"[^"]*","subType":"04"\}\}`), `UUID`},
	{regexp.MustCompile(`\{"\$date":"[^"]*"\}`), `DATE`},
	{regexp.MustCompile(`\{"\$timestamp":\{"t":[0-9]+,"i":([0-9]+)\}\}`), `TIMESTAMP($1)`},
	{regexp.MustCompile(`(cursor id |cursor )[0-9]{6,}`), `${1}N`},
	{regexp.MustCompile(`"id":[1-9][0-9]{5,}`), `"id":N`},
	{regexp.MustCompile(`"(pid|resident|virtual|numCores|rootVersion|sizeOnDisk|totalSize|latency)":[0-9]+`), `"$1":N`},
	{regexp.MustCompile(`\[([0-9]{9,},?)+\]`), `[IDS]`},
	{regexp.MustCompile(`"(currentOpTime|opid|secs_running|microsecs_running)":("[^"]*"|[0-9]+)`), `"$1":N`},
}

func mask(json string) string {
	for _, m := range masks {
		json = m.re.ReplaceAllString(json, m.to)
	}
	return json
}
