package reshard

import (
	"sync"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Progress is how far a job is. Safe for concurrent use.
type Progress struct {
	host  host.Host
	ns    string
	key   shardkey.Pattern
	start time.Duration // Mono

	mu   sync.Mutex
	seen Seen
}

// Seen is a look at a Progress.
type Seen struct {
	Namespace string
	Key       shardkey.Pattern
	// Phase is register, read, write, catchUp, switch, done or failed.
	Phase string
	// Rows and Bytes were read from the old chunks, of about these totals; Round is how often
	// it has caught up since.
	Rows, RowsTotal   int64
	Bytes, BytesTotal int64
	Round             int
	// Running is since when, and Left a guess of how much longer; 0: none.
	Running, Left time.Duration
	// Stopped is how long the last switch kept writes and reads waiting.
	Stopped time.Duration
}

// NewProgress begins one.
func NewProgress(h host.Host, ns string, key shardkey.Pattern) *Progress {
	return &Progress{host: h, ns: ns, key: key, start: h.Mono(), seen: Seen{Namespace: ns, Key: key}}
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

// body is the record of the job: what other processes show of it.
func (p *Progress) body(job manifest.JobID, nowMillis int64) bson.Raw {
	s := p.Seen()
	return bson.Raw(bsoncore.NewDocumentBuilder().
		AppendBinary("job", bson.TypeBinaryGeneric, job[:]).
		AppendDocument("key", bsoncore.Document(s.Key.BSON())).
		AppendString("phase", s.Phase).
		AppendInt64("rows", s.Rows).AppendInt64("rowsTotal", s.RowsTotal).
		AppendInt64("bytes", s.Bytes).AppendInt64("bytesTotal", s.BytesTotal).
		AppendInt32("round", int32(s.Round)).
		AppendInt64("secsRunning", int64(s.Running/time.Second)).
		AppendDateTime("at", nowMillis).Build())
}
