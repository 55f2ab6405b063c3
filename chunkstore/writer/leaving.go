package writer

import (
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Retry entries tell of rows that are not their chunk's: where a statement went, what a document
// became that went to another chunk, how far a write of many has come. As long as all of it is in
// one location that is nobody's business. A chunk that goes to another one takes along what is
// said of its own rows.

// leaving is an entry as it goes along with a chunk of range r; nil: nothing is left of it. Who
// sends the operation again finds the same outcome:
//
//	an intent     for a row elsewhere becomes that of a try which went somewhere; whoever comes
//	              has every chunk refuse it first, or say that it was done
//	an answer     keeps its document if that is a row of r
//	an error      keeps its code
//	a part        of a write of many is cut to r, and keeps its counts if its last row is there
//
// Errors: Corrupt.
func leaving(e segment.RetryEntry, coll *manifest.Collection, r shardkey.Range) (*segment.RetryEntry, error) {
	switch kindOf(&e) {
	case intended:
		if _, row := Told(&e); row != nil && !r.Contains(row) {
			e.Reply = intentReply(sentSomewhere(e.Op.Attempt))
		}
	case answered:
		res, err := parseAnswer(e.Reply)
		if err != nil {
			return nil, err
		}
		if res.Value != nil && !rowIn(coll, res.Value, r) {
			res.Value = nil
			e.Reply = answerReply(&res)
		}
	case errored:
		res, err := parseErrored(e.Reply)
		if err != nil {
			return nil, err
		}
		res.Err = mongoerr.New(res.Err.Code, "%s in %s: the message was left behind when the chunk went to another location", res.Err.Code, coll.Namespace())
		e.Reply = erroredReply(&res)
	case progressed:
		p, err := parseProgress(e.Reply)
		if err != nil || !p.touches(r) {
			return nil, err
		}
		p.cutTo(r)
		e.Reply, e.Span = p.reply(), p.span()
	}
	return &e, nil
}

// rowIn reports whether a document is one of a range: a projection without the key is not known
// to be.
func rowIn(coll *manifest.Collection, doc bson.Raw, r shardkey.Range) bool {
	if len(coll.Key.Missing(doc)) > 0 {
		return false
	}
	key, err := coll.Key.AppendKey(nil, doc)
	return err == nil && r.Contains(key)
}

// nobodysTry names a try that is nobody's: those of routers are odd.
const nobodysTry = 2

// sentSomewhere is the intent of a statement that was sent to a chunk without a key.
func sentSomewhere(attempt int32) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32(intentAttempt, attempt).AppendInt64(intentDirect, nobodysTry).Build())
}

// cutTo leaves of a part what it says of r, which it touches. The counts belong to its last row.
func (p *progress) cutTo(r shardkey.Range) {
	done, ok := p.done.Intersect(r)
	if !r.Contains(p.last) {
		p.last, p.n, p.modified = someKey(done), 0, 0
	}
	if !ok {
		done = shardkey.Range{Min: p.last, Max: p.last}
	}
	p.done = done
}

// partingRetries are the entries of a chunk as they go along to another location.
func (s *shard) partingRetries(list []segment.RetryEntry, c *manifest.Chunk) (along []segment.RetryEntry, err error) {
	coll := s.w.root.State().Collection(c.Collection)
	if coll == nil {
		return nil, fmt.Errorf("collection %d: %w: it was dropped", c.Collection, errkind.StaleVersion)
	}
	if broken(retriesTell) {
		return list, nil
	}
	for _, e := range list {
		left, err := leaving(e, coll, c.Range)
		if err != nil {
			return nil, err
		}
		if left != nil {
			along = append(along, *left)
		}
	}
	return along, nil
}
