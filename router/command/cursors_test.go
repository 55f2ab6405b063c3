package command

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router/routertest"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// closing notes that it was closed.
type closing struct {
	docRows
	closed *int
}

func (c *closing) Close(context.Context) { *c.closed++ }

func wantCode(t testing.TB, err error, code mongoerr.Code) {
	t.Helper()
	var m *mongoerr.Error
	if !errors.As(err, &m) || m.Code != code {
		t.Fatalf("error %v, expected code %d", err, code)
	}
}

func TestCursorsEndWithIdlenessSessionOrKill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		cs := newCursors(host.System(), time.Minute, 3)
		closed := 0
		open := func(session string, forever bool) *cursor {
			c := &cursor{ns: "db.c", rows: &closing{closed: &closed}, forever: forever}
			if session != "" {
				c.session = []byte(session)
			}
			if err := cs.add(c); err != nil {
				t.Fatal(err)
			}
			return c
		}
		idle, forever, mine := open("", false), open("", true), open("s", false)
		wantCode(t, cs.add(&cursor{}), mongoerr.OperationFailed)
		time.Sleep(30 * time.Second)
		got, err := cs.take(mine.id, "db.c", []byte("s"))
		if err != nil || got != mine {
			t.Fatal(err)
		}
		_, err = cs.take(mine.id, "db.c", []byte("s"))
		wantCode(t, err, 12051)
		time.Sleep(40 * time.Second)
		cs.sweep(ctx)
		if closed != 1 || cs.open[idle.id] != nil || cs.open[forever.id] == nil {
			t.Fatalf("%d closed, open %v", closed, cs.open)
		}
		// A session that ends while a getMore has its cursor closes it afterwards.
		cs.endSession(ctx, []byte("s"))
		if closed != 1 {
			t.Fatal("closed under a getMore")
		}
		_, err = cs.take(mine.id, "db.c", []byte("s"))
		wantCode(t, err, mongoerr.CursorNotFound)
		cs.give(ctx, mine, false)
		if closed != 2 {
			t.Fatal("not closed")
		}
		if cs.kill(ctx, forever.id, "db.other") || !cs.kill(ctx, forever.id, "db.c") || closed != 3 {
			t.Fatal("kill")
		}
		open("", false)
		cs.closeAll(ctx)
		if n, opened, timedOut := cs.figures(); n != 0 || opened != 4 || timedOut != 1 || closed != 4 {
			t.Fatalf("%d open, %d opened, %d timed out, %d closed", n, opened, timedOut, closed)
		}
	})
}

// TestRunClosesWhatIsOpenAtItsEnd sweeps for a while, and then ends.
func TestRunClosesWhatIsOpenAtItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		s := New(c.Router, nil)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		closed := 0
		add := func() {
			if err := s.cursors.add(&cursor{rows: &closing{closed: &closed}}); err != nil {
				t.Fatal(err)
			}
		}
		add()
		time.Sleep(12 * time.Minute)
		add()
		if closed != 1 {
			t.Fatalf("%d closed", closed)
		}
		cancel()
		if err := <-done; err != nil || closed != 2 {
			t.Fatalf("%d closed, %v", closed, err)
		}
	})
}

// TestSequencesStandForFields inserts, updates and deletes by the documents beside a command.
func TestSequencesStandForFields(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		s := New(c.Router, nil)
		run := func(body, id string, docs ...string) bson.Raw {
			m := &wire.Request{DB: "db", Body: raw(t, body), Sequences: []wire.Sequence{{ID: id}}}
			e, _ := m.Body.IndexErr(0)
			m.Command = e.Key()
			for _, d := range docs {
				m.Sequences[0].Docs = append(m.Sequences[0].Docs, raw(t, d))
			}
			return s.answer(context.Background(), m, peer{})
		}
		for _, x := range []struct {
			reply bson.Raw
			n     int32
		}{
			{run(`{"insert": "c"}`, "documents", `{"_id": 1}`, `{"_id": 2}`), 2},
			{run(`{"update": "c"}`, "updates", `{"q": {"_id": 1}, "u": [{"$set": {"a": 1}}]}`, `{"q": {}, "u": {"$set": {"b": 1}}, "multi": true}`), 3},
			{run(`{"update": "c"}`, "updates", `{"q": {"_id": 1}, "u": {"$set": {"l.$[x]": 1}}, "arrayFilters": [{"x": 1}], "hint": "a", "collation": {"locale": "simple"}, "sort": {}}`), 0},
			{run(`{"delete": "c", "ordered": false}`, "deletes", `{"q": {"_id": 1}, "limit": 1, "hint": {"_id": 1}}`, `{"q": {}, "limit": 0, "collation": {}}`), 2},
		} {
			if n, _ := x.reply.Lookup("n").Int32OK(); n != x.n {
				t.Errorf("reply %v, expected n %d", x.reply, x.n)
			}
		}
		if code, _ := run(`{"insert": "c"}`, "odd", `{}`).Lookup("code").Int32OK(); code != 40415 {
			t.Errorf("code %d", code)
		}
	})
}

// TestARetryIsRecognisedByItsStatementNumbers sends a batch twice, the second time only its
// last statement.
func TestARetryIsRecognisedByItsStatementNumbers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{})
		s := New(c.Router, nil)
		const id = `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}, "txnNumber": 1, "$db": "db"`
		up := `{"q": {"_id": 1}, "u": {"$inc": {"v": 1}}, "upsert": true}`
		for _, body := range []string{
			`{"update": "c", "updates": [` + up + `, ` + up + `], ` + id + `}`,
			`{"update": "c", "updates": [` + up + `], "stmtIds": [1], ` + id + `}`,
			`{"update": "c", "updates": [` + up + `], "stmtId": 1, ` + id + `}`,
		} {
			if reply := s.Do(context.Background(), raw(t, body)); reply.Lookup("ok").Double() != 1 {
				t.Fatalf("%v", reply)
			}
		}
		reply := s.Do(context.Background(), raw(t, `{"find": "c", "$db": "db"}`))
		if v := reply.Lookup("cursor", "firstBatch", "0", "v").AsInt64(); v != 2 {
			t.Fatalf("%v", reply)
		}
		reply = s.Do(context.Background(), raw(t, `{"update": "c", "updates": [`+up+`], "stmtIds": [1, 2], `+id+`}`))
		if code := reply.Lookup("code").Int32(); code != 16 {
			t.Fatalf("%v", reply)
		}
	})
}

// TestNumbersComeInEveryType reads limits as clients of all languages send them.
func TestNumbersComeInEveryType(t *testing.T) {
	t.Parallel()
	for json, want := range map[string]int64{
		`5`: 5, `{"$numberLong": "5"}`: 5, `5.9`: 5, `{"$numberDecimal": "5"}`: 5, `{"$numberDecimal": "50E-1"}`: 5,
		`1e300`: 1<<63 - 1, `-1e300`: -1 << 63, `{"$numberDouble": "NaN"}`: 0,
	} {
		got, ok := asInt(raw(t, `{"n": `+json+`}`).Lookup("n"))
		if !ok || got != want {
			t.Errorf("%s: %d, %v", json, got, ok)
		}
	}
	for _, json := range []string{`"5"`, `true`, `{"$numberDecimal": "NaN"}`, `{"$numberDecimal": "1E+90"}`} {
		if got, ok := asInt(raw(t, `{"n": `+json+`}`).Lookup("n")); ok {
			t.Errorf("%s: %d", json, got)
		}
	}
}

// broken fails after its first batch.
type broken struct{ docRows }

func (b *broken) Batch(ctx context.Context, docs, size int) ([]bson.Raw, error) {
	if len(b.docs) == 0 {
		return nil, fmt.Errorf("broken")
	}
	return b.docRows.Batch(ctx, 1, size)
}
func (b *broken) Done() bool { return false }

// TestAPipelineEndsWithItsInput: a failure of the input is the pipeline's, and what fits
// into one batch is bounded by its size.
func TestAPipelineEndsWithItsInput(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	stages := func(json string) *document.Pipeline {
		p, err := document.ParsePipeline(raw(t, `{"p": `+json+`}`).Lookup("p"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	docs := []bson.Raw{raw(t, `{"_id": 1}`), raw(t, `{"_id": 2}`), raw(t, `{"_id": 3}`)}
	r := pipe(ctx, stages(`[{"$project": {"_id": 1}}]`), &broken{docRows{docs}}, document.RunLimits{}, nil)
	if _, err := r.Batch(ctx, 10, 1<<20); err == nil || !r.Done() {
		t.Fatalf("error %v, done %v", err, r.Done())
	}
	r.Close(ctx)
	r = pipe(ctx, stages(`[{"$match": {"_id": {"$gt": 0}}}]`), &docRows{docs}, document.RunLimits{}, nil)
	for i, want := range []int{2, 1} {
		if out, err := r.Batch(ctx, 0, 2*len(docs[0])); err != nil || len(out) != want || r.Done() != (i == 1) {
			t.Fatalf("batch %d: %d documents, done %v, %v", i, len(out), r.Done(), err)
		}
	}
	r.Close(ctx)
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := routertest.New(t, routertest.Options{Held: -1})
		s := New(c.Router, nil)
		list := s.List()
		for _, cmd := range list {
			if cmd.Help == "" || cmd.Run == nil {
				t.Errorf("%s: no help or nothing to run", cmd.Name)
			}
		}
		reply := s.Do(context.Background(), raw(t, `{"listCommands": 1}`))
		es, err := reply.Lookup("commands").Document().Elements()
		if err != nil || len(es) != len(list) {
			t.Fatalf("%d commands of %d, %v", len(es), len(list), err)
		}
	})
}
