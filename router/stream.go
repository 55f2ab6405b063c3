package router

import (
	"context"
	"errors"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// stream is documents that come in batches from somewhere. Not safe for concurrent use.
type stream interface {
	// next is the next document, nil at the end. want is how many the caller will take
	// soon; it sizes requests.
	next(ctx context.Context, want int) (bson.Raw, error)
	// spent reports that nothing follows, as far as that is known without asking.
	spent() bool
	close(ctx context.Context)
}

// readOwner is the part of rpc.Owner that a read needs; free shards have one of their own.
type readOwner interface {
	Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error)
	Cursor(ctx context.Context, r *rpc.CursorRequest) (*rpc.ReadReply, error)
}

// shardStream is what one shard answers: a buffered batch, and a cursor for the rest.
type shardStream struct {
	r      *Router
	owner  readOwner
	header rpc.Header
	shard  manifest.ShardID
	data   manifest.DataVersion
	gained manifest.Version // rpc.ReadReply.Gained
	n      int64            // a count
	docs   []bson.Raw
	cursor uint64
	held   int64 // bytes of the batch, in the memory for answers
	shards int   // asked together, which share the memory
	trace  *Trace
}

// openShard sends a query to one group of `shards` that are asked at once.
func (r *Router) openShard(ctx context.Context, a *attempts, rd *read, g plan.Group, q rpc.Query, shards int) (*shardStream, error) {
	st := &shardStream{r: r, shard: g.Shard, header: a.header(rd.state, rd.coll, g.Shard), shards: shards, trace: rd.Trace}
	start := r.host.Mono()
	b := r.batch(rd.First, shards)
	req := &rpc.ReadRequest{Header: st.header, Targets: targets(g.Targets), Level: rd.Level, Query: q, Batch: b}
	read := func(o readOwner) (*rpc.ReadReply, error) {
		st.owner = o
		return o.Read(ctx, req)
	}
	var reply *rpc.ReadReply
	var err error
	if o := r.bucketOwner(rd, g); o != nil {
		reply, err = read(o)
	} else {
		reply, err = ask(ctx, a, rd.state, g.Shard, func(o rpc.Owner) (*rpc.ReadReply, error) { return read(o) })
	}
	if err != nil {
		r.answers.Add(-int64(b.Bytes))
		return nil, err
	}
	st.trace.answered(st.shard, g.Targets, reply, r.host.Mono()-start)
	st.data, st.gained, st.n = reply.DataVersion, reply.Gained, reply.N
	st.header.Deadline = 0 // that of the first batch; later ones have the caller's
	st.take(reply, b)
	return st, nil
}

// take makes an answer to a request for b the present batch.
func (s *shardStream) take(reply *rpc.ReadReply, b rpc.Batch) {
	s.docs, s.cursor = reply.Docs, reply.Cursor
	for _, d := range s.docs {
		s.held += int64(len(d))
	}
	s.r.answers.Add(s.held - int64(b.Bytes))
	if len(s.docs) == 0 {
		s.release()
	}
}

func (s *shardStream) next(ctx context.Context, want int) (bson.Raw, error) {
	for len(s.docs) == 0 {
		if s.cursor == 0 {
			return nil, nil
		}
		if err := s.fetch(ctx, want); err != nil {
			return nil, err
		}
	}
	doc := s.docs[0]
	if s.docs = s.docs[1:]; len(s.docs) == 0 {
		s.release()
	}
	return doc, nil
}

// release gives the memory of the batch back.
func (s *shardStream) release() {
	s.r.answers.Add(-s.held)
	s.docs, s.held = nil, 0
}

// fetch asks for the next batch. A lost answer cannot be asked for again, since the cursor
// may have moved on: the client must start over.
func (s *shardStream) fetch(ctx context.Context, want int) error {
	req := &rpc.CursorRequest{Header: s.header, Cursor: s.cursor, Batch: s.r.batch(want, s.shards)}
	start := s.r.host.Mono()
	defer s.trace.wait(s.r, start)
	until := start + s.r.settings.Patience
	for wait := s.r.settings.BackoffMin; ; wait = min(2*wait, s.r.settings.BackoffMax) {
		reply, err := s.owner.Cursor(ctx, req)
		if err == nil {
			s.trace.answered(s.shard, nil, reply, s.r.host.Mono()-start)
			s.take(reply, req.Batch)
			return nil
		}
		refused := errors.Is(err, errkind.Throttled) && !errors.Is(err, rpc.Unreachable)
		if !refused || s.r.host.Mono() > until || s.r.host.Sleep(ctx, s.r.host.Jitter(wait)) != nil {
			s.r.answers.Add(-int64(req.Batch.Bytes))
			return s.broken(ctx, err)
		}
	}
}

// broken ends the stream, and words the error for a client.
func (s *shardStream) broken(ctx context.Context, err error) error {
	s.cursor = 0
	switch {
	case !passing(err):
		return err
	case ctx.Err() != nil:
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit: %v", err)
	case errors.Is(err, errkind.SnapshotUnavailable):
		return mongoerr.New(mongoerr.SnapshotUnavailable, "shard %s: %v; run the query again", s.shard, err)
	}
	return mongoerr.New(mongoerr.CursorNotFound, "shard %s lost the cursor (%v); run the query again", s.shard, err)
}

func (s *shardStream) spent() bool { return len(s.docs) == 0 && s.cursor == 0 }

// closeTime bounds the goodbye to an owner; its cursors time out by themselves.
const closeTime = time.Second

func (s *shardStream) close(ctx context.Context) {
	s.release()
	if s.cursor == 0 {
		return
	}
	ctx, cancel := s.r.host.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if _, err := s.owner.Cursor(ctx, &rpc.CursorRequest{Header: s.header, Cursor: s.cursor, Close: true}); err != nil {
		s.r.log.Debug("close a cursor", "shard", s.shard, "cause", err)
	}
	s.cursor = 0
}

func closeAll(ctx context.Context, streams []*shardStream) {
	for _, s := range streams {
		if s != nil {
			s.close(ctx)
		}
	}
}

// concat is one stream after another.
type concat []*shardStream

func (c concat) next(ctx context.Context, want int) (bson.Raw, error) {
	for _, s := range c {
		if s.spent() {
			continue
		}
		if doc, err := s.next(ctx, want); doc != nil || err != nil {
			return doc, err
		}
	}
	return nil, nil
}

func (c concat) spent() bool {
	for _, s := range c {
		if !s.spent() {
			return false
		}
	}
	return true
}

func (c concat) close(ctx context.Context) { closeAll(ctx, c) }
