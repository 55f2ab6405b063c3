package localstack

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/balancer"
	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor"
	"github.com/granarydb/granary/compactor/expire"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/compactor/rewrite"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router/command"
	"golang.org/x/sync/errgroup"
)

// Base is what every role stands on: the process's view of the root, readers of segments
// with their cache, a name, and a group for what runs in the background.
type Base struct {
	// Root is the process's view of the cluster.
	Root *manifest.Root
	// Balancer is the process's; a router has none.
	Balancer *balancer.Balancer
	// Cache is the process's block cache, for its figures.
	Cache *segment.Cache

	// Alarm has heard what this process found to be Corrupt.
	Alarm *alarm.Bell

	bucket bucket.Bucket
	// Gate lets requests in, and is no larger than the process can bear.
	Gate *admission.Gate

	pot            *admission.Pot
	answers, sorts *admission.Account
	// retries and segments are what a writer needs beside its rows, and a rewriter.
	retries, segments *admission.Account

	places  *places.Places
	store   *reader.Store
	holder  string // the random name of this process
	options Options
	host    host.Host
	log     *slog.Logger

	background context.Context
	stop       context.CancelFunc
	roles      errgroup.Group
	collected  atomic.Int64
	upkeep     *compactor.Upkeep // nil: none
	rewriter   *rewrite.Rewriter // nil: none
}

// newBase opens the root, making a cluster in an empty store.
func newBase(ctx context.Context, b bucket.Bucket, h host.Host, o Options) (*Base, error) {
	o = o.withDefaults()
	at := places.New(b, o.OpenLocation, h, &manifest.RootOptions{HistoryEvery: o.HistoryEvery})
	root := at.Root()
	if err := ensureCluster(ctx, b, root, h, o); err != nil {
		return nil, err
	}
	cache := segment.NewCache(o.CacheBytes)
	name := h.ID16()
	s := &Base{
		Root: root, Cache: cache, bucket: b, places: at, store: reader.NewStore(at.Open, cache),
		holder: hex.EncodeToString(name[:]), options: o, host: h, log: o.Log, Alarm: alarm.New(h.Clock, o.Log),
		Gate: admission.New(h, admission.Settings{Lag: o.Lag}), pot: o.Pot,
		answers: o.Pot.Account("answers", 40), sorts: o.Pot.Account("sorts", 40),
		retries: o.Pot.Account("retry_ids", 40), segments: o.Pot.Account("segments_written", 50),
	}
	s.background, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.run(s.watch)
	s.run(s.Gate.Run)
	return s, nil
}

// run starts something that ends with the process.
func (s *Base) run(role func(context.Context) error) {
	s.roles.Go(func() error { return role(s.background) })
}

// end stops what runs in the background, and returns when nothing does.
func (s *Base) end() error {
	s.stop()
	return errors.Join(s.roles.Wait(), s.places.Close())
}

// Limits bound what an RPC server before this process takes.
func (s *Base) Limits() rpc.Limits {
	return rpc.Limits{Gate: s.Gate, Alarm: s.Alarm, Bodies: s.pot.Account("bodies", 60), Answers: s.answers}
}

// Bounds are the bounds of this process, but for its Gate's: the memory that requests take,
// and the writes that wait in w, which may be nil.
func (s *Base) Bounds(w *writer.Writer) []admission.Bound {
	list := s.pot.Bounds()
	if w != nil {
		list = append(list, w.Status().Waiting)
	}
	return list
}

// answering are the options of a process that answers clients.
func (s *Base) answering(w *writer.Writer) *command.Options {
	return &command.Options{
		Address: s.options.Address, Program: s.options.Program, Log: s.log, Gate: s.Gate, Sorts: s.sorts,
		Alarm: s.Alarm, Bounds: func() []admission.Bound { return s.Bounds(w) }, Verdicts: s.verdicts, HotTails: s.hotTails,
	}
}

// balance makes the process's balancer, and lets it work unless Options say no.
func (s *Base) balance(d rpc.Dialer, address string) {
	s.Balancer = balancer.New(balancer.Config{
		Root: s.Root, Dial: d, Host: s.host, Holder: s.holder, Address: address, Every: s.options.BalanceEvery, Log: s.log,
	})
	if !s.options.NoBalancer {
		s.run(s.Balancer.Run)
	}
}

// verdicts tell how collections stand, for commands: loads are not asked for.
func (s *Base) verdicts(st *manifest.State) []balancing.Verdict {
	last, _ := balancing.LastRound(st)
	return policy.Make(policy.Input{
		State: st, Settings: balancing.Of(st), NowMillis: s.host.Wall().UnixMilli(), Failures: last.Failures,
	}).Verdicts
}

// hotTails are what this process's upkeep says of collections whose inserts go to one chunk.
func (s *Base) hotTails() map[string]string {
	if s.upkeep == nil {
		return nil
	}
	said := make(map[string]string)
	for _, h := range s.upkeep.HotTails() {
		said[h.Collection.Namespace()] = h.String()
	}
	return said
}

// pulseEvery is the time after which a process that has not read the root for any other reason
// does so, to know whether it can reach the store.
const pulseEvery = 6 * time.Second

// watch reads the root now and then; a writer does it itself, once in a lease.
func (s *Base) watch(ctx context.Context) error {
	for {
		if s.SinceStore() >= pulseEvery {
			limited, cancel := s.host.WithTimeout(ctx, pulseEvery/2)
			_, _, _ = s.Root.Load(limited)
			cancel()
		}
		if s.host.Sleep(ctx, time.Second+s.host.Jitter(time.Second)) != nil {
			return nil
		}
	}
}

// SinceStore is how long ago the store last answered a look at the root: a few seconds at
// most while it can be reached. It never asks the store.
func (s *Base) SinceStore() time.Duration { return s.host.Mono() - s.Root.Answered() }

// Collected counts the objects that this process's sweeps deleted.
func (s *Base) Collected() int64 { return s.collected.Load() }

// keepUp cuts and merges the chunks of the shards that this process holds, and merges their
// segments.
func (s *Base) keepUp(dial rpc.Dialer) {
	if s.options.UpkeepEvery < 0 {
		return
	}
	s.upkeep = compactor.New(compactor.Config{
		Root: s.Root, Store: s.store, Host: s.host, Dial: dial, Log: s.log, Alarm: s.Alarm,
		Mine: s.holds, Settings: compactor.Settings{Every: s.options.UpkeepEvery},
	})
	s.run(s.upkeep.Run)
	s.compact(s.holds)
}

// compact merges the segments of the chunks of some shards; nil: of all.
func (s *Base) compact(mine func(*manifest.Shard) bool) {
	s.rewriter = rewrite.New(rewrite.Config{
		Root: s.Root, Open: s.places.Open, Host: s.host, Cache: s.Cache, Holder: s.holder, Log: s.log, Alarm: s.Alarm, Mine: mine, Memory: s.segments,
		Settings: rewrite.Settings{
			Every: max(s.options.UpkeepEvery, 0), BytesPerSecond: s.options.CompactBytes, RequestsPerSecond: s.options.CompactRequests,
		},
	})
	s.run(s.rewriter.Run)
}

// holds reports whether a shard is this process's.
func (s *Base) holds(h *manifest.Shard) bool {
	return h.Holder == s.holder && h.Status != manifest.ShardFree
}

// Rewriter is what merges segments in this process; nil: nothing does.
func (s *Base) Rewriter() *rewrite.Rewriter { return s.rewriter }

// merged is how many bytes of segments this process has merged.
func (s *Base) merged() int64 {
	if s.rewriter == nil {
		return 0
	}
	return s.rewriter.Counts().BytesWritten
}

// Upkeep is what cuts and merges the chunks of this process's shards; nil: nothing does.
func (s *Base) Upkeep() *compactor.Upkeep { return s.upkeep }

// collect sweeps, and takes out what has expired, while turn says that it is this process's
// turn. A sweep that fails is the next one's work; two at a time do no harm.
func (s *Base) collect(turn func() bool) func(context.Context) error {
	sweeper := &gc.Sweeper{Root: s.Root, Bucket: s.bucket, Open: s.places.Open, Host: s.host}
	return func(ctx context.Context) error {
		expired, looked, seen := s.host.Mono(), s.host.Mono(), manifest.Version(0)
		for s.host.Sleep(ctx, s.options.CollectEvery) == nil {
			if now := s.host.Mono(); now >= expired+expireEvery && turn() {
				expired = now
				s.expire(ctx)
			}
			for more := true; more && turn(); {
				more = s.sweep(ctx, sweeper)
			}
			if now := s.host.Mono(); now >= looked+orphansEvery && s.Root.State().Version() != seen && turn() {
				looked = now
				s.orphans(ctx, sweeper)
				seen = s.Root.State().Version()
			}
		}
		return nil
	}
}

// expireEvery is the time between two looks for what has expired. Nobody sees it meanwhile, and
// the more goes together the fewer changes of the root it takes.
const expireEvery = 5 * time.Minute

// orphansEvery is the time between two looks for segments that were never committed. A look lists
// all there are, and crashes leave few.
const orphansEvery = time.Hour

// orphans deletes segments that nobody committed, nor can. What fails is the next turn's work.
func (s *Base) orphans(ctx context.Context, sweeper *gc.Sweeper) {
	for left := true; left; {
		o, err := sweeper.Orphans(ctx, false)
		s.collected.Add(o.Deleted)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.log.Warn("orphans stay until the next turn", "cause", err)
			}
			return
		case o.Found > 0:
			s.log.Debug("orphans", "found", o.Found, "bytes", o.FoundBytes, "deleted", o.Deleted)
		}
		left = o.Left
	}
}

// expire takes out what has expired. What fails is the next turn's work.
func (s *Base) expire(ctx context.Context) {
	gone, err := expire.Sweep(ctx, s.Root, s.host)
	switch {
	case err != nil && ctx.Err() == nil:
		s.log.Warn("expired rows stay, unseen, until the next turn", "cause", err)
		s.Alarm.Hear(err)
	case gone > 0:
		s.log.Debug("expired", "references", gone)
	}
}

// sweep sweeps once; more: there is more to delete now. A store that takes many writes makes
// more garbage between two turns than one sweep deletes.
func (s *Base) sweep(ctx context.Context, sweeper *gc.Sweeper) (more bool) {
	r, err := sweeper.Sweep(ctx, false)
	s.collected.Add(int64(r.Deleted))
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		s.log.Warn("sweep failed, the next one goes on", "cause", err)
		s.Alarm.Hear(err)
		return false
	case r.Deleted > 0:
		s.log.Debug("swept", "deleted", r.Deleted, "left", r.Left)
	}
	return r.Left
}
