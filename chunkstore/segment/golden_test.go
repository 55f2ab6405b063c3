package segment

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

var update = flag.Bool("update", false, "rewrite testdata")

// goldenRows is written out, not drawn: it must never change.
func goldenRows() (rows []Row) {
	for _, c := range []manifest.CollectionID{1, 3} {
		for i := range 8 {
			switch {
			case i%5 == 4:
				rows = append(rows, del(c, i, manifest.Seq(500+i)))
			case i%4 == 3:
				rows = append(rows, put(c, i, manifest.Seq(500+i), fmt.Sprintf("%x", noise(i, 100))))
			default:
				rows = append(rows, put(c, i, manifest.Seq(500-i), strings.Repeat(fmt.Sprintf("text %d ", i), 9)))
			}
			if i%3 == 1 {
				rows = append(rows, put(c, i, manifest.Seq(400-i), "older"))
			}
		}
	}
	return rows
}

func goldenRetries() []RetryEntry {
	return []RetryEntry{
		{Collection: 1, Key: key(2), Op: OpID{Session: [32]byte{9, 31: 1}, Txn: 5, Stmt: 1, Attempt: 2}, Reply: []byte("reply"), ExpiresAt: 1_900_000_000},
		{Collection: 3, Span: shardkey.Range{Min: key(7), Max: key(9)}, Op: OpID{Session: [32]byte{8}, Txn: -1}, ExpiresAt: 1_900_000_001},
	}
}

// Files that a released version wrote are read for ever, row by row, and what is written
// today is what was written then. Blocks that do not compress are stored raw in both.
func TestGoldenSegments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Codec{"s2.v1.seg": S2, "zstd.v1.seg": Zstd} {
		path := filepath.Join("testdata", name)
		body, refs, rows := smallSegment(t, c, false)
		if *update {
			check(t, os.WriteFile(path, body, 0o644))
		}
		golden, err := os.ReadFile(path)
		check(t, err)
		// The compressor has other code, with other output, on other machines.
		if runtime.GOARCH == "amd64" && !bytes.Equal(golden, body) {
			t.Errorf("%s differs from what is written today", name)
		}
		ref := refs[0]
		ref.TailOffset, ref.Size = uint64(len(golden))-uint64(ref.TailLength), uint64(len(golden))
		obj := &object{body: golden}
		check(t, readAll(t, obj, ref, rows))
		check(t, Verify(t.Context(), obj.fetch, ref, nil))
		r, err := Open(t.Context(), obj.fetch, ref, nil)
		check(t, err)
		for i, want := range goldenRetries() {
			got, err := r.Retries(t.Context(), want.Collection, shardkey.Range{})
			check(t, err)
			if len(got) != 1 || !equalRetry(got[0], want) {
				t.Errorf("%s: retry entry %d: %+v", name, i, got)
			}
		}
	}
}

// The three codecs of blocks are all in the golden files.
func TestGoldenSegmentsHaveEveryCodec(t *testing.T) {
	t.Parallel()
	seen := map[Codec]bool{}
	for _, c := range []Codec{S2, Zstd} {
		body, refs, _ := smallSegment(t, c, false)
		r, _ := open(t, body, refs, nil)
		for i := range r.tail.blocks.frames() {
			seen[Codec(body[r.tail.blocks.offs[i]+1])] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("codecs %v", seen)
	}
}
