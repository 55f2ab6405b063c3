package balancer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// yard is a root with two held shards and owners that do what a test says.
type yard struct {
	t    *testing.T
	root *manifest.Root
	// asked counts requests; answer is what each does, after which the owner has moved the
	// chunks or not.
	asked  int
	answer func(*rpc.MoveRequest) (move bool, err error)
}

type owner struct {
	rpc.Owner
	y *yard
}

func (y *yard) Dial(manifest.ShardID, string, string) (rpc.Owner, error) { return owner{y: y}, nil }

func (o owner) Loads(context.Context, *rpc.LoadsRequest) (*rpc.LoadsReply, error) {
	return &rpc.LoadsReply{}, nil
}

func (o owner) Move(_ context.Context, r *rpc.MoveRequest) (*rpc.MoveReply, error) {
	o.y.asked++
	move, err := o.y.answer(r)
	if move {
		st := o.y.root.State()
		for _, at := range r.Chunks {
			to := st.Shard(r.To)
			o.y.commit(manifest.Move{Chunk: at, From: r.Shard, FromEpoch: st.Shard(r.Shard).Epoch, To: r.To, ToEpoch: to.Epoch, Promise: manifest.Position{Epoch: to.Epoch}})
		}
	}
	return &rpc.MoveReply{}, err
}

func (y *yard) commit(changes ...manifest.Change) {
	y.t.Helper()
	h := host.System()
	if _, err := y.root.Commit(context.Background(), manifest.Edit{Op: h.ID16(), Changes: changes, Millis: h.Wall().UnixMilli()}); err != nil {
		y.t.Fatal(err)
	}
}

// inYard makes a collection of chunks on shard a, and none on b.
func inYard(t *testing.T, chunks int, f func(y *yard)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := host.System()
		cell := bucket.NewCell(membucket.New())
		if _, err := manifest.Create(context.Background(), cell, h, manifest.InitOptions{Shards: []manifest.ShardID{"a", "b"}}); err != nil {
			t.Fatal(err)
		}
		y := &yard{t: t, root: manifest.NewRoot(cell, h, nil)}
		y.commit(manifest.Claim{Shard: "a", Holder: "p"}, manifest.Claim{Shard: "b", Holder: "p"})
		c := manifest.Collection{Database: "db", Name: "c", UUID: [16]byte{1}, Sharded: true, Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}}
		low := manifest.Bound{BSON: c.Key.MinBSON()}
		var list []manifest.NewChunk
		for i := range chunks {
			high := manifest.Bound{BSON: c.Key.MaxBSON()}
			if i < chunks-1 {
				doc, _ := bson.Marshal(bson.D{{Key: "k", Value: i}})
				key, full, err := c.Key.Bound(doc)
				if err != nil {
					t.Fatal(err)
				}
				high = manifest.Bound{Key: key, BSON: full}
			}
			list = append(list, manifest.NewChunk{Min: low, Max: high, Shard: "a", ManualUntil: 1 << 40})
			low = high
		}
		y.commit(manifest.CreateCollection{Collection: c, Chunks: list})
		f(y)
	})
}

func (y *yard) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	b := New(Config{Root: y.root, Dial: y, Host: host.System(), Holder: "me"})
	go func() { defer close(done); _ = b.Run(ctx) }()
	return func() { cancel(); <-done }
}

func (y *yard) on(id manifest.ShardID) (n int) {
	for c := range y.root.State().AllChunks() {
		if c.Shard == id {
			n++
		}
	}
	return n
}

// TestFailedMovesWaitLongerEachTime has every move fail for an hour: the chunks are asked for
// ever more seldom, the wait and its cause are in the root for the next balancer and for people;
// and when moves work again, the chunks go.
func TestFailedMovesWaitLongerEachTime(t *testing.T) {
	inYard(t, 4, func(y *yard) {
		y.answer = func(*rpc.MoveRequest) (bool, error) {
			return false, fmt.Errorf("shard b: %w: it does not answer", errkind.Throttled)
		}
		stop := y.run()
		time.Sleep(time.Hour)
		if y.asked < 5 || y.asked > 40 { // two chunks should go, and any two of the four would do
			t.Errorf("%d requests in an hour of failures", y.asked)
		}
		stop()
		last, _ := balancing.LastRound(y.root.State())
		if len(last.Failures) != 4 || last.InRound || last.Failures[0].Tries < 5 {
			t.Errorf("%+v", last)
		}
		v := policy.Make(policy.Input{State: y.root.State(), NowMillis: time.Now().UnixMilli(), Failures: last.Failures}).Verdicts[0]
		if v.Violation != "chunksImbalance" || len(v.Sentence) < 40 {
			t.Errorf("%+v", v)
		}
		y.answer = func(*rpc.MoveRequest) (bool, error) { return true, nil }
		stop = y.run()
		time.Sleep(15 * time.Minute)
		stop()
		if last, _ := balancing.LastRound(y.root.State()); y.on("b") != 2 || len(last.Failures) > 2 {
			t.Errorf("%d chunks moved, %+v", y.on("b"), last.Failures)
		}
	})
}

// TestTheRootTellsWhatAnAnswerDoesNot: moves that happened and whose answer was lost are not
// asked for again.
func TestTheRootTellsWhatAnAnswerDoesNot(t *testing.T) {
	inYard(t, 4, func(y *yard) {
		y.answer = func(*rpc.MoveRequest) (bool, error) {
			return true, errors.Join(errkind.UnknownOutcome, errors.New("no answer"))
		}
		stop := y.run()
		time.Sleep(10 * time.Minute)
		stop()
		if last, _ := balancing.LastRound(y.root.State()); y.asked != 1 || y.on("b") != 2 || len(last.Failures) != 0 {
			t.Errorf("%d requests, %d chunks moved, %+v", y.asked, y.on("b"), last)
		}
	})
}

// TestARoundThatWasLeftIsEnded finds the record of a balancer that died in a round: after its
// patience the next one ends the round, also when there is nothing to move.
func TestARoundThatWasLeftIsEnded(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		put, err := balancing.Round{Holder: "dead", Rounds: 7, InRound: true}.Put(nil)
		if err != nil {
			t.Fatal(err)
		}
		y.commit(put)
		stop := y.run()
		defer stop()
		time.Sleep(10 * time.Second)
		if last, _ := balancing.LastRound(y.root.State()); !last.InRound {
			t.Error("the round was ended before its balancer had its time")
		}
		time.Sleep(time.Minute)
		if last, _ := balancing.LastRound(y.root.State()); last.InRound || last.Rounds != 7 {
			t.Errorf("%+v", last)
		}
	})
}
