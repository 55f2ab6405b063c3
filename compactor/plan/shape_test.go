package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// What a compaction is expected to do, in the words of testdata/merge.txt.
func TestOutcomes(t *testing.T) {
	for _, x := range []struct{ chunk, want string }{
		{"live=400 100 100 100 100", "400 rows 400000 bytes, reads 4 -> 1, space 1.00 -> 1.00, 1.3 written"},
		{"live=100 100 100 100 100", "100 rows 100000 bytes, reads 4 -> 1, space 4.00 -> 1.00, 0.3 written"},
		{"live=1400 1000 100 100 100 100", "400 rows 400000 bytes, reads 5 -> 2, space 1.00 -> 1.00, 1.3 written"},
		{"live=100 126j", "100 rows 100000 bytes, reads 1 -> 1, space 1.26 -> 1.00, 3.8 written"},
		{"live=0 1", "0 rows 0 bytes, reads 1 -> 0, space 1.00 -> 1.00, 0.0 written"},
		{"live=800 100j 100j 100j 100j 100 100 100 100", "800 rows 800000 bytes, reads 5 -> 1, space 1.00 -> 1.00, 2.0 written"},
	} {
		c, m := chunkOf(t, x.chunk)
		job, ok := m.chunk(c)
		if !ok {
			t.Fatalf("%s: nothing to merge", x.chunk)
		}
		o := job.Outcome()
		got := fmt.Sprintf("%d rows %d bytes, reads %d -> %d, space %.2f -> %.2f, %.1f written", o.Rows, o.Bytes, o.ReadBefore, o.ReadAfter, o.SpaceBefore, o.SpaceAfter, o.Write)
		if got != x.want {
			t.Errorf("%s:\n%s, want\n%s", x.chunk, got, x.want)
		}
	}
}

// The shape is that of the shards that are mine.
func TestMeasureCountsSegmentsAndRows(t *testing.T) {
	s := manifesttest.New(t, "a", "b")
	s = manifesttest.Apply(t, s, "create db.c chunks=a,m,b")
	s = manifesttest.Apply(t, s, "claim a epoch=0 holder=p\nclaim b epoch=0 holder=q")
	for i := range 3 {
		s = manifesttest.Apply(t, s, fmt.Sprintf("flush a epoch=1 snap=1,%d complete c1{seg=%02x keys=a..d seq=%d..%d rows=2 delta=%d}", i+1, i+1, 2*i+1, 2*i+2, 2-i))
	}
	all := Measure(s, func(*manifest.Shard) bool { return true })
	if all != (Shape{Chunks: 2, ReadMost: 3, Reads: 3, Rows: 6, Live: 3}) || all.Read() != 1.5 || all.Space() != 2 {
		t.Errorf("%+v", all)
	}
	if x := Measure(s, func(h *manifest.Shard) bool { return strings.HasPrefix(string(h.ID), "b") }); x != (Shape{Chunks: 1}) || x.Read() != 0 || x.Space() != 1 {
		t.Errorf("%+v", x)
	}
}
