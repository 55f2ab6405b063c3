package plan

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// TestMergeScenarios reads testdata/merge.txt: what a chunk is, "->", and what is merged.
func TestMergeScenarios(t *testing.T) {
	f, err := os.Open("testdata/merge.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		in, want, ok := strings.Cut(line, "->")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		c, m := chunkOf(t, in)
		got := "nothing"
		if job, ok := m.chunk(c); ok {
			got = fmt.Sprintf("%s %d..%d", job.Why, job.From, job.To)
			if job.Oldest {
				got += " oldest"
			}
		}
		if got != strings.TrimSpace(want) {
			t.Errorf("%s: %s", line, got)
		}
	}
}

// chunkOf makes a chunk of words: "live=N", and for each reference its rows, of a thousand
// bytes each, with
//
//	/N   N bytes of its segment are used by any chunk, as stored it has rows*1000
//	x    its rows have left
//	c    its keys reach out of its clip
//	j    a job made it, the one that made the reference before too; keys ascend
//	=N   a fixed seq
func chunkOf(t *testing.T, text string) (*manifest.Chunk, *merger) {
	c := &manifest.Chunk{ID: 1}
	m := &merger{set: MergeSettings{}.withDefaults(), used: make(map[manifest.SegmentID]uint64)}
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return n
	}
	for i, w := range strings.Fields(text) {
		if live, ok := strings.CutPrefix(w, "live="); ok {
			c.Rows = int64(number(live))
			continue
		}
		r := manifest.SegmentRef{
			MinKey: []byte("m"), MaxKey: []byte("p"), MinSeq: manifest.Seq(10 * i), MaxSeq: manifest.Seq(10*i + 9),
			Segment: manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard}, Random: [16]byte{byte(i + 1)}},
		}
		w, fixed, ok := strings.Cut(w, "=")
		if ok {
			r.FixedSeq = manifest.Seq(number(fixed))
		}
		rows, used, ok := strings.Cut(w, "/")
		if short, ok := strings.CutSuffix(rows, "j"); ok {
			rows, r.Segment.Creator.Kind = short, manifest.CreatorJob
			r.MinKey, r.MaxKey = []byte{'m', byte(i)}, []byte{'m', byte(i), 'x'}
		}
		if short, ok := strings.CutSuffix(rows, "c"); ok {
			rows, r.Clip = short, shardkey.Range{Min: []byte("n")}
		}
		rows, expired := strings.CutSuffix(rows, "x")
		r.Rows = number(rows)
		r.Bytes, r.Size = 1000*r.Rows, 1000*r.Rows
		if expired {
			r.MinKey, r.MaxKey, r.Rows, r.Bytes = nil, nil, 0, 0
			r.RetryUntil = 1
		}
		m.used[r.Segment] = r.Bytes
		if ok {
			r.Bytes = number(used) // by this chunk, and by no other
			m.used[r.Segment] = r.Bytes
		}
		c.Refs = append(c.Refs, r)
	}
	return c, m
}

// chunkModel is a chunk whose flushes and merges are counted in rows.
type chunkModel struct {
	c       *manifest.Chunk
	keys    []map[int]manifest.Seq // of the references
	live    map[int]manifest.Seq
	seq     manifest.Seq
	written float64
	flushed float64
}

func (x *chunkModel) flush(keys map[int]manifest.Seq) {
	for k, s := range keys {
		x.live[k] = s
	}
	x.add(len(x.c.Refs), len(x.c.Refs), keys)
	x.flushed += float64(len(keys))
}

// add puts a reference in the place of some.
func (x *chunkModel) add(from, to int, keys map[int]manifest.Seq) {
	r := manifest.SegmentRef{MinKey: []byte("a"), MaxKey: []byte("z"), Rows: uint64(len(keys)), Bytes: uint64(1000 * len(keys)), Size: uint64(1000 * len(keys))}
	r.Segment.Creator.Kind, r.Segment.Random = manifest.CreatorJob, [16]byte{1}
	x.c.Refs = slices.Replace(x.c.Refs, from, to, r)
	x.keys = slices.Replace(x.keys, from, to, keys)
	x.written += float64(len(keys))
	x.c.Rows = int64(len(x.live))
}

// settle merges until nothing is left to merge.
func (x *chunkModel) settle(t *testing.T) {
	m := &merger{set: MergeSettings{}.withDefaults(), used: map[manifest.SegmentID]uint64{}}
	for n := 0; ; n++ {
		job, ok := m.chunk(x.c)
		if !ok {
			return
		}
		if n > 100 {
			t.Fatal("merges without end")
		}
		out := make(map[int]manifest.Seq)
		for _, part := range x.keys[job.From:job.To] {
			for k, s := range part {
				out[k] = max(out[k], s)
			}
		}
		x.add(job.From, job.To, out)
	}
}

// Long sequences of flushes: what a chunk costs to read, to write and to keep stays below what
// the plan promises.
func TestAmplificationIsBounded(t *testing.T) {
	const chunk, flush = 100_000, 200 // rows
	for _, x := range []struct {
		name         string
		keys         int // that rows are drawn from; 0: all are new
		refs         int
		write, space float64
	}{
		{"inserts", 0, 10, 5, 1.001},
		{"updates", 20_000, 10, 6, 1.251},
		{"updates of few", 500, 4, 5, 1.251},
	} {
		t.Run(x.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			m := &chunkModel{c: &manifest.Chunk{}, live: make(map[int]manifest.Seq)}
			most, space := 0, 0.0
			for n := 0; n < chunk; n += flush {
				keys := make(map[int]manifest.Seq)
				for range flush {
					m.seq++
					k := int(m.seq)
					if x.keys > 0 {
						k = rng.IntN(x.keys)
					}
					keys[k] = m.seq
				}
				m.flush(keys)
				m.settle(t)
				all := uint64(0)
				for _, r := range m.c.Refs {
					all += r.Rows
				}
				most, space = max(most, len(m.c.Refs)), max(space, float64(all)/float64(len(m.live)))
			}
			write := m.written / m.flushed
			t.Logf("at most %d references, each row written %.1f times, %.2f of the live rows kept", most, write, space)
			if most > x.refs || write > x.write || space > x.space {
				t.Errorf("promised: %d references, %.1f times, %.2f", x.refs, x.write, x.space)
			}
		})
	}
}

// Chunks of other shards, and of collections that are being given another key, are left alone;
// what is most urgent comes first.
func TestCompactionsAreOfTheShardsThatAreMine(t *testing.T) {
	s := manifesttest.New(t, "a", "b")
	s = manifesttest.Apply(t, s, "create db.c chunks=a,m,b")
	s = manifesttest.Apply(t, s, "claim a epoch=0 holder=p\nclaim b epoch=0 holder=q")
	for i := range 8 {
		for _, x := range []string{"a:c1:a..d", "b:c2:p..q"} {
			f := strings.Split(x, ":")
			s = manifesttest.Apply(t, s, fmt.Sprintf("flush %s epoch=1 snap=1,%d complete %s{seg=%02x keys=%s seq=%d..%d rows=2 delta=2}",
				f[0], i+1, f[1], 16*len(f[2])+i+int(f[0][0]-'a')*64, f[2], 2*i+1, 2*i+2))
		}
	}
	list := Compactions(s, func(h *manifest.Shard) bool { return h.ID == "a" }, MergeSettings{})
	if len(list) != 1 || list[0].Chunk.Shard != "a" || list[0].Why != Tiered || !list[0].Oldest || list[0].To != 8 {
		t.Errorf("%+v", list)
	}
}
