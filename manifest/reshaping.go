package manifest

import (
	"encoding/hex"

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
