package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Request is one command as it came, validated.
type Request struct {
	// Command is the name of the first field of Body.
	Command string
	// DB is $db; "admin" for a legacy hello.
	DB string
	// Body is the command document, without the sequences.
	Body bson.Raw
	// Sequences are the documents that came beside Body, each under the name of the field
	// they stand for ("documents", "updates", "deletes", "ops", "nsInfo"). No name occurs
	// twice, nor as a field of Body.
	Sequences []Sequence
	// Legacy: the request came as OP_QUERY, and its reply goes as OP_REPLY.
	Legacy bool
	// MoreToCome: the client waits for no reply.
	MoreToCome bool
}

// Sequence is a list of documents of a request.
type Sequence struct {
	ID   string
	Docs []bson.Raw
}

// Sequence is the documents under this name, nil when there are none.
func (r *Request) Sequence(id string) []bson.Raw {
	for _, s := range r.Sequences {
		if s.ID == id {
			return s.Docs
		}
	}
	return nil
}

const (
	opReply      = 1
	opQuery      = 2004
	opCompressed = 2012
	opMsg        = 2013
)

const (
	flagChecksum   = 1 << 0
	flagMoreToCome = 1 << 1
	flagsRequired  = 0xFFFF // the unknown ones among these must be refused, others ignored
)

// Limits of the documents in a message, so that what is stored has 16 MiB and 100 levels at
// most, however it came: inline ({insert, documents: [doc]}) 2 levels deeper, as a statement
// ({q, u: doc}) 1 level deeper.
const (
	maxStored    = 16 << 20
	maxWrapped   = maxStored + 16<<10
	depthStored  = 100
	depthWrapped = 101
	depthBody    = 102
)

// refusal is why a message is not handled; fatal when the connection cannot go on.
type refusal struct {
	err   *mongoerr.Error
	fatal bool
}

func refuse(code mongoerr.Code, format string, args ...any) *refusal {
	return &refusal{err: mongoerr.New(code, format, args...)}
}

func fatal(code mongoerr.Code, format string, args ...any) *refusal {
	return &refusal{err: mongoerr.New(code, format, args...), fatal: true}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parser makes requests of messages. One per connection: it uses the same request, the same
// slices and the same strings again and again.
type parser struct {
	o     *Options
	r     Request
	names map[string]string
	head  [headerSize]byte // scratch: on the stack it would escape
}

// parse reads what follows the header. The request is there in any case, for how to answer.
// Requires: reset since the last message.
func (p *parser) parse(h header, b []byte) (*Request, *refusal) {
	if h.opcode == opQuery {
		p.r.Legacy = true
		return &p.r, p.query(b)
	}
	return &p.r, p.msg(h, b)
}

// keptDocs is how many slots of a sequence are kept for the next message.
const keptDocs = 4096

// reset lets go of the last message, which must not outlive its buffer.
func (p *parser) reset() {
	sequences := p.r.Sequences[:0]
	for i, s := range p.r.Sequences {
		if clear(s.Docs); cap(s.Docs) > keptDocs {
			p.r.Sequences[i].Docs = nil
		}
	}
	p.r = Request{Sequences: sequences}
}

// msg reads an OP_MSG.
func (p *parser) msg(h header, b []byte) *refusal {
	if len(b) < 4 {
		return fatal(mongoerr.FailedToParse, "OP_MSG without flags")
	}
	flags := binary.LittleEndian.Uint32(b)
	p.r.MoreToCome = flags&flagMoreToCome != 0
	if unknown := flags & flagsRequired &^ (flagChecksum | flagMoreToCome); unknown != 0 {
		return fatal(40429, "Message contains illegal flags value: 0x%x", unknown)
	}
	sections := b[4:]
	if flags&flagChecksum != 0 {
		if len(sections) < 4 {
			return fatal(mongoerr.FailedToParse, "OP_MSG too short for its checksum")
		}
		sections = sections[:len(sections)-4]
		if !p.checksumMatches(h, b) {
			return fatal(mongoerr.FailedToParse, "OP_MSG checksum does not match its contents")
		}
	}
	if refused := p.sections(sections); refused != nil {
		return refused
	}
	return p.body()
}

// checksumMatches compares the last 4 bytes of b with the crc32c of everything before.
func (p *parser) checksumMatches(h header, b []byte) bool {
	for i, v := range [...]int32{h.length, h.requestID, h.responseTo, h.opcode} {
		binary.LittleEndian.PutUint32(p.head[4*i:], uint32(v))
	}
	sum := crc32.Update(crc32.Checksum(p.head[:], castagnoli), castagnoli, b[:len(b)-4])
	return sum == binary.LittleEndian.Uint32(b[len(b)-4:])
}

// sections cuts the message up, without a look into its documents.
func (p *parser) sections(b []byte) *refusal {
	docs := 0
	for len(b) > 0 {
		kind := b[0]
		size, ok := lengthOf(b[1:])
		if !ok {
			return fatal(mongoerr.FailedToParse, "a section of OP_MSG does not end with the message")
		}
		content := b[1 : 1+size]
		b = b[1+size:]
		switch {
		case kind == 0 && p.r.Body != nil:
			return fatal(40430, "Multiple body sections in message")
		case kind == 0:
			p.r.Body = content[:size:size]
		case kind == 1:
			n, refused := p.sequence(content[4:], p.o.MaxBatch-docs)
			if refused != nil {
				return refused
			}
			docs += n
		default:
			return fatal(40432, "Unknown section kind: %d", kind)
		}
	}
	if p.r.Body == nil {
		return fatal(40587, "OP_MSG messages must have a body")
	}
	return nil
}

// lengthOf is the length that b begins with, which counts itself; false when b is shorter.
func lengthOf(b []byte) (int, bool) {
	if len(b) < 5 { // the shortest of all: a document without fields
		return 0, false
	}
	n := binary.LittleEndian.Uint32(b)
	return int(n), n >= 5 && uint64(n) <= uint64(len(b))
}

// sequence adds a list of at most limit documents: its name and what follows.
func (p *parser) sequence(b []byte, limit int) (n int, _ *refusal) {
	end := bytes.IndexByte(b, 0)
	if end < 0 || end > maxName {
		return 0, fatal(mongoerr.FailedToParse, "a document sequence has no name of at most %d bytes", maxName)
	}
	id := p.intern(b[:end])
	for _, s := range p.r.Sequences {
		if s.ID == id {
			return 0, fatal(40431, "Duplicate document sequence: %s", id)
		}
	}
	if len(p.r.Sequences) == maxSequences {
		return 0, fatal(mongoerr.FailedToParse, "more than %d document sequences", maxSequences)
	}
	slot := p.slot(id)
	for b = b[end+1:]; len(b) > 0; {
		size, ok := lengthOf(b)
		if !ok {
			return 0, fatal(mongoerr.FailedToParse, "a document of sequence %s does not end within it", id)
		}
		if len(slot.Docs) == limit {
			return 0, refuse(mongoerr.InvalidLength, "Write batch sizes must be between 1 and %d", p.o.MaxBatch)
		}
		slot.Docs = append(slot.Docs, b[:size:size])
		b = b[size:]
	}
	return len(slot.Docs), nil
}

// slot adds an empty sequence, with the memory of an earlier one.
func (p *parser) slot(id string) *Sequence {
	n := len(p.r.Sequences)
	if n == cap(p.r.Sequences) {
		p.r.Sequences = append(p.r.Sequences, Sequence{})
	}
	p.r.Sequences = p.r.Sequences[:n+1]
	slot := &p.r.Sequences[n]
	slot.ID, slot.Docs = id, slot.Docs[:0]
	return slot
}

// maxSequences is more than any command has.
const maxSequences = 8

// body validates all documents, and finds the command and its database.
func (p *parser) body() *refusal {
	if refused := p.validate(p.r.Body, maxWrapped, depthBody); refused != nil {
		return refused
	}
	for _, s := range p.r.Sequences {
		bytes, depth := maxWrapped, depthWrapped
		if s.ID == "documents" {
			bytes, depth = maxStored, depthStored
		}
		for _, doc := range s.Docs {
			if refused := p.validate(doc, bytes, depth); refused != nil {
				return refused
			}
		}
	}
	return p.fields()
}

func (p *parser) validate(doc []byte, maxBytes, maxDepth int) *refusal {
	err := p.o.Validate(doc, maxBytes, maxDepth)
	if err == nil {
		return nil
	}
	var e *mongoerr.Error
	if !errors.As(err, &e) {
		e = mongoerr.New(mongoerr.InvalidBSON, "%v", err)
	}
	return &refusal{err: e}
}

// fields walks once over the fields of the body, which is valid.
func (p *parser) fields() *refusal {
	first := true
	for rest := p.r.Body[4:]; len(rest) > 1; first = false {
		e, after, ok := bsoncore.ReadElement(rest)
		if !ok {
			return refuse(mongoerr.InvalidBSON, "the command document is malformed")
		}
		rest = after
		name := e.KeyBytes()
		if first && len(name) > maxName {
			return refuse(mongoerr.CommandNotFound, "no such command: '%s...'", name[:maxName])
		}
		if first {
			p.r.Command = p.intern(name)
		}
		if string(name) == "$db" && !p.r.Legacy {
			v := e.Value()
			if v.Type != bsoncore.TypeString {
				return refuse(mongoerr.TypeMismatch, "$db must be a string")
			}
			db := v.Data[4 : len(v.Data)-1]
			if len(db) > maxName {
				return refuse(mongoerr.InvalidNamespace, "database name '%s...' is too long", db[:maxName])
			}
			p.r.DB = p.intern(db)
		}
		for _, s := range p.r.Sequences {
			if string(name) == s.ID {
				return refuse(40433, "Duplicate field between body and document sequence %s", s.ID)
			}
		}
	}
	switch {
	case first:
		return refuse(mongoerr.FailedToParse, "the command document is empty: its first field names the command")
	case p.r.DB == "":
		return refuse(40571, "OP_MSG requests require a $db argument")
	}
	return nil
}

const (
	// maxName bounds the names of commands, databases and sequences, in bytes: they are
	// copied, and go to the log.
	maxName = 64
	// internMost bounds the names that a connection remembers.
	internMost = 64
)

// intern is b as a string that outlives the message, made once per name.
func (p *parser) intern(b []byte) string {
	if s, ok := p.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if p.names == nil {
		p.names = map[string]string{}
	}
	if len(p.names) < internMost {
		p.names[s] = s
	}
	return s
}
