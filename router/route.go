package router

import (
	"bytes"
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const insert = rpc.Insert

// kinds of way.
const (
	// direct: one request to one chunk decides everything.
	direct = iota
	// everywhere: all matches, in every chunk that can have one.
	everywhere
	// chosen: one match, found first and then written; see twophase.go.
	chosen
)

// way is how a statement goes on the present map.
type way struct {
	kind   int
	target plan.Target // direct
	key    []byte      // direct: the only row it can concern, or nil
	// intent: the statement goes direct, but a retry on another map would not know where
	// it went: its home, in the same chunk, is told in the same request.
	intent bool
}

// route decides the way of a statement. A statement without any is finished, and its way is
// not to be used.
func (w *writing) route(k *work) (way, error) {
	if k.Kind == insert {
		return w.routeInsert(k)
	}
	p := plan.Make(w.state, w.coll, k.filter, nil)
	w.count(k, p)
	single, one := p.Single()
	switch {
	case len(p.Targets) == 0 && !k.Upsert:
		k.finish(rpc.WriteResult{})
		return way{kind: chosen}, nil
	case k.follow || k.goal != nil:
		return way{kind: chosen}, nil
	case k.Multi && (!one || k.Upsert):
		return way{kind: everywhere}, nil
	case !one:
		return way{kind: chosen}, nil
	}
	if k.Upsert {
		inside, err := w.upsertsInside(k, single.Chunk)
		switch {
		case err != nil:
			k.fail(err)
			return way{kind: chosen}, nil
		case !inside:
			return way{kind: chosen}, nil
		}
	}
	d := way{kind: direct, target: single, key: p.Row}
	if d.key != nil {
		d.target.Ranges = nil
	}
	if k.Multi || w.pinned(p) {
		return d, nil
	}
	switch at := single.Chunk.At(); {
	case k.direct != nil && (k.direct.ID != at.ID || k.direct.Version != at.Version):
		return way{kind: chosen}, nil
	case w.retry == nil:
		return d, nil
	case single.Chunk.Range.Contains(homeKey(k.op)):
		d.intent = true
		w.nameTry(k)
		return d, nil
	}
	return way{kind: chosen}, nil
}

// count counts how far a statement reaches, once.
func (w *writing) count(k *work, p *plan.Plan) {
	if k.counted {
		return
	}
	k.counted = true
	verb := UpdateVerb
	if k.Kind == rpc.Delete {
		verb = DeleteVerb
	}
	w.r.targeting.count(verb, w.ns, w.coll, reachOf(p), k.Filter, k.Sort)
}

// nameTry names this try of a client's, for its intents.
func (w *writing) nameTry(k *work) int64 {
	if k.try == 0 {
		k.try = int64(w.r.host.Uint64()>>1) | 1
	}
	return k.try
}

// pinned reports whether the filter fixes the shard key: then every map sends the statement
// to the chunk where its retry id is.
func (w *writing) pinned(p *plan.Plan) bool {
	if p.Row != nil {
		return true
	}
	return p.Kind == plan.Targeted && len(p.Ranges) == 1 && !w.coll.SplitWithinKey
}

func (w *writing) routeInsert(k *work) (way, error) {
	key, err := w.coll.Key.AppendKey(w.scratch[:0], k.Doc)
	if err != nil {
		k.fail(mongoerr.New(mongoerr.ShardKeyNotFound, "%v", err))
		return way{kind: chosen}, nil
	}
	w.scratch = key
	return way{kind: direct, target: plan.Target{Chunk: w.state.ChunkOf(w.coll.ID, key)}}, nil
}

// upsertsInside reports whether the document that k would insert belongs into the chunk,
// whatever _id it is given there.
func (w *writing) upsertsInside(k *work, chunk *manifest.Chunk) (bool, error) {
	made := false
	doc, err := k.update.Upsert(nil, k.filter, func() bson.RawValue {
		made = true
		return w.r.ids.value()
	})
	if err != nil {
		return false, err
	}
	if w.lacksKey(k, doc) != nil {
		return false, nil // fine if there is a match: look for one
	}
	key, err := w.coll.Key.AppendShardKey(nil, doc)
	if err != nil {
		return false, mongoerr.New(mongoerr.ShardKeyNotFound, "%v", err)
	}
	if made && w.coll.Key.Has("_id") {
		return len(chunk.Range.Min) == 0 && len(chunk.Range.Max) == 0, nil
	}
	return chunk.Range.Covers(shardkey.Range{Min: key, Max: shardkey.PrefixEnd(key)}), nil
}

// run is the statements that go to one shard in one request.
type run struct {
	shard   manifest.ShardID
	works   []*work
	targets []rpc.Target
	ops     []rpc.WriteOp
	at      []int // works[at[i]] is the one that ops[i] is of; -1-j: the intent of works[j]
	bytes   int
	chunks  map[manifest.ChunkID]int // whole chunks among the targets
	results []rpc.WriteResult        // of ops, in order
	// early: the answer may come before the results are durable; until is what it left open.
	// after is what the answer of another one waits for besides.
	early        bool
	after, until manifest.Position
}

func newRun(shard manifest.ShardID) *run {
	return &run{shard: shard, chunks: make(map[manifest.ChunkID]int)}
}

// full reports whether k would make the request too large.
func (r *run) full(s Settings, k *work) bool {
	return len(r.ops)+2 > WriteOpsMax || r.bytes+k.size() > s.WriteBytes
}

// named reports whether every operation names its row: it goes there again, if it must.
func (r *run) named() bool {
	return !slices.ContainsFunc(r.ops, func(op rpc.WriteOp) bool { return op.Kind != rpc.Insert && op.Key == nil || op.Multi })
}

func (r *run) add(k *work, d way) {
	t := r.targetOf(d.target)
	if d.intent {
		home := rpc.WriteOp{Kind: rpc.Intent, Op: k.op, Target: r.targetOf(plan.Target{Chunk: d.target.Chunk}), Key: homeKey(k.op)}
		home.Doc = (&goal{direct: k.try, attempt: k.op.Attempt}).encode()
		r.ops = append(r.ops, home)
		r.at = append(r.at, -1-len(r.works))
	}
	op := k.request(t)
	op.Key = bytes.Clone(d.key)
	r.ops = append(r.ops, op)
	r.at = append(r.at, len(r.works))
	r.works = append(r.works, k)
	r.bytes += k.size()
}

// targetOf is the index of a target; whole chunks are named once.
func (r *run) targetOf(t plan.Target) int {
	if t.Ranges != nil {
		r.targets = append(r.targets, target(t))
		return len(r.targets) - 1
	}
	i, ok := r.chunks[t.Chunk.ID]
	if !ok {
		i = len(r.targets)
		r.targets = append(r.targets, target(t))
		r.chunks[t.Chunk.ID] = i
	}
	return i
}

// request is the statement as an owner gets it.
func (w *work) request(target int) rpc.WriteOp {
	op := rpc.WriteOp{
		Kind: w.Kind, Op: w.op, Target: target, Doc: w.Doc, Filter: w.Filter, Update: w.Update,
		ArrayFilters: w.ArrayFilters, Multi: w.Multi, Upsert: w.Upsert, Return: w.Return, Projection: w.Projection,
	}
	if w.sort != nil {
		op.Sort = w.Sort
	}
	if isEmpty(w.Filter) {
		op.Filter = nil
	}
	if isEmpty(w.Projection) {
		op.Projection = nil
	}
	return op
}
