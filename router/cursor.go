package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Cursor is the result of a Find. Not safe for concurrent use. It must be closed unless
// Done reports true; a forgotten one is closed by its owners when it idles.
type Cursor struct {
	src     stream
	skip    int64
	left    int64 // of the limit, when limited
	limited bool
	// unread is a document that did not fit into the last batch.
	unread bson.Raw
}

// Batch takes the next documents: at most docs (0: no bound) and, from the second document
// on, at most size bytes in all. Fewer means that the cursor is at its end.
func (c *Cursor) Batch(ctx context.Context, docs, size int) ([]bson.Raw, error) {
	var out []bson.Raw
	for total := 0; docs <= 0 || len(out) < docs; {
		doc, err := c.Next(ctx, docs-len(out))
		if err != nil {
			return nil, err
		}
		if doc == nil {
			break
		}
		if total += len(doc); len(out) > 0 && total > size {
			c.unread = doc
			break
		}
		out = append(out, doc)
	}
	return out, nil
}

// Next is the next document, or nil at the end. want is how many the caller will take soon,
// 0 when it does not know.
func (c *Cursor) Next(ctx context.Context, want int) (bson.Raw, error) {
	if doc := c.unread; doc != nil {
		c.unread = nil
		return doc, nil
	}
	if c.limited && c.left == 0 {
		return nil, nil
	}
	for ; c.skip > 0; c.skip-- {
		if doc, err := c.src.next(ctx, int(min(c.skip, firstBatch))+want); doc == nil || err != nil {
			c.skip = 0
			return nil, err
		}
	}
	doc, err := c.src.next(ctx, want)
	if doc != nil {
		c.left--
	}
	return doc, err
}

// Done reports that no document follows, as far as that is known without asking a shard.
func (c *Cursor) Done() bool {
	return c.unread == nil && (c.limited && c.left == 0 || c.src.spent())
}

// Close frees what the cursor holds at the shards.
func (c *Cursor) Close(ctx context.Context) { c.src.close(ctx) }
