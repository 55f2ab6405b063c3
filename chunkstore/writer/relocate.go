package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// A move to a shard in another location takes the rows along. A reference may show a part of
// a segment only, and nothing but that part may come to the other place: so rows are written
// anew there, clipped, as a compaction would:
//
//	register    a job, at the chunks: nobody else rewrites their segments meanwhile
//	copy        what the root shows, while the chunks serve; then what came since, until
//	            that is little
//	move        as always, but that the rest of the rows is flushed over there: one change of
//	            the root replaces all references by the copies, changes the owner, and ends the
//	            job
//
// Before that commit nothing happened. A process that dies leaves a job, which the next move of
// the chunk ends, or a compactor, and after that segments at the destination that nothing refers to.

const (
	// relocateRounds bounds how often what came since is copied while the chunk serves.
	relocateRounds = 8
	// relocateRest is how much, as stored, may be left to be copied while requests wait.
	relocateRest = 4 << 20
	// relocateRate bounds keys and documents that are copied in a second.
	relocateRate = 32 << 20
	// relocateGoodbye bounds the commit that ends the job of a move that came to nothing.
	relocateGoodbye = 5 * time.Second
)

// relocation is one move to another location.
type relocation struct {
	s     *shard
	job   manifest.JobID
	to    manifest.ShardID
	at    manifest.LocationID
	store *reader.Store // without a cache: the rows are leaving
	// copied is what stands at the destination for each chunk, and stored one reference of
	// each segment there.
	copied map[manifest.ChunkID]*manifest.Copied
	stored []manifest.SegmentRef
	debt   int // bytes since the last pause
	// list are the chunks, bytes of keys and documents were copied, of total so far.
	list         []manifest.ChunkAt
	bytes, total atomic.Int64
	done         bool
}

// relocating does a move: at once, when the shards are in one location, else with a
// relocation. Copying is for the caller's goroutine, and the janitor works on meanwhile. One
// of a process goes on at a time.
func (s *shard) relocating(ctx context.Context, list []manifest.ChunkAt, to manifest.ShardID, move func(*relocation) error) error {
	s.mu.Lock()
	dst := s.state.Shard(to)
	s.mu.Unlock()
	if dst == nil || dst.Location == s.location {
		return move(nil)
	}
	select {
	case s.w.relocates <- struct{}{}:
		defer func() { <-s.w.relocates }()
	case <-ctx.Done():
		return fmt.Errorf("%w: another chunk is on its way to another location: %w", errkind.Throttled, context.Cause(ctx))
	case <-s.ended:
		return s.endedErr()
	}
	r := &relocation{s: s, list: list, to: to, at: dst.Location, store: reader.NewStore(s.w.bucket, nil), copied: make(map[manifest.ChunkID]*manifest.Copied)}
	chunks, err := s.moveable(list)
	if err != nil {
		return err
	}
	if s.chunkBytes(chunks) > s.w.set.MovePreflush {
		if err := s.do(ctx, func(ctx context.Context) error { return s.flushChunks(ctx, chunks) }); err != nil {
			return err
		}
	}
	if err := r.register(ctx, list); err != nil {
		return err
	}
	s.w.relocating.Store(r)
	defer s.w.relocating.Store(nil)
	if err = r.follow(ctx, chunks); err == nil {
		err = move(r)
	}
	if err != nil {
		r.leave(ctx)
	}
	return err
}

// register makes the job known, and ends those of moves that came to nothing: only the owner of
// a chunk moves it, and this process has no other move to another location under way.
func (r *relocation) register(ctx context.Context, list []manifest.ChunkAt) error {
	r.job = r.s.w.asked.ID16()
	ids := make([]manifest.ChunkID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	var changes []manifest.Change
	for _, j := range r.s.w.root.State().Jobs() {
		mine := slices.ContainsFunc(j.Chunks(), func(id manifest.ChunkID) bool { return slices.Contains(ids, id) })
		if mine && j.Moves() {
			changes = append(changes, manifest.ExpelJob{ID: j.ID})
		}
	}
	_, err := r.s.w.root.Commit(ctx, r.edit(append(changes, manifest.RegisterJob{Job: manifest.Job{
		ID: r.job, Kind: manifest.JobCompact, Holder: r.s.w.holder + manifest.MovingSuffix, StartedMillis: r.s.w.host.Wall().UnixMilli(),
		Detail: manifest.ChunksDetail(ids),
	}})...))
	if err != nil {
		return fmt.Errorf("register a job: %w", err)
	}
	return nil
}

func (r *relocation) edit(changes ...manifest.Change) manifest.Edit {
	return manifest.Edit{Op: r.s.w.asked.ID16(), Changes: changes, Millis: r.s.w.host.Wall().UnixMilli()}
}

// end is the change with which the job ends. What the root refers to by then is no garbage:
// GC asks again.
func (r *relocation) end() manifest.Change { return manifest.ExpelJob{ID: r.job, Left: r.unused()} }

// unused are the segments that no copy needs: none, if the move is committed.
func (r *relocation) unused() (left []manifest.SegmentRef) {
	if !r.done {
		return r.stored
	}
	return nil
}

// leave ends the job of a move that came to nothing, as far as is known. If the move was
// committed after all, with an answer that was lost, the job is gone already.
func (r *relocation) leave(ctx context.Context) {
	ctx, cancel := r.s.w.host.WithTimeout(context.WithoutCancel(ctx), relocateGoodbye)
	defer cancel()
	r.done = false
	if _, err := r.s.w.root.Commit(ctx, r.edit(r.end())); err != nil {
		r.s.w.log.Debug("the job of a move stays until a compactor expels it", "job", fmt.Sprintf("%x", r.job), "cause", err)
	}
}

// follow copies what the root shows of chunks, and what it shows of them then, until the
// rest is small.
func (r *relocation) follow(ctx context.Context, chunks []*chunk) error {
	for range relocateRounds {
		if err := r.catchUp(ctx, chunks); err != nil {
			return err
		}
		if r.rest(chunks) <= relocateRest {
			return nil
		}
	}
	return nil
}

// infos are the chunks as the newest root shows them. Errors: StaleVersion, when one was moved
// or cut; why the shard ended.
func (r *relocation) infos(chunks []*chunk) ([]*manifest.Chunk, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.endErr != nil {
		return nil, r.s.endErr
	}
	list := make([]*manifest.Chunk, len(chunks))
	for i, c := range chunks {
		if c.gone {
			return nil, fmt.Errorf("chunk %d: %w: it was moved or cut", c.info.ID, errkind.StaleVersion)
		}
		list[i] = c.info
	}
	return list, nil
}

// rest is how much of the chunks is not copied yet, as stored.
func (r *relocation) rest(chunks []*chunk) (bytes uint64) {
	infos, _ := r.infos(chunks)
	for _, c := range infos {
		for _, ref := range c.Refs[min(len(c.Refs), len(r.of(c).From)):] {
			bytes += ref.Size
		}
	}
	return bytes
}

func (r *relocation) of(c *manifest.Chunk) *manifest.Copied {
	k := r.copied[c.ID]
	if k == nil {
		k = &manifest.Copied{Job: r.job, Rows: -1}
		r.copied[c.ID] = k
	}
	return k
}

// catchUp copies the references that came since.
func (r *relocation) catchUp(ctx context.Context, chunks []*chunk) error {
	infos, err := r.infos(chunks)
	if err != nil {
		return err
	}
	if err := r.mayGo(infos); err != nil {
		return err
	}
	for _, c := range infos {
		k := r.of(c)
		n := len(k.From)
		if n > len(c.Refs) || !slices.EqualFunc(k.From, c.Refs[:n], sameCopy) {
			return fmt.Errorf("chunk %d: %w: its older segments were replaced while they were copied", c.ID, errkind.Conflict)
		}
		if n == len(c.Refs) {
			continue
		}
		if err := r.copy(ctx, c, n); err != nil {
			return fmt.Errorf("copy %d segments of chunk %d to location %d: %w", len(c.Refs)-n, c.ID, r.at, err)
		}
	}
	return nil
}

// mayGo refuses what the commit would refuse: by then the rows would be where a zone does not let
// them be. Errors: Invalid; Conflict, when the destination is gone.
func (r *relocation) mayGo(infos []*manifest.Chunk) error {
	st := r.s.w.root.State()
	to := st.Shard(r.to)
	if to == nil {
		return fmt.Errorf("destination shard %s: %w: it was removed", r.to, errkind.Conflict)
	}
	for _, c := range infos {
		if zone := st.Leaves(c, to); zone != "" && !broken(copiedFirst) {
			return fmt.Errorf("chunk %d: %w: its range belongs to zone %s, and %s, in another location, does not", c.ID, errkind.Invalid, zone, to.ID)
		}
	}
	return nil
}

// copying is how far the move is.
func (r *relocation) copying() rpc.Copying {
	return rpc.Copying{
		Collection: r.list[0].Collection, Chunk: r.list[0].ID, Chunks: int64(len(r.list)), To: r.to, Bytes: r.bytes.Load(), Total: r.total.Load(),
	}
}

// sameCopy reports whether a copy of one reference is one of the other.
func sameCopy(a, b manifest.SegmentRef) bool {
	return a.Segment == b.Segment && a.FixedSeq == b.FixedSeq && a.Clip.Equal(b.Clip)
}

// copy writes what the references of c show from the n-th on. Deletions stay, unless there is
// nothing older.
func (r *relocation) copy(ctx context.Context, c *manifest.Chunk, n int) error {
	k, part := r.of(c), *c
	part.Refs = c.Refs[n:]
	for i := range part.Refs {
		r.total.Add(int64(part.Refs[i].Bytes))
	}
	w := &copier{relocation: r, chunk: &part, oldest: n == 0}
	if coll := r.s.w.root.State().Collection(c.Collection); coll != nil {
		w.rule = expiry.Of(coll)
	}
	if err := w.retries(ctx); err != nil {
		return err
	}
	it := r.store.Scan(ctx, reader.View{Chunk: &part}, shardkey.Range{}, false)
	defer it.Rest()
	for it.NextVersion(ctx) {
		if err := w.row(ctx, it.Row()); err != nil {
			return err
		}
	}
	if it.Err() != nil {
		return it.Err()
	}
	if err := w.finish(ctx); err != nil {
		return err
	}
	k.To = append(k.To, w.outputs...)
	k.From = c.Refs
	if k.Rows = -1; n == 0 {
		k.Rows = w.live
	}
	return nil
}

// copier writes the copy of a run of references.
type copier struct {
	*relocation
	chunk   *manifest.Chunk // with that run
	oldest  bool
	rule    *expiry.Rule
	w       *segment.Writer // nil: none begun
	dates   expiry.Dates
	rows    uint64 // in w
	until   int64  // when the last of the run's retry entries ends
	outputs []manifest.SegmentRef
	live    int64
}

// retries begins with the retry entries that are in force.
func (k *copier) retries(ctx context.Context) error {
	now := k.s.w.host.Wall().Add(-manifest.ClockError).Unix()
	for i := range k.chunk.Refs {
		if until := k.chunk.Refs[i].RetryUntil; until > now {
			k.until = max(k.until, until)
		}
	}
	if k.until == 0 {
		return nil
	}
	entries, err := k.store.Retries(ctx, reader.View{Chunk: k.chunk}, now)
	if err != nil {
		return err
	}
	if entries, err = k.s.partingRetries(entries, k.chunk); err != nil {
		return err
	}
	k.begin()
	for _, e := range entries {
		if err := k.w.AddRetry(e); err != nil {
			return err
		}
	}
	return nil
}

func (k *copier) row(ctx context.Context, r segment.Row) error {
	k.bytes.Add(int64(len(r.Key) + len(r.Doc)))
	if k.debt += len(r.Key) + len(r.Doc); k.debt >= 1<<20 {
		h := k.s.w.asked
		if err := h.Sleep(ctx, time.Duration(k.debt)*time.Second/relocateRate); err != nil {
			return err
		}
		k.debt = 0
	}
	if r.Delete && k.oldest {
		return nil
	}
	if k.w != nil && k.w.Size() >= k.s.w.set.SegmentBytes {
		if err := k.finish(ctx); err != nil {
			return err
		}
	}
	k.begin()
	k.dates.Add(k.rule, r.Doc)
	if k.rows++; !r.Delete {
		k.live++
	}
	return k.w.Add(r)
}

func (k *copier) begin() {
	if k.w != nil {
		return
	}
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob, Job: k.job}, Random: k.s.w.asked.ID16()}
	k.w, k.dates, k.rows = segment.NewWriter(id, &segment.WriterOptions{Location: k.at}), expiry.Dates{}, 0
}

// finish stores the segment that was begun, after it was read back.
func (k *copier) finish(ctx context.Context) error {
	if k.w == nil {
		return nil
	}
	if err := k.w.Cut(segment.Part{Collection: k.chunk.Collection, Clip: k.chunk.Range}); err != nil {
		return err
	}
	body, _, err := k.w.Finish()
	if err != nil {
		return err
	}
	ref := k.w.Refs()[0]
	k.w = nil
	ref.Dates = k.dates.Bounds()
	if err := k.verify(ctx, body, ref); err != nil {
		return err
	}
	if len(k.outputs) == 0 {
		ref.RetryUntil = k.until
	}
	if ref.Rows == 0 {
		ref.MinSeq, ref.MaxSeq = k.chunk.Refs[0].MinSeq, k.chunk.Refs[0].MinSeq
	}
	k.stored = append(k.stored, ref)
	k.outputs = append(k.outputs, ref)
	return k.put(ctx, ref, body)
}

func (k *copier) verify(ctx context.Context, body []byte, ref manifest.SegmentRef) error {
	rows := uint64(0)
	inMemory := func(_ context.Context, off, length int64) ([]byte, error) {
		return body[min(off, int64(len(body))):min(off+length, int64(len(body)))], nil
	}
	err := segment.Verify(ctx, inMemory, ref, func(segment.Row) error { rows++; return nil })
	if err == nil && (rows != k.rows || ref.Rows != k.rows) {
		err = fmt.Errorf("segment %s: %w: %d rows were added, %d are there", ref.Segment, errkind.Corrupt, k.rows, rows)
	}
	return err
}

// put stores a segment. Its name is fresh, so that sending the same bytes again after an
// unclear answer is safe.
func (k *copier) put(ctx context.Context, ref manifest.SegmentRef, body []byte) error {
	b, err := k.s.w.bucket(ref.Location)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		if _, err = b.Put(ctx, ref.Segment.Key(), body, bucket.Condition{}); err == nil {
			return nil
		}
		if errors.Is(err, errkind.Invalid) {
			return fmt.Errorf("store segment %s: %w", ref.Segment, err)
		}
		if err := retryLater(ctx, k.s.w.asked, attempt, err); err != nil {
			return fmt.Errorf("store segment %s: %w", ref.Segment, err)
		}
	}
}
