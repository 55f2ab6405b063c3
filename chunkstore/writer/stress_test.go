package writer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var stressSeeds = flag.Int("stress", 12, "seeds of the random cluster life")

var stressFrom = flag.Int("stressfrom", 0, "the first of them")

// Whatever happens to processes, shards, chunks and requests, every client finds each of its
// documents exactly as its last operation left it. Each document has one client, which sends
// one operation at a time until its outcome is known; so what it must find is known too.
func TestRandomLifeLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for seed := *stressFrom; seed < *stressFrom+*stressSeeds; seed++ {
		if wrong := stress(t, uint64(seed), 20*time.Second); len(wrong) > 0 {
			t.Fatalf("seed %d: %v", seed, wrong)
		}
	}
}

// life is one random run.
type life struct {
	w     *world
	rng   *rand.Rand
	mu    sync.Mutex
	wrong []string
	seen  []*manifest.State // some roots, newest last: maps that clients live on
	ops   int
}

func (l *life) report(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *life) n(n int) int { l.mu.Lock(); defer l.mu.Unlock(); return l.rng.IntN(n) }

func stress(t *testing.T, seed uint64, long time.Duration) (wrong []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.started = seed * 1000
		l := &life{w: w, rng: rand.New(rand.NewPCG(seed, 2))}
		for _, s := range []manifest.ShardID{"a", "b", "c"} {
			p := l.process()
			for p.Hold(t.Context(), s) != nil {
				time.Sleep(10 * time.Millisecond)
			}
		}
		w.collection("a,b,c,a", 4, 8, 12)
		l.look()
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() { l.client(ctx, i) })
		}
		all.Go(func() { l.chaos(ctx) })
		served, done := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { l.watch(served) })
		all.Wait()
		done()
		watch.Wait()
		l.settle()
		wrong = l.wrong
	})
	return wrong
}

// process starts one with settings and faults drawn from the seed.
func (l *life) process() *proc {
	p := l.w.process("", func(s *Settings) {
		s.BatchRecords = 1 + l.n(20)
		s.Lease = time.Duration(100+l.n(3000)) * time.Millisecond
		s.IdleFlush = time.Duration(1+l.n(20)) * 100 * time.Millisecond
		s.RootPoll = time.Duration(1+l.n(100)) * 100 * time.Millisecond
		s.MovePreflush = int64(l.n(2000))
		s.SegmentBytes = 200 + l.n(5000)
	})
	kinds := []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Late, faultbucket.Twice, faultbucket.Throttle, faultbucket.Slow, faultbucket.StuckAfter}
	var rules []faultbucket.Rule
	for _, k := range kinds {
		rules = append(rules, faultbucket.Rule{
			OneIn: uint64(20 + l.n(200)), Fault: faultbucket.Fault{Kind: k, Delay: time.Duration(l.n(1500)) * time.Millisecond},
		})
	}
	latency := time.Duration(l.n(20)) * time.Millisecond
	plan := faultbucket.Rules(p.host, rules...)
	p.fault.SetPlan(func(c faultbucket.Call) faultbucket.Fault {
		if f := plan(c); f.Kind != faultbucket.None && c.Verb != layer.List {
			return f
		}
		return faultbucket.Fault{Kind: faultbucket.Slow, Delay: latency}
	})
	return p
}

// look keeps a root for clients to live on.
func (l *life) look() {
	st := l.w.state()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, st)
}

// model is what a document must be.
type model struct {
	exists bool
	v      int64
}

// client works on two documents.
func (l *life) client(ctx context.Context, n int) {
	c := l.w.client()
	c.sid = byte(n + 1)
	docs := map[int]*model{n: {}, n + 8: {}}
	for ctx.Err() == nil {
		id := n + 8*l.n(2)
		m := docs[id]
		var op rpc.WriteOp
		switch k := l.n(10); {
		case k < 4:
			l.read(c, id, m)
			continue
		case k < 5 && m.exists:
			op = deleteOp(id)
		case k < 7 && !m.exists:
			op = insertOp(fmt.Sprintf("{_id: %d, v: 0}", id))
		case k < 8:
			f := raw(bson.D{{Key: "_id", Value: id}})
			op = rpc.WriteOp{Kind: rpc.Update, Filter: f, Update: value("{$inc: {v: 1}}"), Multi: true}
		default:
			op = updateOp(id, "{$inc: {v: 1}}")
			op.Return = rpc.ReturnAfter
		}
		l.write(c, id, m, c.op(op))
	}
	time.Sleep(time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
}

// route is the root that the next attempt is planned on: mostly the newest.
func (l *life) route(c *client, attempt int) {
	c.mapped = nil
	if attempt == 0 && l.n(3) == 0 {
		l.mu.Lock()
		c.mapped = l.seen[l.rng.IntN(len(l.seen))]
		l.mu.Unlock()
	}
}

// write sends an operation until its outcome is known, and checks it.
func (l *life) write(c *client, id int, m *model, op rpc.WriteOp) {
	var errs []error
	for attempt := 0; attempt < 1000; attempt++ {
		l.route(c, attempt)
		reply, err := l.sendOnce(c, id, op)
		if err != nil || reply.Results[0].Stale {
			errs = append(errs, err)
			time.Sleep(time.Duration(10+l.n(50)) * time.Millisecond)
			continue
		}
		l.judge(id, m, op, reply.Results[0], attempt)
		return
	}
	l.report("document %d: no answer to kind %d: %v", id, op.Kind, errs[max(0, len(errs)-5):])
}

func (l *life) sendOnce(c *client, id int, op rpc.WriteOp) (*rpc.WriteReply, error) {
	st := c.state()
	chunk := st.ChunkOf(st.CollectionByName("db", "c").ID, idKey(id))
	var ranges []shardkey.Range
	if op.Multi {
		ranges = []shardkey.Range{{Min: idKey(id), Max: append(idKey(id), 0xFF)}}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+l.n(2000))*time.Millisecond)
	defer cancel()
	return c.sendRanges(ctx, chunk, ranges, op)
}

// judge compares the answer with the model, which it moves on.
func (l *life) judge(id int, m *model, op rpc.WriteOp, res rpc.WriteResult, attempt int) {
	l.mu.Lock()
	l.ops++
	l.mu.Unlock()
	was := *m
	n := int64(0)
	if was.exists != (op.Kind == rpc.Insert) {
		n = 1
	}
	switch {
	case op.Kind == rpc.Insert:
		*m = model{exists: true}
	case op.Kind == rpc.Delete:
		*m = model{}
	case was.exists:
		m.v++
	}
	if res.N != n || res.Err != nil && op.Kind != rpc.Insert {
		l.report("document %d %+v: kind %d multi %v answers %+v after %d attempts", id, was, op.Kind, op.Multi, res, attempt)
		return
	}
	if op.Return == rpc.ReturnAfter && was.exists {
		if v := res.Value.Lookup("v").AsInt64(); v != m.v {
			l.report("document %d %+v: increment answers %d after %d attempts", id, was, v, attempt)
		}
	}
}

// read reads the document until there is an answer, and checks it.
func (l *life) read(c *client, id int, m *model) {
	var last error
	for attempt := range 1000 {
		l.route(c, attempt)
		st := c.state()
		chunk := st.ChunkOf(st.CollectionByName("db", "c").ID, idKey(id))
		owner, err := c.owner(st, chunk)
		if err == nil {
			var reply *rpc.ReadReply
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+l.n(2000))*time.Millisecond)
			reply, err = owner.Read(ctx, &rpc.ReadRequest{
				Header:  rpc.Header{Shard: chunk.Shard, Collection: chunk.Collection, RootVersion: st.Version()},
				Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version, Min: chunk.Range.Min}},
				Level:   rpc.Level(l.n(2)), Query: rpc.Query{Filter: raw(bson.D{{Key: "_id", Value: id}})},
			})
			cancel()
			if err == nil {
				got := model{exists: len(reply.Docs) > 0}
				if got.exists {
					got.v = reply.Docs[0].Lookup("v").AsInt64()
				}
				if got != *m {
					l.report("document %d: read %+v, want %+v, from %s of epoch %d, attempt %d", id, got, *m, chunk.Shard, st.Shard(chunk.Shard).Epoch, attempt)
				}
				return
			}
		}
		last = err
		if errors.Is(err, errkind.Corrupt) {
			l.report("document %d: %v", id, err)
			return
		}
		time.Sleep(time.Duration(10+l.n(50)) * time.Millisecond)
	}
	l.report("document %d: no answer to a read: %v\n%v", id, last, l.status())
}

// chaos does what operators, balancers and accidents do.
func (l *life) chaos(ctx context.Context) {
	shards := []manifest.ShardID{"a", "b", "c"}
	var background sync.WaitGroup
	defer background.Wait()
	for ctx.Err() == nil {
		time.Sleep(time.Duration(l.n(600)) * time.Millisecond)
		l.look()
		s := shards[l.n(3)]
		switch k := l.n(12); {
		case k < 2: // a crash
			if h := l.holder(s); h != nil {
				h.kill()
			}
			l.takeOver(&background, s)
		case k < 4: // a takeover from one that lives on
			l.takeOver(&background, s)
		case k < 8:
			background.Go(func() {
				c := l.w.client()
				_ = c.move(l.n(16), shards[l.n(3)])
			})
		case k < 9:
			if h := l.holder(s); h != nil {
				background.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					defer cancel()
					if h.Release(ctx, s) == nil || l.n(2) == 0 {
						l.takeOver(&background, s)
					}
				})
			}
		case k < 10:
			_ = l.w.commit(manifest.Split{Chunk: l.w.chunk(l.n(16)).At(), Points: []manifest.Bound{{
				Key: idKey(l.n(16)), BSON: raw(bson.D{{Key: "_id", Value: 0}}),
			}}})
		case k < 11:
			a := l.w.chunk(l.n(16))
			if b := l.w.state().ChunkOf(a.Collection, a.Range.Max); len(a.Range.Max) > 0 {
				_ = l.w.commit(manifest.Merge{Left: a.At(), Right: b.At()})
			}
		default:
			l.w.collect(s)
		}
	}
}

// watch sees to it that every shard has a holder.
func (l *life) watch(ctx context.Context) {
	var background sync.WaitGroup
	defer background.Wait()
	for ctx.Err() == nil {
		for _, s := range []manifest.ShardID{"a", "b", "c"} {
			if !l.serves(l.holder(s), s) {
				l.takeOver(&background, s)
			}
		}
		time.Sleep(2 * time.Second)
	}
}

// serves reports whether the process serves the shard, or is about to.
func (l *life) serves(p *proc, s manifest.ShardID) bool {
	if p == nil {
		return false
	}
	for _, x := range p.Status().Shards {
		if x.ID == s {
			return x.Phase != Ended
		}
	}
	return false
}

func (l *life) status() (all []string) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for _, p := range l.w.procs {
		for _, x := range p.Status().Shards {
			all = append(all, fmt.Sprintf("%s %+v\n", p.name, x))
		}
	}
	slices.Sort(all)
	return all
}

func (l *life) holder(s manifest.ShardID) *proc {
	return l.w.proc(l.w.state().Shard(s).Holder)
}

// takeOver makes a process hold the shard: a new one, or one that is there.
func (l *life) takeOver(background *sync.WaitGroup, s manifest.ShardID) {
	l.w.mu.Lock()
	var names []string
	for name := range l.w.procs {
		names = append(names, name)
	}
	l.w.mu.Unlock()
	slices.Sort(names)
	p := (*proc)(nil)
	if len(names) > 3 || len(names) > 0 && l.n(2) == 0 {
		p = l.w.proc(names[l.n(len(names))])
	}
	if p == nil {
		p = l.process()
	}
	background.Go(func() {
		for range 50 {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err := p.Hold(ctx, s)
			cancel()
			if h := l.w.state().Shard(s); err == nil || h.Status != manifest.ShardFree && h.Holder != p.name && l.holder(s) != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// settle heals the store, makes everything held, and checks what is in segments at the end
// against what is served.
func (l *life) settle() {
	for _, p := range l.w.procs {
		p.fault.SetPlan(nil)
	}
	shards := []manifest.ShardID{"a", "b", "c"}
	for _, s := range shards {
		h := l.holder(s)
		if h == nil || h.Hold(context.Background(), s) != nil {
			h = l.w.process("")
			if err := h.Hold(context.Background(), s); err != nil {
				l.report("hold %s: %v", s, err)
				return
			}
		}
	}
	c := l.w.client()
	served := l.all(c)
	for _, s := range shards {
		if err := l.holder(s).Release(context.Background(), s); err != nil {
			l.report("release of %s: %v", s, err)
			return
		}
	}
	rows := int64(0)
	exact := true
	for chunk := range l.w.state().AllChunks() {
		rows += chunk.Rows
		exact = exact && !chunk.RowsEstimated
	}
	if exact && rows != int64(len(served)) {
		l.report("the root counts %d rows, there are %d", rows, len(served))
	}
	last := l.w.process("")
	for _, s := range shards {
		if err := last.Hold(context.Background(), s); err != nil {
			l.report("hold %s: %v", s, err)
			return
		}
	}
	if again := l.all(c); fmt.Sprint(again) != fmt.Sprint(served) {
		l.report("served %v, after the release %v", served, again)
	}
}

func (l *life) all(c *client) (list []string) {
	docs, _, err := c.readOnce(context.Background(), rpc.Query{}, rpc.Verified)
	if err != nil {
		l.report("read all: %v", err)
	}
	for _, d := range docs {
		list = append(list, show(d))
	}
	slices.Sort(list)
	return list
}
