package manifest

// create puts the collection back. Its chunks get new ids, since what others know of the old
// ones is void; shard, floor, seqs and references are those of the pin.
func (r *Restored) create(b *builder, c Collection) error {
	const verb = "restore collection"
	switch _, pinned := searchPin(b.s.pins, r.Pin); {
	case !pinned:
		return conflict(verb, c.Namespace(), "no pin %x: what it kept may be deleted", r.Pin)
	case r.ID == 0 || r.ID >= b.s.nextCollection || b.s.Collection(r.ID) != nil:
		return invalid(verb, c.Namespace(), "id %d was never given out, or is in use", r.ID)
	}
	c.ID = r.ID
	chunks := make([]NewChunk, len(r.Chunks))
	for i, k := range r.Chunks {
		chunks[i] = NewChunk{
			Min: Bound{Key: k.Range.Min, BSON: k.MinBSON}, Max: Bound{Key: k.Range.Max, BSON: k.MaxBSON}, Shard: k.Shard, ManualUntil: k.ManualUntil,
		}
	}
	if err := b.create(verb, c, chunks); err != nil {
		return err
	}
	for i, k := range b.tables[c.ID].pages[0].chunks { // its own, and on one page until the Edit ends
		was := r.Chunks[i]
		k.Refs, k.MaxSeq, k.Rows, k.RowsEstimated, k.Bytes = was.Refs, was.MaxSeq, was.Rows, was.RowsEstimated, was.Bytes
		k.Flags, k.Indivisible = was.Flags, was.Indivisible
		if b.s.Shard(k.Shard).Floor.Less(was.OwnFloor) {
			k.OwnFloor = was.OwnFloor
		}
		if err := b.add(verb+" "+c.Namespace(), k, Added{Refs: r.Retries}, ""); err != nil {
			return err
		}
	}
	return nil
}
