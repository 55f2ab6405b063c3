package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// seen is what a handler was given, copied.
type seen struct {
	Command, DB        string
	Body               string
	Sequences          map[string][]string
	Legacy, MoreToCome bool
}

func record(to *[]seen) Handler {
	return handlerFunc(func(_ context.Context, _ *Conn, m *Request) bson.Raw {
		s := seen{Command: m.Command, DB: m.DB, Body: m.Body.String(), Legacy: m.Legacy, MoreToCome: m.MoreToCome}
		for _, q := range m.Sequences {
			if s.Sequences == nil {
				s.Sequences = map[string][]string{}
			}
			for _, d := range m.Sequence(q.ID) {
				s.Sequences[q.ID] = append(s.Sequences[q.ID], d.String())
			}
		}
		*to = append(*to, s)
		return okReply
	})
}

func TestRequestsArriveAsSent(t *testing.T) {
	t.Parallel()
	one, two := bson.D{{Key: "_id", Value: int32(1)}}, bson.D{{Key: "_id", Value: int32(2)}}
	insert := command(bson.E{Key: "insert", Value: "c"})
	insertBody := `{"insert": "c","$db": "test"}`
	docs := map[string][]string{"documents": {`{"_id": {"$numberInt":"1"}}`, `{"_id": {"$numberInt":"2"}}`}}
	hello := bson.D{{Key: "hello", Value: int32(1)}}
	helloBody := `{"hello": {"$numberInt":"1"}}`
	for _, c := range []struct {
		name    string
		message []byte
		want    seen
	}{
		{"body alone", ping(), seen{Command: "ping", DB: "test", Body: `{"ping": {"$numberInt":"1"},"$db": "test"}`}},
		{"sequence after body", msg(1, 0, insert, sequence("documents", one, two)), seen{Command: "insert", DB: "test", Body: insertBody, Sequences: docs}},
		{"sequence before body", msg(1, 0, sequence("documents", one, two), insert), seen{Command: "insert", DB: "test", Body: insertBody, Sequences: docs}},
		{
			"two sequences", msg(1, 0, command(bson.E{Key: "bulkWrite", Value: int32(1)}), sequence("ops", one), sequence("nsInfo", two)),
			seen{Command: "bulkWrite", DB: "test", Body: `{"bulkWrite": {"$numberInt":"1"},"$db": "test"}`, Sequences: map[string][]string{
				"ops": {`{"_id": {"$numberInt":"1"}}`}, "nsInfo": {`{"_id": {"$numberInt":"2"}}`},
			}},
		},
		{"checksum", msg(1, flagChecksum, insert, sequence("documents", one, two)), seen{Command: "insert", DB: "test", Body: insertBody, Sequences: docs}},
		{"exhaust allowed", msg(1, 0x10000, insert), seen{Command: "insert", DB: "test", Body: insertBody}},
		{"unknown optional flag", msg(1, 1<<30, insert), seen{Command: "insert", DB: "test", Body: insertBody}},
		{"legacy hello", query("admin.$cmd", hello), seen{Command: "hello", DB: "admin", Body: helloBody, Legacy: true}},
		{"legacy isMaster", query("admin.$cmd", bson.D{{Key: "isMaster", Value: true}}), seen{Command: "isMaster", DB: "admin", Body: `{"isMaster": true}`, Legacy: true}},
		{
			"legacy hello with a read preference",
			query("admin.$cmd", bson.D{{Key: "$query", Value: hello}, {Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "primary"}}}}),
			seen{Command: "hello", DB: "admin", Body: helloBody, Legacy: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got []seen
			_, l := start(t, record(&got), options())
			conn := l.dial()
			defer conn.close()
			conn.send(t, c.message)
			h, doc := conn.receive(t)
			if diff := cmp.Diff([]seen{c.want}, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if asked := readHeader(c.message); h.responseTo != asked.requestID || !bytes.Equal(doc, okReply) || c.want.Legacy != (h.opcode == opReply) {
				t.Errorf("reply %+v %v", h, doc)
			}
		})
	}
}

func TestMoreToComeIsNotAnswered(t *testing.T) {
	t.Parallel()
	var got []seen
	_, l := start(t, record(&got), options())
	c := l.dial()
	defer c.close()
	c.send(t, msg(1, flagMoreToCome, command(bson.E{Key: "endSessions", Value: bson.A{}})))
	c.send(t, msg(2, 0, command(bson.E{Key: "ping", Value: 1})))
	if h, _ := c.receive(t); h.responseTo != 2 {
		t.Errorf("the first reply is to request %d", h.responseTo)
	}
	if len(got) != 2 || !got[0].MoreToCome || got[1].MoreToCome {
		t.Errorf("requests: %+v", got)
	}
}

func TestWrongMessagesAreRefused(t *testing.T) {
	t.Parallel()
	body := command(bson.E{Key: "ping", Value: 1})
	one := bson.D{{Key: "_id", Value: 1}}
	badChecksum := msg(1, flagChecksum, body)
	badChecksum[len(badChecksum)-1] ^= 1
	noDB := append([]byte{0}, toBSON(bson.D{{Key: "ping", Value: 1}})...)
	wrongDB := append([]byte{0}, toBSON(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: 5}})...)
	empty := append([]byte{0}, toBSON(bson.D{})...)
	badBSON := slices.Clone(body)
	badBSON[1+4] = 0x55 // no type
	overrun := sequence("documents", one)
	binary.LittleEndian.PutUint32(overrun[1:], uint32(len(overrun)))
	cutDoc := slices.Clone(sequence("documents", one))
	cutDoc[1+4+10]++ // the document is one byte longer than its sequence
	var nine [][]byte
	for i := range 9 {
		nine = append(nine, sequence(fmt.Sprint("s", i), one))
	}
	for _, c := range []struct {
		name    string
		message []byte
		code    int32
		text    string
		closes  bool
	}{
		{"no flags", frame(1, opMsg, []byte{0, 0}), 9, "without flags", true},
		{"unknown required flag", msg(1, 1<<5, body), 40429, "illegal flags value: 0x20", true},
		{"no room for the checksum", frame(1, opMsg, u32(flagChecksum), []byte{0, 0}), 9, "too short", true},
		{"wrong checksum", badChecksum, 9, "checksum", true},
		{"no section", msg(1, 0), 40587, "must have a body", true},
		{"only a sequence", msg(1, 0, sequence("documents", one)), 40587, "must have a body", true},
		{"two bodies", msg(1, 0, body, body), 40430, "Multiple body", true},
		{"section of another kind", msg(1, 0, body, append([]byte{2}, toBSON(one)...)), 40432, "section kind: 2", true},
		{"sequence twice", msg(1, 0, body, sequence("a", one), sequence("a", one)), 40431, "Duplicate document sequence: a", true},
		{"nine sequences", msg(1, 0, append(nine, body)...), 9, "more than 8", true},
		{"sequence beside a field of its name", msg(1, 0, body, sequence("ping", one)), 40433, "ping", false},
		{"sequence longer than the message", msg(1, 0, body, overrun), 9, "does not end", true},
		{"sequence without a name", msg(1, 0, body, []byte{1, 6, 0, 0, 0, 'a', 'b'}), 9, "no name", true},
		{"document longer than its sequence", msg(1, 0, cutDoc, body), 9, "does not end within", true},
		{"negative section length", msg(1, 0, body, []byte{1, 0xFF, 0xFF, 0xFF, 0xFF, 'a', 0}), 9, "does not end", true},
		{"body longer than the message", msg(1, 0, []byte{0, 200, 0, 0, 0, 0}), 9, "does not end", true},
		{"body of length 4", msg(1, 0, []byte{0, 4, 0, 0, 0, 0}), 9, "does not end", true},
		{"malformed body", msg(1, 0, badBSON), 22, "", false},
		{"malformed document", msg(1, 0, body, []byte{1, 11, 0, 0, 0, 'a', 0, 5, 0, 0, 0, 9}), 22, "", false},
		{"no $db", msg(1, 0, noDB), 40571, "$db", false},
		{"$db of another type", msg(1, 0, wrongDB), 14, "$db", false},
		{"empty command", msg(1, 0, empty), 9, "empty", false},
		{"endless command name", msg(1, 0, command(bson.E{Key: strings.Repeat("x", 65), Value: 1})), 59, "no such command: 'xxx", false},
		{"endless database name", msg(1, 0, append([]byte{0}, toBSON(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: strings.Repeat("x", 65)}})...)), 73, "too long", false},
		{"endless sequence name", msg(1, 0, body, sequence(strings.Repeat("x", 65), one)), 9, "no name", true},
		{"compressed", frame(1, opCompressed, u32(opMsg), u32(100), []byte{1}), 115, "OP_COMPRESSED", true},
		{"legacy find", query("test.c", bson.D{}), 9, "empty", false},
		{"legacy command", query("admin.$cmd", bson.D{{Key: "ping", Value: 1}}), 352, "Unsupported OP_QUERY command: ping on admin.$cmd", true},
		{"legacy hello elsewhere", query("test.$cmd", bson.D{{Key: "hello", Value: 1}}), 352, "hello on test.$cmd", true},
		{"legacy without flags", frame(1, opQuery, []byte{1}), 9, "without flags", true},
		{"legacy without a namespace", frame(1, opQuery, u32(0), []byte("admin")), 9, "cut short", true},
		{"legacy without a document", frame(1, opQuery, u32(0), []byte("admin.$cmd\x00"), u32(0), u32(0)), 9, "does not end", true},
		{"legacy with a malformed document", frame(1, opQuery, u32(0), []byte("admin.$cmd\x00"), u32(0), u32(0), []byte{6, 0, 0, 0, 9, 0}), 22, "", false},
		{"too long for a stranger", u32s(64<<10+1, 1, 0, opMsg), 16, "the most is 65536", true},
		{"too long at all", u32s(1<<31-1, 1, 0, opMsg), 16, "2147483647 bytes", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, l := start(t, answerOK, options())
			conn := l.dial()
			defer conn.close()
			conn.send(t, c.message)
			h, doc := conn.receive(t)
			ok, _ := doc.Lookup("ok").DoubleOK()
			if code(doc) != c.code || ok != 0 || !strings.Contains(doc.Lookup("errmsg").StringValue(), c.text) {
				t.Errorf("reply %v", doc)
			}
			if asked := readHeader(c.message); h.responseTo != asked.requestID || (h.opcode == opReply) != (asked.opcode == opQuery) {
				t.Errorf("reply header %+v", h)
			}
			if c.closes {
				conn.closed(t)
			} else if doc := conn.roundTrip(t, ping()); !bytes.Equal(doc, okReply) {
				t.Errorf("the next request is answered %v", doc)
			}
			if n := s.Stats().Panics; n != 0 {
				t.Errorf("%d panics", n)
			}
		})
	}
}

func u32s(values ...uint32) (b []byte) {
	for _, v := range values {
		b = append(b, u32(v)...)
	}
	return b
}

func TestWhatIsNotTheProtocolIsClosedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, message := range map[string][]byte{
		"length 0":        u32s(0, 1, 0, opMsg),
		"length 15":       u32s(15, 1, 0, opMsg),
		"negative length": u32s(1<<31, 1, 0, opMsg),
		"length -1":       u32s(1<<32-1, 1, 0, opMsg),
		"OP_INSERT":       frame(1, 2002, u32(0), []byte("a.b\x00")),
		"OP_REPLY":        frame(1, opReply, u32(0)),
		"opcode 0":        frame(1, 0),
		"TLS":             {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, l := start(t, answerOK, options())
			c := l.dial()
			defer c.close()
			go c.nc.Write(message)
			c.closed(t)
		})
	}
}

func TestBrowsersAreToldWhatThisIs(t *testing.T) {
	t.Parallel()
	_, l := start(t, answerOK, options())
	c := l.dial()
	defer c.close()
	go c.nc.Write([]byte("GET / HTTP/1.1\r\nHost: here\r\n\r\n"))
	b := make([]byte, len(browserAnswer))
	if n, _ := c.nc.Read(b); !strings.Contains(string(b[:n]), "mongosh") {
		t.Errorf("answer %q", b[:n])
	}
}

// The first bytes of a message alone, however many, do no harm.
func TestMessagesCutAtEveryByte(t *testing.T) {
	t.Parallel()
	s, l := start(t, answerOK, options())
	for _, whole := range [][]byte{
		msg(1, flagChecksum, command(bson.E{Key: "insert", Value: "c"}), sequence("documents", bson.D{{Key: "a", Value: "b"}})),
		query("admin.$cmd", bson.D{{Key: "hello", Value: 1}}),
	} {
		for n := range whole {
			c := l.dial()
			if n > 0 {
				c.send(t, whole[:n])
			}
			c.close()
			// The same bytes as a message of that length.
			if n >= headerSize {
				c = l.dial()
				cut := slices.Clone(whole[:n])
				binary.LittleEndian.PutUint32(cut, uint32(n))
				if doc := c.roundTrip(t, cut); code(doc) == 0 {
					t.Errorf("first %d bytes are answered %v", n, doc)
				}
				c.close()
			}
		}
	}
	if s := s.Stats(); s.Panics != 0 || s.Requests != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	o := options()
	o.MaxBatch = 5
	_, l := start(t, answerOK, o)
	c := l.dial()
	defer c.close()
	docs := func(n int) []any { return slices.Repeat([]any{bson.D{}}, n) }
	body := command(bson.E{Key: "insert", Value: "c"})
	if doc := c.roundTrip(t, msg(1, 0, body, sequence("a", docs(3)...), sequence("b", docs(2)...))); code(doc) != 0 {
		t.Errorf("5 documents: %v", doc)
	}
	if doc := c.roundTrip(t, msg(1, 0, body, sequence("a", docs(3)...), sequence("b", docs(3)...))); code(doc) != int32(mongoerr.InvalidLength) {
		t.Errorf("6 documents: %v", doc)
	}
}

// The validator gets the limits of the place where a document stands, and its error goes to
// the client with its code.
func TestDocumentsAreValidatedByTheirPlace(t *testing.T) {
	t.Parallel()
	var got []string
	o := options()
	o.Validate = func(doc []byte, maxBytes, maxDepth int) error {
		got = append(got, fmt.Sprintf("%d bytes, most %d, depth %d", len(doc), maxBytes, maxDepth))
		if len(got) == 3 {
			return mongoerr.New(mongoerr.Overflow, "the third")
		}
		return nil
	}
	_, l := start(t, answerOK, o)
	c := l.dial()
	defer c.close()
	doc := c.roundTrip(t, msg(1, 0, sequence("documents", bson.D{}), sequence("updates", bson.D{}), command(bson.E{Key: "x", Value: ""})))
	want := []string{"27 bytes, most 16793600, depth 102", "5 bytes, most 16777216, depth 100", "5 bytes, most 16793600, depth 101"}
	if diff := cmp.Diff(want, got); diff != "" || code(doc) != int32(mongoerr.Overflow) {
		t.Errorf("reply %v, validations (-want +got):\n%s", doc, diff)
	}
}

// A stored document may nest 100 deep, inline or in a sequence; and depth costs nothing.
func TestDepthIsTheSameHoweverADocumentComes(t *testing.T) {
	t.Parallel()
	_, l := start(t, answerOK, options())
	c := l.dial()
	defer c.close()
	c.roundTrip(t, msg(1, 0, command(bson.E{Key: "hello", Value: 1})))
	for depth, want := range map[int]mongoerr.Code{1: 0, 100: 0, 101: mongoerr.Overflow, 3000: mongoerr.Overflow} {
		doc := nested(depth)
		inline := command(bson.E{Key: "insert", Value: "c"}, bson.E{Key: "documents", Value: bson.A{doc}})
		for name, m := range map[string][]byte{
			"inline":   msg(1, 0, inline),
			"sequence": msg(1, 0, command(bson.E{Key: "insert", Value: "c"}), sequence("documents", doc)),
		} {
			if got := c.roundTrip(t, m); (code(got) == 0) != (want == 0) {
				t.Errorf("%s, %d levels: %v", name, depth, got)
			}
		}
	}
}

// nested is a document of that many levels.
func nested(levels int) bson.Raw {
	doc := toBSON(bson.D{})
	for range levels - 1 {
		doc = toBSON(bson.D{{Key: "a", Value: doc}})
	}
	return doc
}

func TestErrorReplyHasCodeNameInfoAndLabels(t *testing.T) {
	t.Parallel()
	e := mongoerr.New(mongoerr.DuplicateKey, "E11000 duplicate key")
	if got := ErrorReply(e).String(); got != `{"ok": {"$numberDouble":"0.0"},"errmsg": "E11000 duplicate key","code": {"$numberInt":"11000"},"codeName": "DuplicateKey"}` {
		t.Errorf("plain: %s", got)
	}
	e.Info = toBSON(bson.D{{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: int32(1)}}}})
	e.Labels = []string{"RetryableWriteError", "NoWritesPerformed"}
	if got := ErrorReply(e).String(); got != `{"ok": {"$numberDouble":"0.0"},"errmsg": "E11000 duplicate key","code": {"$numberInt":"11000"},"codeName": "DuplicateKey","keyPattern": {"_id": {"$numberInt":"1"}},"errorLabels": ["RetryableWriteError","NoWritesPerformed"]}` {
		t.Errorf("with everything: %s", got)
	}
}

// A connection makes no garbage for a message like the last one.
func TestParsingMakesNoGarbage(t *testing.T) {
	o := options().withDefaults()
	o.Validate = func([]byte, int, int) error { return nil }
	p := parser{o: &o}
	m := msg(1, flagChecksum, command(bson.E{Key: "insert", Value: "c"}), sequence("documents", bson.D{{Key: "a", Value: 1}}, bson.D{{Key: "a", Value: 2}}))
	h := readHeader(m)
	if n := testing.AllocsPerRun(100, func() {
		if _, refused := p.parse(h, m[headerSize:]); refused != nil {
			t.Fatal(refused.err)
		}
		p.reset()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range [][]byte{
		ping(), msg(1, flagChecksum|flagMoreToCome, command(bson.E{Key: "insert", Value: "c"}), sequence("documents", bson.D{})),
		query("admin.$cmd", bson.D{{Key: "$query", Value: bson.D{{Key: "hello", Value: 1}}}}),
	} {
		f.Add(m[12:], false)
	}
	o := options().withDefaults()
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		p := parser{o: &o}
		if len(b) < 4 {
			return
		}
		h := header{length: int32(len(b) + 12), opcode: int32(binary.LittleEndian.Uint32(b))}
		if b = slices.Clone(b[4:]); repair && len(b) >= 8 { // the checksum, which a fuzzer cannot guess
			b[0] |= flagChecksum
			whole := slices.Concat(u32s(uint32(h.length), 0, 0, uint32(h.opcode)), b[:len(b)-4])
			copy(b[len(b)-4:], u32(crc32Of(whole)))
		}
		defer p.reset()
		r, refused := p.parse(h, b)
		if refused != nil {
			if !isDocument(ErrorReply(refused.err)) {
				t.Fatal("the refusal is no document")
			}
			return
		}
		if r.Command == "" && !bytes.HasPrefix(r.Body[4:], []byte{r.Body[4], 0}) || r.DB == "" || h.opcode == opQuery && !isHello(r.Command) {
			t.Fatalf("accepted %+v", r)
		}
	})
}
