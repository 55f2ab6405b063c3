package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"github.com/granarydb/granary/router/wire"
)

// FuzzCommands sends any document that passes the wire's validation: there is an answer, a
// document, and no panic. The seeds are the commands of the sessions in testdata.
func FuzzCommands(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		in, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(in)) {
			if strings.HasPrefix(line, "{") && !strings.Contains(line, "$CURSOR") {
				f.Add([]byte(raw(f, line)), name != "testdata/handshake.txt")
			}
		}
	}
	c := routertest.New(f, routertest.Options{Settings: router.Settings{Patience: 100 * time.Millisecond}})
	s := New(c.Router, &Options{Patience: 100 * time.Millisecond})
	f.Cleanup(func() { s.cursors.closeAll(context.Background()) })
	f.Fuzz(func(t *testing.T, body []byte, db bool) {
		if document.Validate(body, document.Limits{}) != nil {
			return
		}
		m := &wire.Request{Body: body, DB: map[bool]string{true: "db", false: "admin"}[db]}
		e, err := m.Body.IndexErr(0)
		if err != nil {
			return // the wire refuses a command without a name
		}
		m.Command = e.Key()
		kept := bytes.Clone(body)
		reply := s.answer(context.Background(), m, peer{})
		if err := document.Validate(reply, document.Limits{MaxBytes: 64 << 20, MaxDepth: 200}); err != nil {
			t.Fatalf("command %v: reply %v: %v", m.Body, reply, err)
		}
		if !bytes.Equal(kept, body) {
			t.Fatal("the request was changed")
		}
	})
}
