package writer

import (
	"cmp"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Carried are the retry entries of a collection that gets another key, on their way to the
// chunks that it will have. Not safe for concurrent use.
//
// An entry is found by the row key of its operation, and what that is under the new key cannot
// be told: an insert's document may have been changed or deleted since. Therefore every chunk
// gets every entry, and an operation that is sent again meets its outcome wherever it goes. Of
// an attempt that several chunks know, the one that carried it out counts.
//
// Of a session only the newest number is kept: who sends n+1 is done with n. Parts of writes
// of many documents tell of ranges of the old key and are left out, since no client sends such
// a write again by itself. An intent names its row by the old key; it is kept for the attempt
// that it names, with a row that any collection may have: whoever goes there finds the
// outcome, which every chunk has, or finds that nothing was done and chooses anew. What was
// done without an intent, because the old key was in its filter, gets one: under the new key
// its home is asked first, and a document that it deleted is not there to be chosen.
type Carried struct {
	collection manifest.CollectionID
	row        []byte // of a document without fields
	sessions   map[[32]byte]*carriedSession
	bytes      int64
}

type carriedSession struct {
	txn     int64
	entries []segment.RetryEntry
}

// carriedMax bounds the entries that are kept, in bytes; beyond it those are forgotten that
// expire first, as in a chunk's own memory.
const carriedMax = 64 << 20

// NewCarried begins without entries, for the collection of that id under key.
func NewCarried(id manifest.CollectionID, key shardkey.Pattern) *Carried {
	row, _ := key.AppendKey(nil, emptyDocument) // there is no array in it
	return &Carried{collection: id, row: row, sessions: make(map[[32]byte]*carriedSession)}
}

// Add takes an entry of a chunk of the old key. It keeps the entry's bytes.
func (c *Carried) Add(e segment.RetryEntry) {
	switch kindOf(&e) {
	case progressed, arrived, 0:
		return
	case intended:
		e.Reply = c.intent(e.Reply)
	}
	e.Collection, e.Key, e.Span = c.collection, nil, shardkey.Range{}
	s := c.sessions[e.Op.Session]
	switch {
	case s == nil || s.txn < e.Op.Txn:
		c.forget(s)
		s = &carriedSession{txn: e.Op.Txn}
		c.sessions[e.Op.Session] = s
	case s.txn > e.Op.Txn:
		return
	}
	i, known := slices.BinarySearchFunc(s.entries, e, compareCarried)
	switch {
	case !known:
		s.entries = slices.Insert(s.entries, i, e)
		c.bytes += e.MemoryBytes()
	case weight(&e) > weight(&s.entries[i]):
		c.bytes += e.MemoryBytes() - s.entries[i].MemoryBytes()
		s.entries[i] = e
	}
	for c.bytes > carriedMax && len(c.sessions) > 1 {
		c.dropFirst()
	}
}

// intent is the reply of an intent with another row.
func (c *Carried) intent(reply []byte) []byte {
	doc := bson.Raw(reply[1:])
	if _, err := doc.LookupErr(intentRow); err != nil {
		return reply
	}
	start, out := bsoncore.AppendDocumentStart([]byte{byte(intended)})
	for rest := []byte(doc[4:]); ; {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			break
		}
		if e.Key() == intentRow {
			out = bsoncore.AppendBinaryElement(out, intentRow, bson.TypeBinaryGeneric, c.row)
		} else {
			out = append(out, e...)
		}
		rest = next
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

// lacking are intents for what was done, or found nothing to do, and no intent tells.
func (c *Carried) lacking(s *carriedSession) (add []segment.RetryEntry) {
	for i := range s.entries {
		e := &s.entries[i]
		if k := kindOf(e); k != answered && k != errored {
			continue
		}
		named := slices.ContainsFunc(s.entries, func(x segment.RetryEntry) bool {
			return kindOf(&x) == intended && x.Op.Stmt == e.Op.Stmt && x.Op.Attempt >= e.Op.Attempt
		})
		if !named {
			n := *e
			doc := bsoncore.NewDocumentBuilder().AppendInt32(intentAttempt, e.Op.Attempt)
			if weight(e) == 2 {
				doc.AppendBinary(intentRow, bson.TypeBinaryGeneric, c.row)
			}
			n.Reply = intentReply(bson.Raw(doc.Build()))
			add = append(add, n)
		}
	}
	return add
}

// The fields of an intent's document (rpc.Intent) that say for which attempt it is, for which
// row, and which try sent the statement without one.
const (
	intentAttempt = "a"
	intentRow     = "t"
	intentDirect  = "d"
)

func compareCarried(a, b segment.RetryEntry) int {
	class := func(e *segment.RetryEntry) int {
		if kindOf(e) == intended {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Op.Stmt, b.Op.Stmt), cmp.Compare(class(&a), class(&b)), cmp.Compare(a.Op.Attempt, b.Op.Attempt))
}

func (c *Carried) forget(s *carriedSession) {
	if s == nil {
		return
	}
	for i := range s.entries {
		c.bytes -= s.entries[i].MemoryBytes()
	}
}

// dropFirst forgets the tenth of the sessions that expire first.
func (c *Carried) dropFirst() {
	type silent struct {
		id    [32]byte
		until int64
	}
	var list []silent
	for id, s := range c.sessions {
		until := int64(0)
		for i := range s.entries {
			until = max(until, s.entries[i].ExpiresAt)
		}
		list = append(list, silent{id, until})
	}
	slices.SortFunc(list, func(a, b silent) int { return cmp.Or(cmp.Compare(a.until, b.until), slices.Compare(a.id[:], b.id[:])) })
	for _, x := range list[:len(list)/10+1] {
		c.forget(c.sessions[x.id])
		delete(c.sessions, x.id)
	}
}

// Entries are what every chunk of the new key gets.
func (c *Carried) Entries() []segment.RetryEntry {
	var all []segment.RetryEntry
	for _, s := range c.sessions {
		all = append(all, s.entries...)
		all = append(all, c.lacking(s)...)
	}
	slices.SortFunc(all, func(a, b segment.RetryEntry) int {
		return cmp.Or(slices.Compare(a.Op.Session[:], b.Op.Session[:]), compareCarried(a, b))
	})
	return all
}
