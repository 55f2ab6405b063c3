package manifest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Where a collection has SplitWithinKey, the documents of one shard-key value may be in several
// chunks: a bound between them is the key followed by an _id. What rests on a value being in one
// chunk is not to be had then: unique indexes other than of rows' own keys, and statements about
// one document of a value that go to a chunk without a choice. Nobody takes the switch back: a
// statement that is sent again would be routed by another rule than the first time.

// withinKeySince says since when, of a collection that got the switch while it was there.
const withinKeySince = "splitWithinKeySince"

// withinKeyWait is how long after the switch chunks are cut inside a value. A statement that went
// to the one chunk of its value without a choice may be sent again as long as its retry id is
// kept, half an hour, and must find it in the chunk that decides it; as much again is for clocks.
const withinKeyWait = time.Hour

// WithSplitWithinKey is c with the switch. Its options say since when; a new collection has
// nothing to wait for and gives zero.
func (c *Collection) WithSplitWithinKey(sinceMillis int64) Collection {
	n := *c
	if n.SplitWithinKey = true; sinceMillis != 0 {
		n.Options = withOption(withoutOption(n.Options, withinKeySince), bsoncore.AppendDateTimeElement(nil, withinKeySince, sinceMillis))
	}
	return n
}

// CutWithinKeyFrom is from when on (Unix milliseconds) chunks are cut inside a value; false when
// they never are: the switch is off, or the key has the _id, so that a value is one document.
func (c *Collection) CutWithinKeyFrom() (millis int64, ever bool) {
	if !c.SplitWithinKey || c.Key.HasID() {
		return 0, false
	}
	since, ok := c.option(withinKeySince).DateTimeOK()
	if !ok {
		return 0, true
	}
	return since + withinKeyWait.Milliseconds(), true
}

// CutsWithinKey reports whether chunks are cut inside a value now.
func (c *Collection) CutsWithinKey(nowMillis int64) bool {
	from, ever := c.CutWithinKeyFrom()
	return ever && nowMillis >= from
}

// WithinKey reports whether a bound of the collection lies inside a value: it has the _id besides.
func (c *Collection) WithinKey(bound bson.Raw) bool {
	n := 0
	for rest := []byte(bound[min(4, len(bound)):]); ; n++ {
		_, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			return n > len(c.Key.Fields)
		}
		rest = next
	}
}

// Bound reads a bound of chunks as users write it: one of the shard key or, where chunks may be
// cut inside a value, one of the shard key and _id. It answers as shardkey's Pattern.Bound.
func (c *Collection) Bound(doc bson.Raw) (key []byte, full bson.Raw, err error) {
	if c.SplitWithinKey && c.WithinKey(doc) {
		return c.Key.RowPattern().Bound(doc)
	}
	return c.Key.Bound(doc)
}

// Bounds reads a pair of bounds, and refuses one in which no key can lie: Invalid.
func (c *Collection) Bounds(from, to bson.Raw) (r shardkey.Range, err error) {
	if !c.SplitWithinKey {
		r, _, _, err = c.Key.Range(from, to)
		return r, err
	}
	var low, high bson.Raw
	if r.Min, low, err = c.Bound(from); err != nil {
		return shardkey.Range{}, err
	}
	if r.Max, high, err = c.Bound(to); err != nil {
		return shardkey.Range{}, err
	}
	if len(r.Min) == 0 && !bytes.Equal(low, c.Key.MinBSON()) || len(r.Max) == 0 && !bytes.Equal(high, c.Key.MaxBSON()) || r.Empty() {
		return shardkey.Range{}, fmt.Errorf("range of %v: min %v is not below max %v: %w", c.Key, low, high, errkind.Invalid)
	}
	return r, nil
}

// IndivisibleRemedy is what makes a chunk of c divisible whose documents have one shard-key value,
// as a part of a sentence.
func (c *Collection) IndivisibleRemedy() string {
	const finer = "refineCollectionShardKey with one more field makes it divisible"
	if c.SplitWithinKey || c.Key.HasID() {
		return finer
	}
	return fmt.Sprintf("%s, or db.adminCommand({configureCollectionBalancing: %q, splitWithinKey: true}) lets a value span several chunks", finer, c.Namespace())
}
