package main

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/diskcache"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/wire"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metered is everything that /metrics shows. The figures are read when they are asked for:
// nothing is counted twice.
type metered struct {
	prices   Prices
	counts   atomic.Pointer[[]*layer.Metered]
	registry *prometheus.Registry
	base     atomic.Pointer[localstack.Base]
	writer   atomic.Pointer[writer.Writer]    // nil in a router
	server   atomic.Pointer[wire.Server]      // nil in a writer
	router   atomic.Pointer[router.Router]    // nil in a writer
	disk     atomic.Pointer[diskcache.Cached] // nil without one
	epochs   epochs
}

func newMetered(prices Prices) *metered {
	m := &metered{registry: prometheus.NewRegistry(), prices: prices}
	scheduler := collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsScheduler))
	m.registry.MustRegister(m, scheduler, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// wrap makes the requests to a store count, and those to the locations of shards together with
// them.
func (m *metered) wrap(b bucket.Bucket) bucket.Bucket {
	counts := layer.Metrics(b)
	for {
		was := m.counts.Load()
		now := []*layer.Metered{counts}
		if was != nil {
			now = append(slices.Clone(*was), counts)
		}
		if m.counts.CompareAndSwap(was, &now) {
			return counts
		}
	}
}

// watch adds the figures of a process that runs; w is nil when it holds no shards.
func (m *metered) watch(b *localstack.Base, w *writer.Writer) {
	b.Root.AddObserver(m.epochs.see)
	m.epochs.see(b.Root.State())
	m.writer.Store(w)
	m.base.Store(b)
}

// epochs counts the claims of shards that this process has seen in roots.
type epochs struct {
	mu    sync.Mutex
	last  map[manifest.ShardID]manifest.Epoch
	moved int64
}

// see is an observer of the root.
func (e *epochs) see(st *manifest.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.last == nil
	if first {
		e.last = make(map[manifest.ShardID]manifest.Epoch)
	}
	for _, s := range st.Shards() {
		if was := e.last[s.ID]; !first && s.Epoch > was {
			e.moved += int64(s.Epoch - was)
		}
		e.last[s.ID] = max(s.Epoch, e.last[s.ID])
	}
}

func (e *epochs) count() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.moved
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("granary_"+name, help, labels, nil)
}

var (
	requestsDesc = desc("bucket_requests_total", "Requests to the bucket.", "verb", "class")
	failedDesc   = desc("bucket_requests_failed_total", "Requests that were answered with an error of any kind.", "verb", "class")
	bytesDesc    = desc("bucket_bytes_total", "Bytes of bodies sent and received.", "verb", "class")
	costDesc     = desc("bucket_cost_dollars_total", "What the requests cost by the price table.", "verb", "class", "prices")
	epochDesc    = desc("epoch_changes_total", "Claims of shards, by any process, seen since the start.")
	commitDesc   = desc("root_commits_total", "Root commits of this process.")
	raceDesc     = desc("root_lost_races_total", "Root commits that another process's overtook, and that were planned again.")
	unclearDesc  = desc("root_unclear_answers_total", "Answers to root commits that said neither yes nor no.")
	storeAgeDesc = desc("store_answer_age_seconds", "Since the store last answered a look at the root.")
	freshDesc    = desc("corrupt_answers_total", "Bytes that a cache or the store answered and that were found to be wrong: they were asked for again, past all caches.")
	alarmDesc    = desc("corrupt_errors_total", "Errors that end here because stored bytes are not what was written, also when asked for again. Not 0: run granary fsck.")
	diskDesc     = desc("disk_cache_reads_total", "Reads of immutable objects by what the disk cache had of them: all, a part, or nothing.", "found")
	damagedDesc  = desc("disk_cache_damaged_total", "Files of the disk cache that did not match their checksums.")
	diskUsedDesc = desc("disk_cache_bytes", "What the disk cache takes.")
	deletedDesc  = desc("gc_deletions_total", "Objects that this process's sweeps deleted.")
	cacheDesc    = desc("cache_bytes", "Decoded blocks in memory.")
	connsDesc    = desc("connections", "Connections of drivers now.")
	commandsDesc = desc("commands_total", "Requests of drivers.")
	panicsDesc   = desc("command_panics_total", "Requests of drivers that ended in a panic.")
	bufferedDesc = desc("buffered_bytes", "Messages being read, handled or sent.")
	timesDesc    = desc("request_seconds", "From when a driver's request begins to arrive until its reply is sent: what was answered, and what was refused at the door.", "outcome")
	refusedDesc  = desc("refused_total", "What was refused for want of room, by reason.", "reason")
	usedDesc     = desc("bound_used", "How much of a bound is used: requests under way, or bytes.", "bound")
	boundDesc    = desc("bound_limit", "The bound; that of requests moves with the load.", "bound")
	waitingDesc  = desc("bound_waiting", "Requests that wait for room.", "bound")
	rootDesc     = desc("root_version", "Newest root version seen.")
	memoryDesc   = desc("memtable_bytes", "Unflushed rows of all shards.")
	reachDesc    = desc("operations_total", "Operations and statements by the shards that they had to ask: one, some or all.", "ns", "op", "shards")
	shareDesc    = desc("targeted_share", "Part of a collection's operations that did not have to ask all shards.", "ns")
	shapesDesc   = desc("broadcasts", "The most frequent kinds of operations that had to ask all shards, without values.", "ns", "op", "shape")
	hotDesc      = desc("hot_tail_share", "Part of a collection's inserts that go to the upper end of one chunk of this process, where nearly all do.", "ns", "shard")
	limitDesc    = desc("memtable_limit_bytes", "At this much, writes wait.")
)

// shardGauge is one figure of a held shard.
type shardGauge struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*writer.ShardStatus) float64
}

var shardGauges = []shardGauge{
	{desc("shard_epoch", "Epoch of this process's claim.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return float64(s.Epoch) }},
	{desc("shard_serving", "1 while reads and writes are answered.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return oneIf(s.Phase == writer.Serving) }},
	{desc("shard_chunks", "Chunks owned.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return float64(s.Chunks) }},
	{desc("shard_wal_objects", "Log objects that a takeover would replay.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return float64(s.WALObjects) }},
	{desc("shard_wal_bytes", "Bytes of log that a takeover would replay.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return float64(s.WALBytes) }},
	{desc("shard_lease_left_seconds", "How long reads need no look at the bucket.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return s.LeaseLeft.Seconds() }},
	{desc("shard_last_ack_age_seconds", "Since the last batch was stored; negative: never.", "shard"), prometheus.GaugeValue, func(s *writer.ShardStatus) float64 { return s.SinceAck.Seconds() }},
	{desc("shard_batches_total", "Log objects stored.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Batches) }},
	{desc("shard_records_total", "Writes stored.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Records) }},
	{desc("shard_flushes_total", "Flushes committed.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Flushes) }},
	{desc("shard_moves_total", "Chunks handed over.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Moves) }},
	{desc("shard_unknown_outcomes_total", "Writes whose outcome nobody was told.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Unknown) }},
	{desc("shard_fenced_total", "Times that another epoch was seen.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Fenced) }},
	{desc("shard_throttled_total", "Writes refused for want of room.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Throttled) }},
	{desc("shard_retries_answered_total", "Retried writes answered from the retry table.", "shard"), prometheus.CounterValue, func(s *writer.ShardStatus) float64 { return float64(s.Counts.Retries) }},
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector: the set of figures depends on the shards held.
func (m *metered) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *metered) Collect(out chan<- prometheus.Metric) {
	m.collectBucket(out)
	if b := m.base.Load(); b != nil {
		m.collectBase(out, b)
	}
	if w := m.writer.Load(); w != nil {
		collectWriter(out, w.Status())
	}
	if s := m.server.Load(); s != nil {
		collectServer(out, s.Stats())
	}
	if r := m.router.Load(); r != nil {
		collectRouter(out, r)
	}
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (m *metered) collectBucket(out chan<- prometheus.Metric) {
	counts := m.counts.Load()
	if counts == nil {
		return
	}
	var sum layer.Snapshot
	fresh := int64(0)
	for _, c := range *counts {
		sum, fresh = sum.Add(c.Snapshot()), fresh+c.Fresh()
	}
	counter(out, freshDesc, float64(fresh))
	if d := m.disk.Load(); d != nil {
		s := d.Stats()
		counter(out, diskDesc, float64(s.Hits-s.Partial), "all")
		counter(out, diskDesc, float64(s.Partial), "part")
		counter(out, diskDesc, float64(s.Misses), "nothing")
		counter(out, damagedDesc, float64(s.Corrupt))
		gauge(out, diskUsedDesc, float64(s.Bytes))
	}
	for v, verb := range sum {
		for c, n := range verb {
			if n.Requests == 0 {
				continue
			}
			labels := []string{layer.Verb(v).String(), layer.Class(c).String()}
			counter(out, requestsDesc, float64(n.Requests), labels...)
			counter(out, failedDesc, float64(n.Failed), labels...)
			counter(out, bytesDesc, float64(n.Bytes), labels...)
			counter(out, costDesc, m.prices.Cost(layer.Verb(v), n), append(labels, m.prices.Name)...)
		}
	}
}

func (m *metered) collectBase(out chan<- prometheus.Metric, b *localstack.Base) {
	root := b.Root.Stats()
	gauge(out, rootDesc, float64(b.Root.State().Version()))
	counter(out, commitDesc, float64(root.Commits))
	counter(out, raceDesc, float64(root.LostRaces))
	counter(out, unclearDesc, float64(root.Unclear))
	counter(out, epochDesc, float64(m.epochs.count()))
	counter(out, deletedDesc, float64(b.Collected()))
	if r := b.Rewriter(); r != nil {
		collectCompaction(out, r, m.writer.Load())
	}
	counter(out, alarmDesc, float64(b.Alarm.Found().Count))
	gauge(out, storeAgeDesc, b.SinceStore().Seconds())
	gauge(out, cacheDesc, float64(b.Cache.Used()))
	if u := b.Upkeep(); u != nil {
		for _, h := range u.HotTails() {
			gauge(out, hotDesc, h.Share, h.Collection.Namespace(), string(h.Chunk.Shard))
		}
	}
	for _, n := range append(b.Bounds(m.writer.Load()), b.Gate.Bound()) {
		gauge(out, usedDesc, float64(n.Used), n.Name)
		gauge(out, boundDesc, float64(n.Limit), n.Name)
		gauge(out, waitingDesc, float64(n.Waiting), n.Name)
		counter(out, refusedDesc, float64(n.Refused), n.Name)
	}
}

func collectWriter(out chan<- prometheus.Metric, status writer.Status) {
	gauge(out, memoryDesc, float64(status.MemoryBytes))
	gauge(out, limitDesc, float64(status.MemoryLimit))
	throttled := int64(0)
	for i := range status.Shards {
		s := &status.Shards[i]
		throttled += s.Counts.Throttled
		for _, g := range shardGauges {
			out <- prometheus.MustNewConstMetric(g.desc, g.kind, g.value(s), string(s.ID))
		}
	}
	counter(out, refusedDesc, float64(throttled), "memtable")
}

func collectServer(out chan<- prometheus.Metric, s wire.Stats) {
	gauge(out, connsDesc, float64(s.Open))
	counter(out, commandsDesc, float64(s.Requests))
	counter(out, panicsDesc, float64(s.Panics))
	gauge(out, bufferedDesc, float64(s.Buffered))
	counter(out, refusedDesc, float64(s.Refused), "connections")
	histogram(out, timesDesc, s.Answers, "answered")
	histogram(out, timesDesc, s.Refusals, "refused")
}

func histogram(out chan<- prometheus.Metric, d *prometheus.Desc, t wire.Times, labels ...string) {
	var n uint64
	below := make(map[float64]uint64, len(wire.TimesBounds))
	for i, bound := range wire.TimesBounds {
		n += uint64(t.Counts[i])
		below[bound.Seconds()] = n
	}
	n += uint64(t.Counts[len(wire.TimesBounds)])
	out <- prometheus.MustNewConstHistogram(d, n, t.Sum.Seconds(), below, labels...)
}
