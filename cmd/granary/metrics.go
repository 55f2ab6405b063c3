package main

import (
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/localstack"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metered is everything that /metrics shows. The figures are read when they are asked for:
// nothing is counted twice.
type metered struct {
	counts   atomic.Pointer[layer.Metered]
	registry *prometheus.Registry
	stack    atomic.Pointer[localstack.Stack]
}

func newMetered() *metered {
	m := &metered{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// wrap makes the requests to a store count.
func (m *metered) wrap(b bucket.Bucket) bucket.Bucket {
	counts := layer.Metrics(b)
	m.counts.Store(counts)
	return counts
}

// watch adds a running stack's figures.
func (m *metered) watch(s *localstack.Stack) { m.stack.Store(s) }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("granary_"+name, help, labels, nil)
}

var (
	requestsDesc = desc("bucket_requests_total", "Requests to the bucket.", "verb", "class")
	failedDesc   = desc("bucket_requests_failed_total", "Requests that were answered with an error of any kind.", "verb", "class")
	bytesDesc    = desc("bucket_bytes_total", "Bytes of bodies sent and received.", "verb", "class")
	rootDesc     = desc("root_version", "Newest root version seen.")
	memoryDesc   = desc("memtable_bytes", "Unflushed rows of all shards.")
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
	var snapshot layer.Snapshot
	if counts := m.counts.Load(); counts != nil {
		snapshot = counts.Snapshot()
	}
	for v, verb := range snapshot {
		for c, n := range verb {
			if n.Requests == 0 {
				continue
			}
			labels := []string{layer.Verb(v).String(), layer.Class(c).String()}
			out <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n.Requests), labels...)
			out <- prometheus.MustNewConstMetric(failedDesc, prometheus.CounterValue, float64(n.Failed), labels...)
			out <- prometheus.MustNewConstMetric(bytesDesc, prometheus.CounterValue, float64(n.Bytes), labels...)
		}
	}
	stack := m.stack.Load()
	if stack == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(rootDesc, prometheus.GaugeValue, float64(stack.Root.State().Version()))
	status := stack.Writer.Status()
	out <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(status.MemoryBytes))
	out <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(status.MemoryLimit))
	for i := range status.Shards {
		s := &status.Shards[i]
		for _, g := range shardGauges {
			out <- prometheus.MustNewConstMetric(g.desc, g.kind, g.value(s), string(s.ID))
		}
	}
}
