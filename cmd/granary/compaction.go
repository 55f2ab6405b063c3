package main

import (
	"fmt"
	"io"

	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/compactor/rewrite"
	"github.com/granarydb/granary/manifest"
	"github.com/prometheus/client_golang/prometheus"
)

// What merging segments costs and leaves, for /metrics and granary status: three amplifications,
// and how far behind it is.
var (
	mergesDesc      = desc("compaction_merges_total", "Runs of segments that this process has replaced.")
	lostMergesDesc  = desc("compaction_lost_merges_total", "Runs of segments that were read in vain: another change came before.")
	mergeJobsDesc   = desc("compaction_jobs_total", "Jobs that this process has registered to merge segments.")
	mergingDesc     = desc("compaction_running", "Chunks whose segments are being merged by this process.")
	toMergeDesc     = desc("compaction_pending", "Chunks that wait for a merge, of those that this process cares for.")
	toMergeByteDesc = desc("compaction_pending_bytes", "How much of them is to be read, as stored.")
	mergeBytesDesc  = desc("compaction_bytes_total", "Bytes that merging segments has read and written, as stored.", "direction")
	mergeAsksDesc   = desc("compaction_requests_total", "Requests for segments that merging them has made.", "direction")
	expiredDesc     = desc("compaction_expired_rows_total", "Rows that were not written again because they had expired.")
	readAmpDesc     = desc("read_amplification", "Segments that a point read may have to ask, in the mean of the chunks and of the worst one.", "of")
	spaceAmpDesc    = desc("space_amplification", "Rows that are stored for each live one.")
	writeAmpDesc    = desc("write_amplification", "Bytes of segments stored for each byte that was flushed, by this process since its start.")
)

// collectCompaction adds what merging segments does; w is nil where nothing is flushed.
func collectCompaction(out chan<- prometheus.Metric, r *rewrite.Rewriter, w *writer.Writer) {
	n, x := r.Counts(), r.Shape()
	counter(out, mergesDesc, float64(n.Merges))
	counter(out, lostMergesDesc, float64(n.Lost))
	counter(out, mergeJobsDesc, float64(n.Jobs))
	gauge(out, mergingDesc, float64(n.Running))
	gauge(out, toMergeDesc, float64(n.Backlog))
	gauge(out, toMergeByteDesc, float64(n.BacklogBytes))
	counter(out, mergeBytesDesc, float64(n.BytesRead), "read")
	counter(out, mergeBytesDesc, float64(n.BytesWritten), "written")
	counter(out, mergeAsksDesc, float64(n.Reads), "read")
	counter(out, mergeAsksDesc, float64(n.Writes), "written")
	counter(out, expiredDesc, float64(n.Expired))
	gauge(out, readAmpDesc, x.Read(), "mean")
	gauge(out, readAmpDesc, float64(x.ReadMost), "worst")
	gauge(out, spaceAmpDesc, x.Space())
	if w == nil {
		return
	}
	flushed := int64(0)
	for _, s := range w.Status().Shards {
		flushed += s.Counts.SegmentBytes
	}
	gauge(out, writeAmpDesc, writeAmplification(flushed, n.BytesWritten))
}

// writeAmplification is how many bytes were stored for each that was flushed.
func writeAmplification(flushed, merged int64) float64 {
	return 1 + float64(merged)/float64(max(flushed, 1))
}

// compactionStatus is how merging segments stands, in all shards.
type compactionStatus struct {
	Running      []jobLine `json:"running"`
	Pending      int       `json:"pending"` // chunks that wait for a merge
	PendingBytes uint64    `json:"pendingBytes"`
	Read         float64   `json:"readAmplification"`
	ReadMost     int       `json:"readAmplificationMost"`
	Space        float64   `json:"spaceAmplification"`
	// What the holders have stored since they started; left out when none of them answers.
	Flushed *int64   `json:"flushedBytes,omitempty"`
	Merged  *int64   `json:"mergedBytes,omitempty"`
	Write   *float64 `json:"writeAmplification,omitempty"`
}

func compactionOfRoot(s *manifest.State) compactionStatus {
	all := func(*manifest.Shard) bool { return true }
	x := plan.Measure(s, all)
	c := compactionStatus{Running: []jobLine{}, Read: x.Read(), ReadMost: x.ReadMost, Space: x.Space()}
	for _, j := range jobLines(s) {
		if j.Kind == manifest.JobCompact {
			c.Running = append(c.Running, j)
		}
	}
	for _, job := range rewrite.Todo(s, all, plan.MergeSettings{}) {
		c.Pending, c.PendingBytes = c.Pending+1, c.PendingBytes+job.Bytes
	}
	return c
}

// ask adds what holders say; nil: one does not answer.
func (c *compactionStatus) ask(replies map[string]*rpc.PingReply) {
	flushed, merged, answers := int64(0), int64(0), 0
	for _, r := range replies {
		if r != nil {
			flushed, merged, answers = flushed+r.FlushedBytes, merged+r.MergedBytes, answers+1
		}
	}
	if answers > 0 {
		write := writeAmplification(flushed, merged)
		c.Flushed, c.Merged, c.Write = &flushed, &merged, &write
	}
}

func (c *compactionStatus) print(out io.Writer) {
	fmt.Fprintln(out, "\nSEGMENTS\tREADS ASK\tAT MOST\tROWS PER LIVE\tWRITTEN PER FLUSHED\tTO MERGE\tBYTES\tJOBS")
	write := "-"
	if c.Write != nil {
		write = fmt.Sprintf("%.2f", *c.Write)
	}
	fmt.Fprintf(out, "\t%.1f\t%d\t%.2f\t%s\t%d\t%d\t%d\n", c.Read, c.ReadMost, c.Space, write, c.Pending, c.PendingBytes, len(c.Running))
}
