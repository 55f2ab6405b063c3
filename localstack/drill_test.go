package localstack_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/backup"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/chunkstore/repair"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// drills is how many lives each drill ends; more by hand: -drills 200.
var drills = flag.Int("drills", 4, "how many random lives of a cluster end in each drill")

// drill is a cluster with a random life, and what its clients were told.
type drill struct {
	t     *testing.T
	rng   *rand.Rand
	mem   *membucket.Bucket
	eu    *membucket.Bucket // where shard03 is in every other life
	stack *localstack.Stack
	away  bool            // nobody can reach it
	want  map[int32]int32 // _id, which is the shard key, to v
}

// drilled runs f on a cluster that has lived for a while, in virtual time. The last copy of its
// root is some seconds to a minute old.
func drilled(t *testing.T, f func(d *drill)) { drilledIn(t, 2, f) }

// drilledIn is drilled, with a shard that has a bucket of its own where the rest of the seed by
// places is 1.
func drilledIn(t *testing.T, places int, f func(d *drill)) {
	for seed := range *drills {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &drill{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 1)), mem: membucket.New(), eu: membucket.New(), want: map[int32]int32{}}
				d.stack = open(t, d.mem, localstack.Options{Shards: 3 - seed%places, NoBalancer: true, OpenLocation: d.open})
				defer func() { _ = d.stack.Close(context.Background()) }()
				if seed%places == 1 {
					do(t, d.stack, "admin", bson.D{{Key: "addShard", Value: "shard03/s3://eu"}})
					time.Sleep(5 * time.Second) // somebody holds it
				}
				do(t, d.stack, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
					{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: 100}}, bson.D{{Key: "_id", Value: 200}}}}})
				for range 40 {
					d.step()
				}
				time.Sleep(20 * time.Minute) // what was dropped is collected, as far as it may
				for range 10 + d.rng.IntN(30) {
					d.step()
				}
				f(d)
			})
		})
	}
}

// open opens the one location.
func (d *drill) open(context.Context, string) (bucket.Bucket, error) {
	if d.away {
		return nil, fmt.Errorf("no route to it: %w", errkind.Throttled)
	}
	return d.eu, nil
}

// places are those of a process that knows nothing yet.
func (d *drill) places() *places.Places { return places.New(d.mem, d.open, host.System(), nil) }

// at is where an object of a location is.
func (d *drill) at(id manifest.LocationID) *membucket.Bucket {
	if id != 0 {
		return d.eu
	}
	return d.mem
}

// step is one thing that happens: mostly writes, and what moves data about.
func (d *drill) step() {
	id, v := d.rng.Int32N(300), d.rng.Int32()
	at := bson.D{{Key: "_id", Value: id}}
	switch d.rng.IntN(10) {
	case 0, 1, 2, 3:
		for range 5 {
			id = d.rng.Int32N(300)
			do(d.t, d.stack, "shop", bson.D{{Key: "update", Value: "orders"}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}}}, {Key: "upsert", Value: true}}}}})
			d.want[id] = v
		}
	case 4:
		do(d.t, d.stack, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: id}, {Key: "$lt", Value: id + 20}}}}}, {Key: "limit", Value: 0}}}}})
		for k := id; k < id+20; k++ {
			delete(d.want, k)
		}
	case 5: // a snapshot has all shards flush
		name := fmt.Sprint(v)
		if _, err := d.stack.Router.CreateSnapshot(d.t.Context(), name, 0, 0); err != nil {
			d.t.Fatal(err)
		}
		if err := d.stack.Router.DropSnapshot(d.t.Context(), name, 0); err != nil {
			d.t.Fatal(err)
		}
	case 6:
		if c := d.chunkOf(id); d.rng.IntN(2) == 0 && !strings.Contains(c.MinBSON.String(), fmt.Sprintf("%q", fmt.Sprint(id))) {
			do(d.t, d.stack, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: at}})
		}
	case 7, 8:
		to := fmt.Sprintf("shard%02d", 1+d.rng.IntN(3))
		if string(d.chunkOf(id).Shard) != to {
			do(d.t, d.stack, "admin", bson.D{{Key: "moveChunk", Value: "shop.orders"}, {Key: "find", Value: at}, {Key: "to", Value: to}})
		}
	default:
		time.Sleep(time.Duration(d.rng.IntN(30)) * time.Second)
	}
}

func (d *drill) chunkOf(id int32) *manifest.Chunk {
	state := d.stack.Root.State()
	coll := state.CollectionByName("shop", "orders")
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
	d.must(err)
	key, err := coll.Key.AppendKey(nil, doc)
	d.must(err)
	return state.ChunkOf(coll.ID, key)
}

func (d *drill) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// kill ends the cluster as kill -9 does.
func (d *drill) kill() {
	d.stack.Writer.Abandon()
	_ = d.stack.Close(context.Background())
}

// repair runs a repair, dry first: which changes nothing.
func (d *drill) repair(o repair.Options) (*repair.Report, error) {
	d.t.Helper()
	before := d.keys("")
	dry, dryErr := d.repairer().Run(d.t.Context(), o)
	if diff := cmp.Diff(before, d.keys("")); diff != "" {
		d.t.Errorf("a dry run wrote: %s", diff)
	}
	o.Write = true
	did, err := d.repairer().Run(d.t.Context(), o)
	if (dryErr == nil) != (err == nil) || len(dry.Lost) != len(did.Lost) || dry.Root != did.Root {
		d.t.Errorf("dry %+v %v, then %+v %v", dry, dryErr, did, err)
	}
	return did, err
}

func (d *drill) repairer() *repair.Repairer {
	return &repair.Repairer{Bucket: d.mem, At: d.places().At, Host: host.System()}
}

// keys are those of all buckets.
func (d *drill) keys(prefix string) (keys []string) {
	for _, b := range []bucket.Bucket{d.mem, d.eu} {
		for after, more := "", true; more; {
			page, further, err := b.List(context.Background(), prefix, after, 0)
			d.must(err)
			for _, a := range page {
				keys, after = append(keys, a.Key), a.Key
			}
			more = further
		}
	}
	return keys
}

// of is the bucket that has an object.
func (d *drill) of(key string) *membucket.Bucket {
	if _, err := d.eu.Head(context.Background(), key); err == nil {
		return d.eu
	}
	return d.mem
}

// reopen starts the cluster again; its documents are what they must be, but for those that lost
// says may be anything, and it is clean.
func (d *drill) reopen(lost func(id int32) bool) {
	d.t.Helper()
	d.stack = open(d.t, d.mem, localstack.Options{NoBalancer: true, OpenLocation: d.open})
	have := map[int32]int32{}
	reply := do(d.t, d.stack, "shop", bson.D{{Key: "find", Value: "orders"}, {Key: "batchSize", Value: 1000}})
	list, err := reply.Lookup("cursor", "firstBatch").Array().Values()
	d.must(err)
	for _, x := range list {
		have[x.Document().Lookup("_id").Int32()] = x.Document().Lookup("v").Int32()
	}
	want := map[int32]int32{}
	for id, v := range d.want {
		want[id] = v
	}
	for id := range int32(320) {
		if lost != nil && lost(id) {
			delete(want, id)
			delete(have, id)
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		d.t.Errorf("documents, -acknowledged +served:\n%s", diff)
	}
	d.step() // it can be written to
	for _, p := range d.fsck().Problems {
		// Rows of a segment that was given up are counted as long as their owner had newer ones.
		if p.Rule != fsck.RuleCount || lost == nil {
			d.t.Errorf("fsck: %+v", p)
		}
	}
}

func (d *drill) fsck() *fsck.Report {
	d.t.Helper()
	p := d.places()
	c := &fsck.Checker{Root: p.Root(), Bucket: d.mem, Deep: true, Open: p.Open}
	r, err := c.Run(context.Background())
	d.must(err)
	return r
}

func (d *drill) remove(key string) { d.t.Helper(); d.must(d.of(key).Delete(context.Background(), key)) }

func (d *drill) damage(key string) {
	d.t.Helper()
	o, err := d.of(key).Get(context.Background(), key, bucket.GetOptions{})
	d.must(err)
	body := slices.Clone(o.Body)
	body[len(body)/2] ^= 1
	_, err = d.of(key).Put(context.Background(), key, body, bucket.Condition{})
	d.must(err)
}

// A root that is lost or damaged, whatever moved, was split, merged or collected since its last
// copy, costs no document that was acknowledged.
func TestDrillRootLost(t *testing.T) {
	drilled(t, func(d *drill) {
		d.kill()
		if d.rng.IntN(2) == 0 {
			d.remove(manifest.RootKey)
		} else {
			d.damage(manifest.RootKey)
		}
		if _, err := localstack.Open(context.Background(), d.mem, host.System(), localstack.Options{}); !errors.Is(err, errkind.Corrupt) {
			t.Fatalf("opened without a root: %v", err)
		}
		r, err := d.repair(repair.Options{})
		if err != nil {
			d.t.Fatalf("%v: %+v", err, r)
		}
		if !r.Healed || r.Root == "" || r.Copy == "" || r.Version == 0 || len(r.Lost) > 0 {
			d.t.Errorf("%+v", r)
		}
		d.reopen(nil)
		if r, err := d.repair(repair.Options{Deep: true}); err != nil || !r.Clean() {
			d.t.Errorf("a second repair: %+v, %v", r, err)
		}
	})
}

// A location that cannot be reached is named, and not taken for an empty one: nothing is written until
// it is there again.
func TestDrillRootLostAndALocationAway(t *testing.T) {
	drilled(t, func(d *drill) {
		if !d.state().Spread() {
			return
		}
		d.kill()
		d.remove(manifest.RootKey)
		before := d.keys("")
		d.away = true
		for _, o := range []repair.Options{{}, {Write: true}, {Write: true, AcceptLoss: true}} {
			if r, err := d.repairer().Run(d.t.Context(), o); err == nil || !strings.Contains(err.Error(), "s3://eu") {
				d.t.Errorf("%+v: %+v, %v", o, r, err)
			}
		}
		if diff := cmp.Diff(before, d.keys("")); diff != "" {
			d.t.Errorf("written: %s", diff)
		}
		d.away = false
		if r, err := d.repair(repair.Options{}); err != nil || !r.Healed || len(r.Lost) > 0 {
			d.t.Fatalf("%+v, %v", r, err)
		}
		d.reopen(nil)
	})
}

// A collection that was made a moment before the root is lost comes back, with its documents.
func TestDrillRootLostAfterACreate(t *testing.T) {
	drilled(t, func(d *drill) {
		time.Sleep(2 * time.Second)
		do(d.t, d.stack, "shop", bson.D{{Key: "insert", Value: "fresh"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}}}})
		time.Sleep(200 * time.Millisecond)
		d.kill()
		d.remove(manifest.RootKey)
		if r, err := d.repair(repair.Options{}); err != nil || !r.Healed || len(r.Lost) > 0 {
			d.t.Fatalf("%v: %+v", err, r)
		}
		d.reopen(nil)
		if n := do(d.t, d.stack, "shop", bson.D{{Key: "count", Value: "fresh"}}).Lookup("n").AsInt64(); n != 2 {
			d.t.Errorf("%d documents of the young collection", n)
		}
	})
}

// idsOf are the documents that keys are of.
func (d *drill) idsOf(keys map[string]bool) func(int32) bool {
	coll := d.state().CollectionByName("shop", "orders")
	ids := map[int32]bool{}
	for id := range int32(320) {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		d.must(err)
		key, err := coll.Key.AppendKey(nil, doc)
		d.must(err)
		ids[id] = keys[string(key)]
	}
	return func(id int32) bool { return ids[id] }
}

func (d *drill) state() *manifest.State {
	s, _, err := d.places().Root().Load(context.Background())
	d.must(err)
	return s
}

// loses runs a repair that must not go on before the loss of an object is accepted, and then must.
func (d *drill) loses(object string, o repair.Options) {
	d.t.Helper()
	r, err := d.repair(o)
	if err == nil && slices.Contains(r.Needless, object) {
		return
	}
	if !errors.Is(err, repair.ErrLoss) || !slices.ContainsFunc(r.Lost, func(p fsck.Problem) bool { return p.Object == object && len(p.AtStake) > 0 }) {
		d.t.Fatalf("%s is lost: %+v, %v", object, r, err)
	}
	o.AcceptLoss = true
	if r, err = d.repair(o); err != nil || !r.Healed || r.Version == 0 {
		d.t.Fatalf("%+v, %v", r, err)
	}
}

// A segment that is lost or damaged is named with its documents; when that is accepted, all
// others are served.
func TestDrillSegmentLost(t *testing.T) {
	drilled(t, func(d *drill) {
		d.kill()
		var refs []manifest.SegmentRef
		for c := range d.state().AllChunks() {
			refs = append(refs, c.Refs...)
		}
		ref := refs[d.rng.IntN(len(refs))]
		keys := map[string]bool{}
		d.must(segment.Verify(context.Background(), func(ctx context.Context, off, n int64) ([]byte, error) {
			o, err := d.at(ref.Location).Get(ctx, ref.Segment.Key(), bucket.GetOptions{Offset: off, Length: n})
			return o.Body, err
		}, ref, func(r segment.Row) error { keys[string(r.Key)] = true; return nil }))
		if d.rng.IntN(2) == 0 {
			d.remove(ref.Segment.Key())
		} else {
			d.damage(ref.Segment.Key())
		}
		d.loses(ref.Segment.Key(), repair.Options{Deep: true})
		d.reopen(d.idsOf(keys))
	})
}

// An object of a log that is lost or damaged is named with the documents that may have been in
// it; when that is accepted, all others are served, also those that were logged behind it.
func TestDrillLogObjectLost(t *testing.T) {
	drilled(t, func(d *drill) {
		d.stack.Writer.Abandon()
		_ = d.stack.Close(context.Background())
		var lost []string
		for _, key := range d.keys("wal/") {
			shard, epoch, index, err := manifest.ParseWALKey(key)
			d.must(err)
			if s := d.state().Shard(shard); !s.Floor.Covers(epoch, index) && slices.Contains(d.keys("wal/"), manifest.WALKey(shard, epoch, index+1)) {
				lost = append(lost, key)
			}
		}
		if len(lost) == 0 {
			return // all is flushed, or the last of its log: of that nothing tells
		}
		key := lost[d.rng.IntN(len(lost))]
		o, err := d.of(key).Get(context.Background(), key, bucket.GetOptions{})
		d.must(err)
		_, records, err := wal.Decode(o.Body)
		d.must(err)
		keys := map[string]bool{}
		for _, r := range records {
			keys[string(r.Key)] = true
		}
		root := d.rng.IntN(2) == 0
		ids := d.idsOf(keys)
		if d.rng.IntN(2) == 0 {
			d.remove(key)
		} else {
			d.damage(key)
		}
		if root {
			d.remove(manifest.RootKey) // both
		}
		d.loses(key, repair.Options{})
		d.reopen(ids)
	})
}

// With everything lost that says which collections there are, a repair makes nothing up: it says
// to use a backup. With all segments lost, it names every chunk.
func TestDrillPrefixLost(t *testing.T) {
	drilled(t, func(d *drill) {
		d.kill()
		state := d.state()
		for _, key := range d.keys("seg/") {
			d.remove(key)
		}
		r, err := d.repair(repair.Options{})
		if !errors.Is(err, repair.ErrLoss) {
			d.t.Errorf("without segments: %+v, %v", r, err)
		}
		for c := range state.AllChunks() {
			if len(c.Refs) > 0 && !slices.ContainsFunc(r.Lost, func(p fsck.Problem) bool { return p.AtStake[0].Chunk == c.ID }) {
				d.t.Errorf("chunk %d is not named", c.ID)
			}
		}
		for _, key := range d.keys("meta/") {
			d.remove(key)
		}
		if r, err := d.repair(repair.Options{AcceptLoss: true}); !errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), "granary restore") {
			d.t.Errorf("without any root: %+v, %v", r, err)
		}
	})
}

// A backup of a moment, copied while documents and chunks go on changing, and restored elsewhere,
// is exactly the documents of that moment.
func TestDrillBackupUnderLoad(t *testing.T) {
	drilledIn(t, 1, func(d *drill) {
		ctx, to, moment := context.Background(), membucket.New(), map[int32]int32{}
		pin, err := d.stack.Router.CreateSnapshot(ctx, "moment", 0, 0)
		d.must(err)
		for id, v := range d.want {
			moment[id] = v
		}
		plan, err := backup.Read(ctx, d.mem, manifest.PinKey(pin.ID))
		d.must(err)
		d.must(backup.Begin(ctx, to, "one"))
		_, err = (&backup.Copier{From: d.mem, To: to, Parallel: 1, Progress: func(backup.Result) { d.step() }}).Copy(ctx, plan)
		d.must(err)
		time.Sleep(20 * time.Minute) // the pin is what keeps its objects
		_, err = (&backup.Copier{From: d.mem, To: to}).Copy(ctx, plan)
		d.must(err)
		d.must(backup.Finish(ctx, to, "one", plan))
		d.must(backup.End(ctx, to, "one"))
		d.kill()
		d.mem, d.want = restore(d.t, to, "one"), moment
		d.reopen(nil)
	})
}
