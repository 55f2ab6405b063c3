package manifest

import (
	"testing"

	"github.com/granarydb/granary/manifest/shardkey"
)

// A segment that lies in one part of a split keeps its rows there, whatever lives in that part.
func TestDeletionsKeepTheirRowsInASplit(t *testing.T) {
	r := SegmentRef{MinKey: []byte{5}, MaxKey: []byte{6}, Rows: 2, Bytes: 90}
	for _, each := range [][]int64{nil, {3, 0}, {0, 0}} {
		children := []*Chunk{{Range: shardkey.Range{Max: []byte{4}}}, {Range: shardkey.Range{Min: []byte{4}}}}
		rows, bytes := make([]uint64, 2), make([]uint64, 2)
		deal(&r, children, each, rows, bytes)
		if len(children[0].Refs) != 0 || len(children[1].Refs) != 1 || children[1].Refs[0].Rows != 2 || children[1].Refs[0].Bytes != 90 {
			t.Errorf("live rows %v: parts have %+v and %+v", each, children[0].Refs, children[1].Refs)
		}
		if rows[1] != 2 || bytes[1] != 90 {
			t.Errorf("live rows %v: shares %v, %v", each, rows, bytes)
		}
	}
}
