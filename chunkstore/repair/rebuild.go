package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// epochsAhead is how many epochs are sealed beyond those that anything tells of: a claim that
// the lost root had, of a holder that has logged nothing yet. A claim waits for its seals and
// is one commit, and what is lost is a minute of them at most.
const epochsAhead = 8

// segmentBytes bounds one segment of a fold.
const segmentBytes = 64 << 20

// holder is who the root says holds the shards until a writer claims them.
const holder = "granary repair"

// rebuild ends all logs, folds what no takeover would bring back, and publishes a new root.
func (w *work) rebuild(ctx context.Context) error {
	w.tell("ending the logs")
	logs, err := w.listLogs(ctx)
	if err != nil {
		return err
	}
	ended, err := w.fence(ctx, logs)
	if err != nil {
		return err
	}
	w.tell("reading the logs again, to their ends")
	rows := &fold{work: w, chunks: map[manifest.ChunkID]*folded{}, ended: ended}
	again, err := w.listLogs(ctx)
	if err != nil {
		return err
	}
	f, err := w.walk(ctx, again, nil)
	if err != nil {
		return err
	}
	if len(f.holes) > len(w.report.Lost)+len(w.report.Needless) && !w.o.AcceptLoss {
		return ErrLoss // more is lost meanwhile
	}
	rows.want = f.fold
	if len(f.fold) > 0 {
		w.tell(fmt.Sprintf("folding %d chunks", len(f.fold)))
		if _, err := w.walk(ctx, again, rows.add); err != nil {
			return err
		}
	}
	chunks, err := rows.store(ctx)
	if err != nil {
		return err
	}
	return w.publish(ctx, f, ended, chunks)
}

// fence seals every epoch that a process may be appending to, and returns the ends of the
// logs.
func (w *work) fence(ctx context.Context, logs map[manifest.ShardID]*shardLog) (map[manifest.ShardID]manifest.EndedLog, error) {
	ended := make(map[manifest.ShardID]manifest.EndedLog)
	for _, id := range slices.Sorted(maps.Keys(logs)) {
		log := logs[id]
		last := log.last() + epochsAhead
		x := manifest.EndedLog{Shard: id, Last: last}
		for e := log.first(); e <= last; e++ {
			end, err := w.seal(ctx, log, e)
			if err != nil {
				return nil, err
			}
			x.End = manifest.Position{Epoch: e, Next: end}
		}
		ended[id] = x
	}
	return ended, nil
}

// seal ends one epoch, behind everything in it: behind a hole as well, since a process that was
// alive after the object was lost goes on behind what it knows that it wrote.
func (w *work) seal(ctx context.Context, log *shardLog, e manifest.Epoch) (end uint64, err error) {
	id, from := log.shard.ID, log.from(e)
	if there := log.epochs[e]; len(there) > 0 {
		last := there[len(there)-1]
		o, err := log.bucket.Get(ctx, manifest.WALKey(id, e, last), bucket.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("repair: read %s: %w", manifest.WALKey(id, e, last), err)
		}
		if h, _, err := wal.Decode(o.Body); err == nil && h.Kind == wal.KindSeal {
			return last, nil
		}
		from = last + 1
	}
	end, _, err = wal.Seal(ctx, log.bucket, w.Host, w.kept.ClusterID(), id, e, from, log.last()+epochsAhead+1)
	if err != nil {
		return 0, fmt.Errorf("repair: %w", err)
	}
	return end, nil
}

// publish makes the new root and puts it in its place.
func (w *work) publish(ctx context.Context, f *found, ended map[manifest.ShardID]manifest.EndedLog, chunks []manifest.FoldedChunk) error {
	w.tell("writing the root")
	x := manifest.Recovery{
		Collection: f.newest, Folded: chunks, Holder: holder, LeaseMillis: w.o.LeaseMillis, Millis: w.Host.Wall().UnixMilli(),
	}
	var err error
	if x.Seen, err = w.seen(ctx); err != nil {
		return err
	}
	if x.Gone, err = w.gonePins(ctx); err != nil {
		return err
	}
	for _, h := range f.holes {
		if e, ok := ended[h.shard]; ok {
			e.Drained = true
			ended[h.shard] = e
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ended)) {
		x.Logs = append(x.Logs, ended[id])
	}
	next, err := manifest.Recover(w.kept, x, w.Host.ID16(), w.Host.ID16())
	if err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	if err := manifest.PutRecovered(ctx, bucket.NewCell(w.Bucket), w.places, w.Host, next, w.tag); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	w.report.Version, w.report.Folded = next.Version(), len(chunks)
	return nil
}

// gonePins are those of the kept root whose copies are not there.
func (w *work) gonePins(ctx context.Context) (gone [][16]byte, err error) {
	for _, p := range w.kept.Pins() {
		_, err := w.Bucket.Head(ctx, manifest.PinKey(p.ID))
		switch {
		case errors.Is(err, errkind.NotFound):
			gone = append(gone, p.ID)
		case err != nil:
			return nil, fmt.Errorf("repair: pin %q: %w", p.Name, err)
		}
	}
	return gone, nil
}

// seen is the highest root version that an object's name tells of.
func (w *work) seen(ctx context.Context) (v manifest.Version, err error) {
	err = objects(ctx, w.Bucket, manifest.HistoryPrefix, func(a bucket.Attrs) error {
		if copied, err := manifest.ParseHistoryKey(a.Key); err == nil {
			v = max(v, copied)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	err = w.everywhere(func(b bucket.Bucket) error {
		return objects(ctx, b, manifest.PagePrefix, func(a bucket.Attrs) error {
			if base, ok := manifest.PageBase(a.Key); ok {
				v = max(v, base+1)
			}
			return nil
		})
	})
	return v, err
}

// fold gathers the newest versions of rows, and the retry ids, of the chunks that are wanted.
// It holds them in memory: as much as logs may have above the floors.
type fold struct {
	*work
	want   map[manifest.ChunkID]*manifest.Chunk
	ended  map[manifest.ShardID]manifest.EndedLog
	chunks map[manifest.ChunkID]*folded
}

type folded struct {
	chunk   *manifest.Chunk
	rows    map[string]segment.Row
	retries []segment.RetryEntry
}

func (f *fold) add(c *manifest.Chunk, r wal.Record) error {
	if f.want[c.ID] == nil {
		return nil
	}
	x := f.chunks[c.ID]
	if x == nil {
		x = &folded{chunk: c, rows: map[string]segment.Row{}}
		f.chunks[c.ID] = x
	}
	if r.Retry != nil {
		e, err := writer.StoredRetry(*r.Retry)
		if err != nil {
			return err
		}
		x.retries = append(x.retries, e)
	}
	if r.Op == wal.RetryOnly {
		return nil
	}
	if was, ok := x.rows[string(r.Key)]; !ok || was.Seq < r.Seq {
		x.rows[string(r.Key)] = segment.Row{Collection: r.Collection, Key: r.Key, Seq: r.Seq, Delete: r.Op == wal.Delete, Doc: r.Doc}
	}
	return nil
}

// store uploads the segments, and returns what each wanted chunk gets; one that had no records
// gets a floor only.
func (f *fold) store(ctx context.Context) (list []manifest.FoldedChunk, err error) {
	for _, id := range slices.Sorted(maps.Keys(f.want)) {
		c := f.want[id]
		x := manifest.FoldedChunk{At: c.At()}
		if rows := f.chunks[id]; rows != nil {
			if x.Added, err = f.upload(ctx, rows); err != nil {
				return nil, err
			}
		}
		list = append(list, x)
	}
	return list, nil
}

func (f *fold) upload(ctx context.Context, x *folded) (added manifest.Added, err error) {
	at := f.kept.LocationOf(x.chunk.Shard)
	b, err := f.at(at)
	if err != nil {
		return added, err
	}
	added.Unsure = true // whether a row replaces one in a segment was not looked up
	keys := slices.Sorted(maps.Keys(x.rows))
	for first := true; first || len(keys) > 0; first = false {
		id := manifest.SegmentID{
			Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: x.chunk.Shard, Epoch: f.ended[x.chunk.Shard].Epoch()},
			Random:  f.Host.ID16(),
		}
		sw := segment.NewWriter(id, nil)
		if first {
			for _, e := range x.retries {
				if err := sw.AddRetry(e); err != nil {
					return added, fmt.Errorf("repair: %w", err)
				}
			}
		}
		for len(keys) > 0 && sw.Size() < segmentBytes {
			row := x.rows[keys[0]]
			if err := sw.Add(row); err != nil {
				return added, fmt.Errorf("repair: %w", err)
			}
			if !row.Delete {
				added.RowsDelta++
			}
			keys = keys[1:]
		}
		if err := sw.Cut(segment.Part{Collection: x.chunk.Collection, Clip: x.chunk.Range}); err != nil {
			return added, fmt.Errorf("repair: %w", err)
		}
		body, _, err := sw.Finish()
		if err != nil {
			return added, fmt.Errorf("repair: %w", err)
		}
		if _, err := b.Put(ctx, id.Key(), body, bucket.Condition{}); err != nil {
			return added, fmt.Errorf("repair: write %s: %w", id, err)
		}
		for _, ref := range sw.Refs() {
			if ref.Location = at; ref.Rows > 0 || ref.RetryUntil > 0 {
				added.Refs = append(added.Refs, ref)
				added.BytesDelta += int64(ref.Bytes)
			}
		}
	}
	return added, nil
}
