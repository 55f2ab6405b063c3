package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one cluster in one bubble of virtual time: a bucket that can be made to fail,
// processes that hold shards, and one collection.
type world struct {
	t    testing.TB
	mem  *membucket.Bucket
	host host.Host
	// elsewhere are the buckets of other locations, by URL.
	elsewhere map[string]*membucket.Bucket

	started uint64 // processes
	mu      sync.Mutex
	procs   map[string]*proc
	net     func(verb string, to string) error // decides about calls between processes; under netMu
	netMu   sync.Mutex
}

// proc is one process.
type proc struct {
	*Writer
	w       *world
	name    string
	root    *manifest.Root
	fault   *faultbucket.Bucket // between this process and the bucket
	metered *layer.Metered
	away    *faultbucket.Bucket // between this process and another location; nil: not opened
	plan    faultbucket.Plan    // of away, when it is opened
	run     context.CancelFunc
	ran     chan struct{}
}

type seededRand struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (r *seededRand) Uint64() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.Uint64()
}

func testHost(seed uint64) host.Host {
	return host.Host{Clock: host.System().Clock, Rand: &seededRand{rng: rand.New(rand.NewPCG(seed, 1))}}
}

// inWorld runs f in virtual time, in a cluster with shards a, b and c.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		f(t, w)
	})
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, mem: membucket.New(), host: testHost(1), procs: make(map[string]*proc), elsewhere: make(map[string]*membucket.Bucket)}
	_, err := manifest.Create(t.Context(), bucket.NewCell(w.mem), w.host, manifest.InitOptions{Shards: []manifest.ShardID{"a", "b", "c"}})
	check(t, err)
	return w
}

// proc is the process of the name that runs, or nil.
func (w *world) proc(name string) *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[name]
}

// setNet sets what decides about calls between processes; it is asked by one at a time.
func (w *world) setNet(f func(verb string, to string) error) {
	w.netMu.Lock()
	defer w.netMu.Unlock()
	w.net = f
}

func (w *world) ask(verb, to string) error {
	w.netMu.Lock()
	defer w.netMu.Unlock()
	if w.net == nil {
		return nil
	}
	return w.net(verb, to)
}

// stop ends what is left of the cluster, and checks the root.
func (w *world) stop() {
	for _, p := range w.procs {
		p.kill()
	}
	check(w.t, manifest.Validate(w.state()))
}

// state is the root as it is.
func (w *world) state() *manifest.State {
	w.t.Helper()
	st, _, err := w.places().Root().Load(context.Background())
	check(w.t, err)
	return st
}

// places are the stores as they are, for who looks from outside.
func (w *world) places() *places.Places {
	return places.New(w.mem, func(_ context.Context, url string) (bucket.Bucket, error) { return w.elsewhere[url], nil }, w.host, nil)
}

// located adds a shard in a location of its own.
func (w *world) located(s manifest.ShardID) {
	w.t.Helper()
	url := "mem:" + string(s)
	w.elsewhere[url] = membucket.New()
	check(w.t, w.places().Prepare(context.Background(), url))
	check(w.t, w.commit(manifest.AddShards{IDs: []manifest.ShardID{s}, URL: url}))
}

// collect deletes the log of a shard below its floor, in the floor's own epoch: what the
// collector surely deletes.
func (w *world) collect(s manifest.ShardID) {
	w.t.Helper()
	floor := w.state().Shard(s).Floor
	for i := range floor.Next {
		check(w.t, w.mem.Delete(context.Background(), manifest.WALKey(s, floor.Epoch, i)))
	}
}

// commit changes the root from outside.
func (w *world) commit(changes ...manifest.Change) error {
	_, err := w.places().Root().Commit(context.Background(), manifest.Edit{Op: w.host.ID16(), Changes: changes})
	return err
}

// testSettings make things small and quick.
func testSettings() Settings {
	return Settings{Lease: 300 * time.Millisecond, IdleFlush: time.Hour, RootPoll: time.Hour}
}

// process starts a process.
func (w *world) process(name string, change ...func(*Settings)) *proc {
	w.t.Helper()
	set := testSettings()
	for _, f := range change {
		f(&set)
	}
	w.mu.Lock()
	w.started++
	h := testHost(10 + w.started)
	if name == "" {
		name = fmt.Sprint("p", w.started)
	}
	w.mu.Unlock()
	fault := faultbucket.New(w.mem, h, nil)
	p := &proc{w: w, name: name, fault: fault, metered: metered(fault, h), ran: make(chan struct{})}
	at := places.New(p.metered, func(_ context.Context, url string) (bucket.Bucket, error) {
		p.away = faultbucket.New(w.elsewhere[url], h, p.plan)
		return metered(p.away, h), nil
	}, h, nil)
	p.root = at.Root()
	_, _, err := p.root.Load(w.t.Context())
	check(w.t, err)
	p.Writer = New(Config{
		Root: p.root, Bucket: p.metered, Open: at.Open, Store: reader.NewStore(at.Open, segment.NewCache(16<<20)), Host: h, Holder: name, Dial: dialer{w}, Settings: set,
	})
	p.root.AddObserver(func(*manifest.State) { p.checkStill() })
	ctx, cancel := context.WithCancel(context.Background())
	p.run = cancel
	go func() { defer close(p.ran); _ = p.Run(ctx) }()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[name] = p
	return p
}

func metered(b bucket.Bucket, h host.Host) *layer.Metered {
	return layer.Metrics(layer.Retry(layer.Deadline(b, h, 2*time.Second), h, nil))
}

// kill ends a process as a crash does.
func (p *proc) kill() {
	p.run()
	faults := []*faultbucket.Bucket{p.fault}
	if p.away != nil {
		faults = append(faults, p.away)
	}
	for _, f := range faults {
		f.SetPlan(nil)
	}
	p.Abandon()
	<-p.ran
	for _, f := range faults {
		f.Wait()
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	delete(p.w.procs, p.name)
}

// holds makes the process hold shards.
func (p *proc) holds(shards ...manifest.ShardID) *proc {
	p.w.t.Helper()
	for _, s := range shards {
		check(p.w.t, p.Hold(p.w.t.Context(), s))
	}
	return p
}

type dialer struct{ w *world }

func (d dialer) Dial(_ manifest.ShardID, holder, _ string) (rpc.Owner, error) {
	if err := d.w.ask("dial", holder); err != nil {
		return nil, err
	}
	p := d.w.proc(holder)
	if p == nil {
		return nil, fmt.Errorf("dial %q: %w", holder, errkind.Throttled)
	}
	return wire{p}, nil
}

// wire is the way to a process; the net of the world decides about some of what goes along,
// before the call ("prepare") and after it ("prepared").
type wire struct{ *proc }

func (l wire) ask(verb string) error { return l.w.ask(verb, l.name) }

func over[R any](l wire, before, after string, call func() (*R, error)) (*R, error) {
	if err := l.ask(before); err != nil {
		return nil, err
	}
	reply, err := call()
	if lost := l.ask(after); lost != nil {
		return nil, lost
	}
	return reply, err
}

func (l wire) Prepare(ctx context.Context, r *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	return over(l, "prepare", "prepared", func() (*rpc.PrepareReply, error) { return l.proc.Prepare(ctx, r) })
}

func (l wire) Decide(ctx context.Context, r *rpc.DecideRequest) (*rpc.DecideReply, error) {
	return over(l, "decide", "decided", func() (*rpc.DecideReply, error) { return l.proc.Decide(ctx, r) })
}

// collection creates db.c with the key {_id: 1}, or another, cut at the points, its chunks
// on the shards.
func (w *world) collection(shards string, points ...any) manifest.CollectionID {
	return w.keyed("{_id: 1}", shards, points...)
}

func (w *world) keyed(pattern string, shards string, points ...any) manifest.CollectionID {
	w.t.Helper()
	key, err := shardkey.ParsePattern(doc(pattern))
	check(w.t, err)
	on := strings.Split(shards, ",")
	bound := func(v any) manifest.Bound {
		k, full, err := key.Bound(raw(bson.D{{Key: key.Fields[0].Path, Value: v}}))
		check(w.t, err)
		return manifest.Bound{Key: k, BSON: full}
	}
	low := manifest.Bound{BSON: key.MinBSON()}
	var chunks []manifest.NewChunk
	for i := 0; i <= len(points); i++ {
		high := manifest.Bound{BSON: key.MaxBSON()}
		if i < len(points) {
			high = bound(points[i])
		}
		chunks = append(chunks, manifest.NewChunk{Min: low, Max: high, Shard: manifest.ShardID(on[i])})
		low = high
	}
	c := manifest.Collection{UUID: w.host.ID16(), Database: "db", Name: "c", Key: key, Sharded: true}
	check(w.t, w.commit(manifest.CreateCollection{Collection: c, Chunks: chunks}))
	return w.state().CollectionByName("db", "c").ID
}

// chunk is the chunk that has a document.
func (w *world) chunk(of any) *manifest.Chunk {
	st := w.state()
	coll := st.CollectionByName("db", "c")
	d, ok := of.(bson.Raw)
	if !ok {
		d = raw(bson.D{{Key: "_id", Value: of}})
	}
	key, err := coll.Key.AppendKey(nil, d)
	check(w.t, err)
	return st.ChunkOf(coll.ID, key)
}

// client sends operations as a router does, to wherever the root says.
type client struct {
	w   *world
	txn int64
	sid byte
	// stubborn clients go to this process, whatever the root says.
	at *proc
	// mapped is the root the client lives on; nil: the newest.
	mapped *manifest.State
}

func (w *world) client() *client { return &client{w: w, sid: 1} }

// op fills in what routers fill in: the id, the key.
func (c *client) op(o rpc.WriteOp) rpc.WriteOp {
	if o.Op == (rpc.OpID{}) {
		c.txn++
		o.Op = rpc.OpID{Session: [32]byte{c.sid}, Txn: c.txn}
	}
	return o
}

func (c *client) state() *manifest.State {
	if c.mapped != nil {
		return c.mapped
	}
	return c.w.state()
}

// owner is where requests for a chunk go.
func (c *client) owner(st *manifest.State, chunk *manifest.Chunk) (rpc.Owner, error) {
	if c.at != nil {
		return c.at, nil
	}
	sh := st.Shard(chunk.Shard)
	return dialer{c.w}.Dial(sh.ID, sh.Holder, sh.Address)
}

// keyOf is the row key that an operation goes to.
func keyOf(st *manifest.State, o rpc.WriteOp) []byte {
	coll := st.CollectionByName("db", "c")
	if o.Key != nil {
		return o.Key
	}
	from := o.Doc
	if o.Kind != rpc.Insert {
		from = o.Filter
	}
	key, err := coll.Key.AppendKey(nil, from)
	if err != nil {
		return nil // a document that no chunk can have
	}
	return key
}

// send sends operations once, all to the chunk of the first.
func (c *client) send(ctx context.Context, ops ...rpc.WriteOp) (*rpc.WriteReply, error) {
	st := c.state()
	coll := st.CollectionByName("db", "c")
	r := &rpc.WriteRequest{Header: rpc.Header{Collection: coll.ID, RootVersion: st.Version(), Deadline: 10 * time.Second}, Ordered: true}
	at := make(map[manifest.ChunkID]int)
	var first *manifest.Chunk
	for _, o := range ops {
		chunk := st.ChunkOf(coll.ID, keyOf(st, o))
		if first == nil {
			first = chunk
		}
		if _, ok := at[chunk.ID]; !ok {
			at[chunk.ID] = len(r.Targets)
			r.Targets = append(r.Targets, rpc.Target{ID: chunk.ID, Version: chunk.Version, Min: chunk.Range.Min})
		}
		o.Target = at[chunk.ID]
		r.Ops = append(r.Ops, o)
	}
	r.Shard = first.Shard
	owner, err := c.owner(st, first)
	if err != nil {
		return nil, err
	}
	return owner.Write(ctx, r)
}

// do sends one operation until its outcome is known.
func (c *client) do(o rpc.WriteOp) rpc.WriteResult {
	c.w.t.Helper()
	o = c.op(o)
	var reply *rpc.WriteReply
	var err error
	for range 200 {
		if reply, err = c.send(c.w.t.Context(), o); err == nil && !reply.Results[0].Stale {
			return reply.Results[0]
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.w.t.Fatalf("no answer to %v: %+v, %v", o, reply, err)
	return rpc.WriteResult{}
}

func (c *client) insert(docs ...string) {
	c.w.t.Helper()
	for _, d := range docs {
		if res := c.do(rpc.WriteOp{Kind: rpc.Insert, Doc: doc(d)}); res.Err != nil || res.N != 1 {
			c.w.t.Fatalf("insert %s: %+v", d, res)
		}
	}
}

func (c *client) remove(id any) rpc.WriteResult {
	c.w.t.Helper()
	return c.do(deleteOp(id))
}

func (c *client) update(id any, update string) rpc.WriteResult {
	c.w.t.Helper()
	return c.do(updateOp(id, update))
}

func insertOp(d string) rpc.WriteOp { return rpc.WriteOp{Kind: rpc.Insert, Doc: doc(d)} }

func deleteOp(id any) rpc.WriteOp {
	f := raw(bson.D{{Key: "_id", Value: id}})
	return rpc.WriteOp{Kind: rpc.Delete, Key: idKey(id), Filter: f}
}

func updateOp(id any, update string) rpc.WriteOp {
	f := raw(bson.D{{Key: "_id", Value: id}})
	return rpc.WriteOp{Kind: rpc.Update, Key: idKey(id), Filter: f, Update: value(update)}
}

// idKey is the row key of an _id in a collection whose key is {_id: 1}.
func idKey(id any) []byte {
	p, err := shardkey.ParsePattern(doc("{_id: 1}"))
	if err != nil {
		panic(err)
	}
	key, err := p.AppendKey(nil, raw(bson.D{{Key: "_id", Value: id}}))
	if err != nil {
		panic(err)
	}
	return key
}

// readOnce asks every owner for what a query finds.
func (c *client) readOnce(ctx context.Context, q rpc.Query, level rpc.Level) (docs []bson.Raw, n int64, err error) {
	st := c.state()
	coll := st.CollectionByName("db", "c")
	targets := make(map[manifest.ShardID][]rpc.Target)
	chunks := make(map[manifest.ShardID]*manifest.Chunk)
	for chunk := range st.Chunks(coll.ID) {
		chunks[chunk.Shard] = chunk
		targets[chunk.Shard] = append(targets[chunk.Shard], rpc.Target{ID: chunk.ID, Version: chunk.Version, Min: chunk.Range.Min})
	}
	for _, id := range slices.Sorted(func(yield func(manifest.ShardID) bool) {
		for s := range chunks {
			if !yield(s) {
				return
			}
		}
	}) {
		owner, err := c.owner(st, chunks[id])
		if err != nil {
			return nil, 0, err
		}
		h := rpc.Header{Shard: id, Collection: coll.ID, RootVersion: st.Version(), Deadline: 10 * time.Second}
		reply, err := owner.Read(ctx, &rpc.ReadRequest{Header: h, Targets: targets[id], Level: level, Query: q})
		for ; err == nil; reply, err = owner.Cursor(ctx, &rpc.CursorRequest{Header: h, Cursor: reply.Cursor}) {
			docs = append(docs, reply.Docs...)
			n += reply.N
			if reply.Cursor == 0 {
				break
			}
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return docs, n, nil
}

// all is every document of the collection, as JSON, in order.
func (c *client) all() []string {
	c.w.t.Helper()
	var err error
	for range 200 {
		var docs []bson.Raw
		if docs, _, err = c.readOnce(c.w.t.Context(), rpc.Query{KeyOrder: 1}, rpc.Lease); err == nil {
			key := c.w.state().CollectionByName("db", "c").Key
			slices.SortFunc(docs, func(a, b bson.Raw) int {
				x, _ := key.AppendKey(nil, a)
				y, _ := key.AppendKey(nil, b)
				return bytes.Compare(x, y)
			})
			var list []string
			for _, d := range docs {
				list = append(list, show(d))
			}
			return list
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.w.t.Fatalf("read: %v", err)
	return nil
}

// count is an exact count by metadata and rows.
func (c *client) wantRows(of any, n int64) {
	c.w.t.Helper()
	chunk := c.w.chunk(of)
	if chunk.Rows != n || chunk.RowsEstimated {
		c.w.t.Errorf("chunk %d has %d rows (estimated %v), want %d", chunk.ID, chunk.Rows, chunk.RowsEstimated, n)
	}
}

func (c *client) want(docs ...string) {
	c.w.t.Helper()
	var norm []string
	for _, d := range docs {
		norm = append(norm, show(doc(d)))
	}
	diff(c.w.t, c.all(), norm)
}

// move moves the chunk of a document.
func (c *client) move(of any, to manifest.ShardID) error {
	st := c.state()
	chunk := c.w.chunk(of)
	owner, err := c.owner(st, chunk)
	if err != nil {
		return err
	}
	_, err = owner.Move(c.w.t.Context(), &rpc.MoveRequest{
		Header: rpc.Header{Shard: chunk.Shard, Collection: chunk.Collection, RootVersion: st.Version()},
		Chunks: []manifest.ChunkAt{chunk.At()}, To: to,
	})
	return err
}

func (p *proc) flushAll(shards ...manifest.ShardID) {
	p.w.t.Helper()
	for _, s := range shards {
		_, err := p.Flush(p.w.t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: s}})
		check(p.w.t, err)
	}
}

func raw(d any) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// doc reads a document from relaxed JSON with bare names.
func doc(s string) bson.Raw {
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(quoteNames(s)), false, &d); err != nil {
		panic(fmt.Errorf("%s: %w", s, err))
	}
	return raw(d)
}

func value(s string) bson.RawValue {
	return raw(bson.D{{Key: "v", Value: doc(s)}}).Lookup("v")
}

// quoteNames puts bare field names into quotes.
func quoteNames(s string) string {
	var b strings.Builder
	word := func(c byte) bool {
		return c == '_' || c == '$' || c == '.' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	for i := 0; i < len(s); i++ {
		if s[i] == '"' {
			j := i + 1 + strings.IndexByte(s[i+1:], '"')
			b.WriteString(s[i : j+1])
			i = j
			continue
		}
		j := i
		for j < len(s) && word(s[j]) {
			j++
		}
		if j > i && j < len(s) && s[j] == ':' {
			b.WriteString(`"` + s[i:j] + `"`)
			i = j - 1
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func show(d bson.Raw) string {
	b, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
}

func diff(t testing.TB, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("-want +got\n%s", d)
	}
}

// sendTo sends operations once to the chunk of an _id.
func (c *client) sendTo(ctx context.Context, id any, ops ...rpc.WriteOp) (*rpc.WriteReply, error) {
	return c.sendRanges(ctx, c.w.chunkIn(c.state(), id), nil, ops...)
}

// sendRange sends operations once to the only chunk, narrowed to a range.
func (c *client) sendRange(ctx context.Context, r shardkey.Range, ops ...rpc.WriteOp) (*rpc.WriteReply, error) {
	st := c.state()
	return c.sendRanges(ctx, st.ChunkOf(st.CollectionByName("db", "c").ID, r.Min), []shardkey.Range{r}, ops...)
}

func (w *world) chunkIn(st *manifest.State, id any) *manifest.Chunk {
	return st.ChunkOf(st.CollectionByName("db", "c").ID, idKey(id))
}

func (c *client) sendRanges(ctx context.Context, chunk *manifest.Chunk, ranges []shardkey.Range, ops ...rpc.WriteOp) (*rpc.WriteReply, error) {
	st := c.state()
	owner, err := c.owner(st, chunk)
	if err != nil {
		return nil, err
	}
	return owner.Write(ctx, &rpc.WriteRequest{
		Header:  rpc.Header{Shard: chunk.Shard, Collection: chunk.Collection, RootVersion: st.Version(), Deadline: 10 * time.Second},
		Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version, Min: chunk.Range.Min, Ranges: ranges}},
		Ops:     ops, Ordered: true,
	})
}

func wantCode(t testing.TB, err error, code mongoerr.Code) {
	t.Helper()
	var e *mongoerr.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error %v, want %v", err, code)
	}
}

func wantStale(t testing.TB, err error)  { t.Helper(); wantKind(t, err, errkind.StaleVersion) }
func wantFenced(t testing.TB, err error) { t.Helper(); wantKind(t, err, errkind.Fenced) }

// split cuts the chunk of an _id from outside.
func (w *world) split(t *testing.T, id any, points ...any) {
	t.Helper()
	var list []manifest.Bound
	for _, p := range points {
		list = append(list, manifest.Bound{Key: idKey(p), BSON: raw(bson.D{{Key: "_id", Value: p}})})
	}
	check(t, w.commit(manifest.Split{Chunk: w.chunk(id).At(), Points: list}))
}

// promise asks a process for a promise, as a source would.
func (p *proc) promise(s manifest.ShardID, at manifest.ChunkAt) manifest.Position {
	p.w.t.Helper()
	r, err := p.Promise(p.w.t.Context(), &rpc.PromiseRequest{Header: rpc.Header{Shard: s, RootVersion: p.w.state().Version()}, Chunks: []manifest.ChunkAt{at}})
	check(p.w.t, err)
	return r.Position
}

// directDelete replaces a free shard's chunk by one segment without the row of an _id, as a
// direct commit and a compaction would.
func (w *world) directDelete(t *testing.T, chunk *manifest.Chunk, id any) {
	t.Helper()
	store := reader.NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return w.mem, nil }, segment.NewCache(1<<20))
	job := manifest.Job{ID: w.host.ID16(), Kind: "compact", Holder: "test"}
	sw := segment.NewWriter(manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob, Job: job.ID}, Random: w.host.ID16()}, nil)
	rows := int64(0)
	it := store.Scan(t.Context(), reader.View{Chunk: chunk}, chunk.Range, false)
	for it.Next(t.Context()) {
		if string(it.Row().Key) != string(idKey(id)) {
			check(t, sw.Add(it.Row()))
			rows++
		}
	}
	check(t, it.Err())
	retries, err := store.Retries(t.Context(), reader.View{Chunk: chunk}, 0)
	check(t, err)
	for _, e := range retries {
		check(t, sw.AddRetry(e))
	}
	check(t, sw.Cut(segment.Part{Collection: chunk.Collection, Clip: chunk.Range}))
	body, _, err := sw.Finish()
	check(t, err)
	ref := sw.Refs()[0]
	_, err = w.mem.Put(t.Context(), ref.Segment.Key(), body, bucket.Condition{})
	check(t, err)
	check(t, w.commit(manifest.RegisterJob{Job: job},
		manifest.Compact{Job: job.ID, Chunk: chunk.At(), Inputs: chunk.Refs, Outputs: []manifest.SegmentRef{ref}, Oldest: true, Rows: rows}))
}

// pointRange is the range of one row key.
func pointRange(id any) []shardkey.Range {
	k := idKey(id)
	return []shardkey.Range{{Min: k, Max: shardkey.PrefixEnd(k)}}
}

var doc500 = doc("{_id: 500}")
