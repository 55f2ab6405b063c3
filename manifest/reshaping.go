package manifest

import (
	"encoding/hex"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// reshapingOption marks a collection that is getting another key; its value is a nonce.
const reshapingOption = "granaryReshaping"

// Reshaping reports whether the collection is getting another key at the moment. An owner
// that sees it takes no writes of it, so that once every owner has flushed under such a
// root, what the root shows is all there is. Whoever set the mark commits the new key or
// takes the mark back; a mark that stays is taken back by any owner, by a commit, which
// makes the commit of the new key conflict.
func (c *Collection) Reshaping() bool {
	_, err := c.Options.LookupErr(reshapingOption)
	return len(c.Options) > 0 && err == nil
}

// WithReshaping is the collection with a mark of its own, in place of any other.
func (c *Collection) WithReshaping(nonce [16]byte) Collection {
	marked := c.WithoutReshaping()
	marked.Options = withOption(marked.Options, bsoncore.AppendStringElement(nil, reshapingOption, hex.EncodeToString(nonce[:])))
	return marked
}

// WithoutReshaping is the collection with its options as their user gave them.
func (c *Collection) WithoutReshaping() Collection {
	plain := *c
	plain.Options = withoutOption(c.Options, reshapingOption)
	return plain
}

// undoOption tells how a collection that got another key can get the one before back.
const undoOption = "granaryUndo"

// Undo is where a collection is as it was before it got its key, and how to tell whether it was
// written since: every row that came has a seq above MaxSeq, and a change of several chunks at
// once, or one without rows, raises the DataVersion.
type Undo struct {
	Pin         [16]byte
	Version     Version // of the pin
	Until       int64   // unix seconds: when the pin ends
	MaxSeq      Seq     // of each of its chunks, at the switch
	DataVersion DataVersion
}

// Undo is how the collection gets back the key that it had; false: it is not known. Whether the
// pin still stands is another question.
func (c *Collection) Undo() (u Undo, ok bool) {
	d, ok := c.option(undoOption).DocumentOK()
	if !ok {
		return u, false
	}
	_, pin, isPin := d.Lookup("pin").BinaryOK()
	version, hasVersion := d.Lookup("version").Int64OK()
	seq, hasSeq := d.Lookup("maxSeq").Int64OK()
	data, hasData := d.Lookup("dataVersion").Int64OK()
	u.Until, ok = d.Lookup("until").Int64OK()
	if copy(u.Pin[:], pin) != len(u.Pin) || !isPin || !hasVersion || !hasSeq || !hasData || !ok {
		return Undo{}, false
	}
	u.Version, u.MaxSeq, u.DataVersion = Version(version), Seq(seq), DataVersion(data)
	return u, true
}

// WithUndo is the collection with that way back, in place of any other. Requires: numbers below
// 2^63, as any that counts what happened is.
func (c *Collection) WithUndo(u Undo) Collection {
	n := c.WithoutUndo()
	if u.MaxSeq > math.MaxInt64 || u.Version > math.MaxInt64 || u.DataVersion > math.MaxInt64 {
		return n
	}
	d := bsoncore.NewDocumentBuilder().
		AppendBinary("pin", bson.TypeBinaryGeneric, u.Pin[:]).
		AppendInt64("version", int64(u.Version)).
		AppendInt64("until", u.Until).
		AppendInt64("maxSeq", int64(u.MaxSeq)).
		AppendInt64("dataVersion", int64(u.DataVersion)).Build()
	n.Options = withOption(n.Options, bsoncore.AppendDocumentElement(nil, undoOption, d))
	return n
}

// WithoutUndo is the collection without a way back.
func (c *Collection) WithoutUndo() Collection {
	plain := *c
	plain.Options = withoutOption(c.Options, undoOption)
	return plain
}

// UserOptions are the options as their user gave them.
func (c *Collection) UserOptions() bson.Raw {
	return withoutOption(withoutOption(c.Options, reshapingOption), undoOption)
}

// Unwritten reports whether no row of the collection has changed in s since it switched.
func (u Undo) Unwritten(s *State, c *Collection) bool {
	if c.DataVersion != u.DataVersion {
		return false
	}
	for k := range s.Chunks(c.ID) {
		if k.MaxSeq != u.MaxSeq {
			return false
		}
	}
	return true
}
