package manifest

import (
	"cmp"
	"fmt"
	"slices"
)

func searchToken(tokens []Token, app, batch string) (int, bool) {
	return slices.BinarySearchFunc(tokens, app, func(t Token, _ string) int {
		return cmp.Or(cmp.Compare(t.App, app), cmp.Compare(t.Batch, batch))
	})
}

func (t Token) subject() string { return t.App + "/" + t.Batch }

// decide writes a token that must be undecided.
func (b *builder) decide(verb string, t Token) error {
	i, ok := searchToken(b.s.tokens, t.App, t.Batch)
	if ok {
		old := b.s.tokens[i]
		if !old.Committed && !t.Committed {
			return nil // aborted twice
		}
		return conflict(verb, t.subject(), "token was decided at version %d (committed: %v), expected undecided", old.Version, old.Committed)
	}
	t.Version = b.s.version
	b.s.tokens = inserted(b.s.tokens, i, t)
	return nil
}

func (x Batch) apply(b *builder) error {
	const verb = "batch"
	if !x.Token.Committed {
		return invalid(verb, x.Token.subject(), "its token says aborted: use DecideToken")
	}
	if err := b.decide(verb, x.Token); err != nil {
		return err
	}
	touched := map[CollectionID]int{}
	seen := map[ChunkID]bool{}
	holders := make([]ShardID, len(x.Chunks)) // any of them may have made the segments for all
	for i := range x.Chunks {
		holders[i] = x.Chunks[i].Shard
	}
	for _, bc := range x.Chunks {
		if seen[bc.At.ID] {
			return invalid(verb, x.Token.subject(), "chunk %d is named twice", bc.At.ID)
		}
		seen[bc.At.ID] = true
		touched[bc.At.Collection]++
		if err := b.batchChunk(verb+" "+x.Token.subject(), bc, holders); err != nil {
			return err
		}
	}
	return b.raiseDataVersions(touched)
}

// batchChunk adds one chunk's part of a batch. A live owner holds the keys and has chosen
// the seq; on a free shard nobody holds them, so the seq must be above all others.
func (b *builder) batchChunk(verb string, bc BatchChunk, holders []ShardID) error {
	c, err := b.chunk(verb, bc.At)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("chunk %d", c.ID)
	if c.Shard != bc.Shard {
		return conflict(verb, subject, "owner is %s, expected %s", c.Shard, bc.Shard)
	}
	h, err := b.shardAt(verb+" shard", bc.Shard, bc.Epoch)
	if err != nil {
		return err
	}
	if bc.Seq == 0 {
		return invalid(verb, subject, "no Seq: it is the owner's answer to prepare")
	}
	if h.Status == ShardFree && bc.Seq <= c.MaxSeq {
		return conflict(verb, subject, "maxSeq is %d, not below the batch's %d", c.MaxSeq, bc.Seq)
	}
	added := bc.Added
	added.Refs = slices.Clone(added.Refs)
	for i := range added.Refs {
		added.Refs[i].FixedSeq = bc.Seq
	}
	added.MaxSeq = max(added.MaxSeq, bc.Seq)
	n := *c
	if err := b.add(verb, &n, added, holders...); err != nil {
		return err
	}
	b.replace(&n)
	return nil
}

// raiseDataVersions raises the data version of each collection of which several chunks
// changed: a reader must not mix before and after.
func (b *builder) raiseDataVersions(touched map[CollectionID]int) error {
	list := slices.Clone(b.s.collections)
	for i, c := range list {
		if touched[c.ID] > 1 {
			n := *c
			n.DataVersion++
			list[i] = &n
		}
	}
	b.setCollections(list)
	return nil
}

func (r RaiseDataVersion) apply(b *builder) error {
	c := b.s.Collection(r.Collection)
	if c == nil {
		return conflict("raise data version", fmt.Sprintf("collection %d", r.Collection), "it was dropped")
	}
	if c.DataVersion > 0 {
		return nil
	}
	return b.raiseDataVersions(map[CollectionID]int{c.ID: 2})
}

func (d DirectCommit) apply(b *builder) error {
	const verb = "direct commit"
	subject := fmt.Sprintf("chunk %d", d.Chunk.ID)
	if _, err := b.freeAt(verb+" on shard", d.Shard, d.Epoch); err != nil {
		return err
	}
	c, err := b.chunk(verb, d.Chunk)
	if err != nil {
		return err
	}
	if c.Shard != d.Shard {
		return conflict(verb, subject, "owner is %s, expected %s", c.Shard, d.Shard)
	}
	if c.MaxSeq != d.MaxSeq {
		return conflict(verb, subject, "maxSeq is %d, expected %d", c.MaxSeq, d.MaxSeq)
	}
	for i := range d.Added.Refs {
		r := &d.Added.Refs[i]
		if low := cmp.Or(r.FixedSeq, r.MinSeq); low <= d.MaxSeq {
			return invalid(verb, subject, "%s has seq %d, expected above %d", r.Segment, low, d.MaxSeq)
		}
	}
	n := *c
	if err := b.add(verb, &n, d.Added); err != nil {
		return err
	}
	b.replace(&n)
	return nil
}

func (d DecideToken) apply(b *builder) error {
	if d.Token.Committed {
		return invalid("abort batch", d.Token.subject(), "its token says committed: only a Batch commits")
	}
	return b.decide("abort batch", d.Token)
}

func (x ExpireTokens) apply(b *builder) error {
	b.s.tokens = slices.DeleteFunc(slices.Clone(b.s.tokens), func(t Token) bool {
		return t.ExpiresAt != 0 && t.ExpiresAt < x.Now
	})
	return nil
}
