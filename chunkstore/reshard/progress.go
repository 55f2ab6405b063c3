package reshard

import (
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Progress is how far a job is. Safe for concurrent use.
type Progress struct {
	host  host.Host
	ns    string
	start time.Duration // Mono

	mu   sync.Mutex
	seen Seen
}

// Seen is a look at a Progress.
type Seen struct {
	Namespace string
	Key       shardkey.Pattern
	// Collection is which one had the name when it began; 0: it has not.
	Collection manifest.CollectionID
	// Op is the number by which it can be ended; 0: none.
	Op int64
	// Again is the command that began it, for who takes it up when its process has died; nil:
	// nobody does.
	Again bson.Raw
	// Phase is register, read, write, verify, catchUp, switch, done or failed.
	Phase string
	// Rows and Bytes were read from the old chunks, of about these totals; Round is how often
	// it has caught up since.
	Rows, RowsTotal   int64
	Bytes, BytesTotal int64
	Round             int
	// TakenOver is how many processes died over the job, each of which left its work to the next.
	TakenOver int64
	// Running is since when, and Left a guess of how much longer; 0: none.
	Running, Left time.Duration
	// Stopped is how long the last switch kept writes and reads waiting.
	Stopped time.Duration
	// Hurried: somebody wants the switch as soon as it can be made.
	Hurried bool
	// Documents and Content are what the collection holds, as it was verified before the
	// switch; Content is a hash of all documents with their keys, "" before.
	Documents int64
	Content   string
}

// NewProgress begins one.
func NewProgress(h host.Host, ns string, key shardkey.Pattern, op int64, again bson.Raw) *Progress {
	if len(again) > againMax {
		again = nil
	}
	return &Progress{host: h, ns: ns, start: h.Mono(), seen: Seen{Namespace: ns, Key: key, Op: op, Again: again, Phase: "register"}}
}

// againMax bounds the command that a record carries: the record is in the root.
const againMax = 16 << 10

// Hurry has the job switch after the round that it is in, however long that was.
func (p *Progress) Hurry() { p.change(func(s *Seen) { s.Hurried = true }) }

func (p *Progress) hurried() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.Hurried
}

// Seen is how far the job is now.
func (p *Progress) Seen() Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.seen
	s.Running = p.host.Mono() - p.start
	if s.Phase == "read" && s.Bytes > 0 && s.BytesTotal > s.Bytes {
		// What was read is to be written as well, and that takes about as long.
		s.Left = time.Duration(float64(s.Running) * (2*float64(s.BytesTotal)/float64(s.Bytes) - 1))
	}
	return s
}

func (p *Progress) enter(phase string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Phase = phase
}

func (p *Progress) change(f func(*Seen)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.seen)
}

// body is the record of the job: what other processes show of it, and what ends it when it is
// dead (manifest.EndResharding).
func (p *Progress) body(job manifest.JobID, segments, saved, nowMillis int64) bson.Raw {
	s := p.Seen()
	b := bsoncore.NewDocumentBuilder().
		AppendBinary("job", bson.TypeBinaryGeneric, job[:]).
		AppendInt64("segments", segments).
		AppendInt64(savedField, saved).
		AppendInt64(runField, s.TakenOver).
		AppendInt64("collection", int64(s.Collection)).
		AppendDocument("key", bsoncore.Document(s.Key.BSON())).
		AppendString("phase", s.Phase).
		AppendInt64("rows", s.Rows).AppendInt64("rowsTotal", s.RowsTotal).
		AppendInt64("bytes", s.Bytes).AppendInt64("bytesTotal", s.BytesTotal).
		AppendInt32("round", int32(s.Round)).
		AppendInt64("secsRunning", int64(s.Running/time.Second)).
		AppendInt64("secsLeft", int64(s.Left/time.Second)).
		AppendInt64("op", s.Op).
		AppendBoolean("hurry", s.Hurried).
		AppendDateTime("at", nowMillis)
	if s.Again != nil {
		b.AppendDocument("again", bsoncore.Document(s.Again))
	}
	return bson.Raw(b.Build())
}

// The fields of a record that say which process has the job, counted from 0, and which of its
// segments tells how far it is (save); 0: none, since that is never the first.
const (
	runField   = "takenOver"
	savedField = "saved"
)

func number(body bson.Raw, field string) int64 {
	n, _ := body.Lookup(field).AsInt64OK()
	return n
}

func hurry(body bson.Raw) bool {
	yes, _ := body.Lookup("hurry").BooleanOK()
	return yes
}

// Recorded is what a record tells of the job of a namespace, as it was when it was written.
func Recorded(ns string, body bson.Raw) (Seen, error) {
	number := func(field string) int64 { return number(body, field) }
	spec, _ := body.Lookup("key").DocumentOK()
	key, err := shardkey.ParsePattern(spec)
	if err != nil {
		return Seen{}, fmt.Errorf("the record of the resharding of %s: %w: key: %w", ns, errkind.Corrupt, err)
	}
	phase, _ := body.Lookup("phase").StringValueOK()
	again, _ := body.Lookup("again").DocumentOK()
	return Seen{
		Namespace: ns, Key: key, Collection: manifest.CollectionID(number("collection")), Again: again, Op: number("op"), Phase: phase, Hurried: hurry(body), Round: int(number("round")), TakenOver: number(runField),
		Rows: number("rows"), RowsTotal: number("rowsTotal"), Bytes: number("bytes"), BytesTotal: number("bytesTotal"),
		Running: time.Duration(number("secsRunning")) * time.Second, Left: time.Duration(number("secsLeft")) * time.Second,
	}, nil
}

// Hasten is a change of the record of a job that runs elsewhere: it is to switch soon.
func Hasten(r manifest.Record) manifest.Change {
	was := r.Body
	start, doc := bsoncore.AppendDocumentStart(nil)
	elements, _ := r.Body.Elements()
	for _, e := range elements {
		if e.Key() != "hurry" {
			doc = append(doc, e...)
		}
	}
	doc, _ = bsoncore.AppendDocumentEnd(bsoncore.AppendBooleanElement(doc, "hurry", true), start)
	r.Body = doc
	return manifest.PutRecord{Record: r, IfBody: was}
}
