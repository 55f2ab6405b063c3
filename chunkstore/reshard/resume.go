package reshard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// A job notes now and then how far it is, in a segment of its own that nothing refers to (save),
// and says in its record which one that is. Whoever takes the job over when its process is silent
// goes on from there: the job stays what it was, with the segments that it stored, which nobody
// collects as long as it is registered; the record gets the number of the next process. A process
// that was taken for dead and goes on finds another number there, and every commit of a job asks
// for its own: what it does comes to nothing. Names of segments are handed out by the record, so
// that no two processes ever use the same.
//
// What is noted:
//
//	read    the sorted runs so far, and the old key up to which rows are in them
//	write   all runs, the new chunks so far, and the new key up to which rows are in these
//	verify  all new chunks, how many of them were read back, and what was found there
//	base    the new chunks, all found right
//
// and always the old chunks as the root showed them in the beginning, from which the rounds lead
// to the present. Rounds are not noted; the next process makes them again, as one. While a job is
// registered no segment that the root once referred to is deleted.

// stage is how far a save is.
type stage string

const (
	stageRead   stage = "read"
	stageWrite  stage = "write"
	stageVerify stage = "verify"
	stageBase   stage = "base"
)

// shown is what a snapshot shows of the collection: its chunks, in key order.
type shown []*manifest.Chunk

func (w *work) shownBy(s *manifest.State) (list shown) {
	for c := range s.Chunks(w.coll.ID) {
		list = append(list, c)
	}
	return list
}

// of is the chunk that contains a key.
func (l shown) of(key []byte) *manifest.Chunk {
	i, found := slices.BinarySearchFunc(l, key, func(c *manifest.Chunk, key []byte) int { return bytes.Compare(c.Range.Min, key) })
	if !found {
		i--
	}
	return l[i]
}

// save is what a job noted of itself.
type save struct {
	stage       stage
	base        shown
	rows, bytes int64 // read of the old chunks
	source      content
	chunkBytes  int64
	at          []byte // the last key that is in the runs, or in the new chunks
	runs        []manifest.SegmentRef
	chunks      []*chunk // the new ones; the last is in the making until the base is there
	size        int64    // bytes of that one
	verified    int      // of them
	found       content  // in these
}

// goalHash tells goals apart.
func (w *work) goalHash() []byte {
	h := sha256.New()
	g := &w.goal
	fmt.Fprintf(h, "%x %t %t %t %d %d", g.Key.BSON(), g.Unique, g.Unsharded, g.Only, g.Parts, g.Keep)
	for _, p := range g.Points {
		fmt.Fprintf(h, " %x", p.Key)
	}
	return h.Sum(nil)
}

// note stores how far the job is, if the last time is long enough ago, and says so in the record.
func (w *work) note(ctx context.Context, make func() save) error {
	if w.Host.Mono() < w.noted+w.Settings.SaveEvery {
		return nil
	}
	k := make()
	k.rows, k.bytes, k.source, k.chunkBytes = w.progress.Seen().Rows, w.progress.Seen().Bytes, w.source, w.Settings.ChunkBytes
	if w.baseAt == 0 {
		n, err := w.keepRows(ctx, encodeShown(w.seen))
		if err != nil {
			return err
		}
		w.baseAt = n
	}
	docs := []bson.Raw{k.state(w.baseAt, w.goalHash())}
	docs = append(docs, encodeShown(runsAsChunk(k.runs))...)
	docs = append(docs, encodeShown(imageAsChunks(k.chunks))...)
	n, err := w.keepRows(ctx, docs)
	if err != nil {
		return err
	}
	w.noted, w.saved = w.Host.Mono(), n
	return w.renew(ctx)
}

// keepRows stores documents as the rows of a segment, and returns its number.
func (w *work) keepRows(ctx context.Context, docs []bson.Raw) (int64, error) {
	o := &output{w: w}
	if err := o.begin(ctx); err != nil {
		return 0, err
	}
	n := w.named - 1
	for i, d := range docs {
		r := segment.Row{Collection: w.id, Key: binary.BigEndian.AppendUint64([]byte{0x10}, uint64(i)), Seq: 1, Doc: d}
		if err := o.segment.Add(r); err != nil {
			return 0, err
		}
	}
	if err := o.segment.Cut(segment.Part{Collection: w.id, Clip: shardkey.Range{}}); err != nil {
		return 0, err
	}
	_, err := o.store(ctx)
	return n, err
}

// The first document of a save.
func (k *save) state(base int64, goal []byte) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().
		AppendString("stage", string(k.stage)).AppendInt64("base", base).AppendBinary("goal", bson.TypeBinaryGeneric, goal).
		AppendInt64("rows", k.rows).AppendInt64("bytes", k.bytes).AppendInt64("chunkBytes", k.chunkBytes).
		AppendDocument("source", k.source.encode()).
		AppendBinary("at", bson.TypeBinaryGeneric, k.at).AppendInt64("size", k.size).
		AppendInt64("runs", int64(len(k.runs))).AppendInt64("chunks", int64(len(k.chunks))).
		AppendInt64("verified", int64(k.verified)).AppendDocument("found", k.found.encode()).
		Build())
}

func (c content) encode() bsoncore.Document {
	return bsoncore.NewDocumentBuilder().AppendInt64("rows", c.rows).AppendInt64("low", int64(c.low)).AppendInt64("high", int64(c.high)).Build()
}

func decodeContent(state bson.Raw, field string) content {
	d, _ := state.Lookup(field).DocumentOK()
	return content{rows: number(d, "rows"), low: uint64(number(d, "low")), high: uint64(number(d, "high"))}
}

func encodeShown(list shown) (docs []bson.Raw) {
	for len(list) > 0 {
		n := min(len(list), manifest.PageChunksMax)
		docs = append(docs, bson.Raw(bsoncore.NewDocumentBuilder().AppendBinary("chunks", bson.TypeBinaryGeneric, manifest.EncodeChunks(list[:n])).Build()))
		list = list[n:]
	}
	return docs
}

// runsAsChunk are runs as the references of one chunk.
func runsAsChunk(runs []manifest.SegmentRef) shown {
	if len(runs) == 0 {
		return nil
	}
	return shown{{Refs: runs}}
}

func imageAsChunks(chunks []*chunk) (list shown) {
	for _, c := range chunks {
		list = append(list, &manifest.Chunk{
			Range: c.span(), MinBSON: c.low.BSON, Rows: c.added.RowsDelta, Bytes: c.added.BytesDelta, Refs: c.added.Refs,
		})
	}
	return list
}

// load reads what the job of a record noted. Errors: NotFound when it noted nothing, or it was for
// another goal; Corrupt; those of the bucket.
func (w *work) load(ctx context.Context, r manifest.Record) (k save, base int64, err error) {
	n := number(r.Body, savedField)
	if n == 0 {
		return k, 0, fmt.Errorf("a job that noted nothing: %w", errkind.NotFound)
	}
	docs, err := w.rowsOf(ctx, r, n)
	if err != nil {
		return k, 0, err
	}
	bad := func(what string) (save, int64, error) {
		return k, 0, fmt.Errorf("what a job noted: %w: %s", errkind.Corrupt, what)
	}
	if len(docs) == 0 {
		return bad("no rows")
	}
	state := docs[0]
	if _, goal, ok := state.Lookup("goal").BinaryOK(); !ok || !bytes.Equal(goal, w.goalHash()) {
		return k, 0, fmt.Errorf("a job with another goal: %w", errkind.NotFound)
	}
	name, _ := state.Lookup("stage").StringValueOK()
	_, at, _ := state.Lookup("at").BinaryOK()
	k = save{
		stage: stage(name), rows: number(state, "rows"), bytes: number(state, "bytes"), chunkBytes: number(state, "chunkBytes"), size: number(state, "size"),
		source: decodeContent(state, "source"), verified: int(number(state, "verified")), found: decodeContent(state, "found"),
	}
	if len(at) > 0 {
		k.at = at
	}
	list, err := decodeShown(w.id, docs[1:])
	if err != nil {
		return k, 0, err
	}
	runs, chunks := number(state, "runs"), number(state, "chunks")
	if runs > 0 {
		if len(list) == 0 || int64(len(list[0].Refs)) != runs {
			return bad("runs are missing")
		}
		k.runs, list = list[0].Refs, list[1:]
	}
	if int64(len(list)) != chunks || int64(k.verified) > chunks {
		return bad("chunks are missing")
	}
	for _, c := range list {
		k.chunks = append(k.chunks, &chunk{
			low: shardkey.Bound{Key: c.Range.Min, BSON: c.MinBSON}, max: c.Range.Max,
			added: manifest.Added{Refs: c.Refs, RowsDelta: c.Rows, BytesDelta: c.Bytes},
		})
	}
	base = number(state, "base")
	if docs, err = w.rowsOf(ctx, r, base); err == nil {
		k.base, err = decodeShown(builtFrom(r.Body), docs)
	}
	if err == nil && len(k.base) == 0 {
		return bad("the old chunks are missing")
	}
	return k, base, err
}

// builtFrom is the collection that a record is about.
func builtFrom(body bson.Raw) manifest.CollectionID {
	return manifest.CollectionID(number(body, "collection"))
}

// rowsOf reads the documents of a segment that keepRows stored.
func (w *work) rowsOf(ctx context.Context, r manifest.Record, n int64) (docs []bson.Raw, err error) {
	id := manifest.ReshardSegment(r.ReshardJob(), n)
	o, err := w.Bucket.Get(ctx, id.Key(), bucket.GetOptions{})
	if err != nil {
		return nil, err
	}
	err = segment.Walk(id, o.Body, func(r segment.Row) error {
		docs = append(docs, bytes.Clone(r.Doc))
		return nil
	}, func(segment.RetryEntry) error { return nil })
	return docs, err
}

func decodeShown(id manifest.CollectionID, docs []bson.Raw) (list shown, err error) {
	for _, d := range docs {
		_, body, _ := d.Lookup("chunks").BinaryOK()
		chunks, err := manifest.DecodeChunks(id, body)
		if err != nil {
			return nil, err
		}
		list = append(list, chunks...)
	}
	return list, nil
}

// inherit takes over the job of a record that nobody renews, if it noted how far it is; false: it
// did not, and is to be expelled. Errors: Conflict, when another was faster; those of the bucket.
func (w *work) inherit(ctx context.Context, s *manifest.State, r manifest.Record, c *manifest.Collection) (bool, error) {
	job, ok := s.Job(r.ReshardJob())
	if !ok || w.restores != nil || builtFrom(r.Body) != c.ID || job.Builds() == 0 {
		return false, nil
	}
	w.id = job.Builds()
	k, base, err := w.load(ctx, r)
	switch {
	case errors.Is(err, errkind.NotFound):
		return false, nil
	case errors.Is(err, errkind.Corrupt), errors.Is(err, errkind.Invalid):
		w.Log.Warn("what a job noted cannot be read; it begins anew", "ns", w.progress.ns, "cause", err)
		return false, nil
	case err != nil:
		return false, err
	}
	w.job, w.saved, w.baseAt = job.ID, number(r.Body, savedField), base
	w.named = number(r.Body, "segments")
	w.reserved = w.named + reserveAhead
	w.progress.change(func(p *Seen) {
		p.Collection, p.TakenOver, p.Rows, p.Bytes = c.ID, number(r.Body, runField)+1, k.rows, k.bytes
	})
	put := manifest.PutRecord{Record: w.record(), IfBody: r.Body}
	if _, err := w.Root.Commit(ctx, w.edit(put)); err != nil {
		w.named, w.reserved, w.saved, w.baseAt = 0, reserveAhead, 0, 0
		w.progress.change(func(p *Seen) { p.TakenOver, p.Rows, p.Bytes = 0, 0, 0 })
		return false, err
	}
	for i := range min(w.named, manifest.DroppedEntries) {
		w.uploaded = append(w.uploaded, manifest.SegmentRef{Segment: manifest.ReshardSegment(w.job, i)})
	}
	w.inherited, w.source, w.noted = &k, k.source, w.Host.Mono()
	w.Settings.ChunkBytes = k.chunkBytes
	w.Log.Info("a job whose process is silent goes on here", "ns", w.progress.ns, "job", fmt.Sprintf("%x", w.job), "stage", k.stage, "rows", k.rows)
	return true, nil
}

// mine reports whether a record is this process's: of its job, and not taken over by another.
func (w *work) mine(r manifest.Record) bool {
	return r.ReshardJob() == w.job && number(r.Body, runField) == w.progress.Seen().TakenOver
}
