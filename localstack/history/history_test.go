package history

import (
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// told is an operation that was answered before the next one began.
func (h *History) told(in Input, out Output) { h.Return(h.Call(0, in, ""), out) }

// life is a document of which everything is known: it is 12 in the end.
func life(h *History) {
	h.told(Input{Kind: Read}, Output{})
	h.told(Input{Kind: Inc, Val: 1}, Output{})
	h.told(Input{Kind: Insert, Val: 5}, Output{})
	h.told(Input{Kind: Insert, Val: 6}, Output{Dup: true})
	h.told(Input{Kind: Inc, Val: 2}, Output{Found: true, Val: 7})
	h.told(Input{Kind: Swap, Old: 6, Val: 1}, Output{})
	h.told(Input{Kind: Swap, Old: 7, Val: 9}, Output{Found: true})
	h.told(Input{Kind: Delete}, Output{Found: true})
	h.told(Input{Kind: Insert, Val: 1}, Output{})
	h.told(Input{Kind: Replace, Val: 10}, Output{Found: true})
	h.told(Input{Kind: Add, Val: 2}, Output{Found: true})
}

// Each end of one life is right or wrong.
func TestCheckTellsTruthFromLies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end func(h *History)
		ok  bool
	}{
		"the last value":   {func(h *History) { h.told(Input{Kind: Read}, Output{Found: true, Val: 12}) }, true},
		"a stale read":     {func(h *History) { h.told(Input{Kind: Read}, Output{Found: true, Val: 10}) }, false},
		"a lost document":  {func(h *History) { h.told(Input{Kind: Read}, Output{}) }, false},
		"a doubled inc":    {func(h *History) { h.told(Input{Kind: Inc, Val: 1}, Output{Found: true, Val: 14}) }, false},
		"another document": {func(h *History) { h.told(Input{Kind: Read, Doc: 1}, Output{}) }, true},
		"an unknown that is in the log, seen": {func(h *History) {
			h.Call(0, Input{Kind: Add, Val: 1}, "logged")
			h.told(Input{Kind: Read}, Output{Found: true, Val: 13})
		}, true},
		"an unknown that is in the log, late": {func(h *History) {
			h.Call(0, Input{Kind: Add, Val: 1}, "logged")
			h.told(Input{Kind: Read}, Output{Found: true, Val: 12})
			h.told(Input{Kind: Read}, Output{Found: true, Val: 13})
		}, true},
		"an unknown that is in no log, seen": {func(h *History) {
			h.Sent(h.Call(0, Input{Kind: Add, Val: 1}, ""), "nowhere")
			h.told(Input{Kind: Read}, Output{Found: true, Val: 13})
		}, false},
		"two unknown, in the order of the log": {func(h *History) {
			h.Call(0, Input{Kind: Add, Val: 1}, "logged")
			h.Call(1, Input{Kind: Replace, Val: 20}, "earlier")
			h.told(Input{Kind: Read}, Output{Found: true, Val: 21})
		}, true},
		"two unknown, in another order": {func(h *History) {
			h.Call(0, Input{Kind: Add, Val: 1}, "earlier")
			h.Call(1, Input{Kind: Replace, Val: 20}, "logged")
			h.told(Input{Kind: Read}, Output{Found: true, Val: 21})
		}, false},
		"two at once, in the other order": {func(h *History) {
			a, b := h.Call(0, Input{Kind: Inc, Val: 1}, ""), h.Call(1, Input{Kind: Inc, Val: 2}, "")
			h.Return(a, Output{Found: true, Val: 15})
			h.Return(b, Output{Found: true, Val: 14})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var h History
			life(&h)
			c.end(&h)
			err := h.Check(map[string]manifest.Seq{"logged": 8, "earlier": 7}, time.Minute)
			if (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "read doc 0") {
				t.Errorf("the error does not show the document's operations: %v", err)
			}
		})
	}
}

func TestLenCountsWhatIsUnknown(t *testing.T) {
	t.Parallel()
	var h History
	life(&h)
	h.Call(3, Input{Kind: Delete}, "x")
	if n := h.Unlogged(nil); n != 7 {
		t.Errorf("%d acknowledged changes, want 7", n)
	}
	if all, unknown := h.Len(); all != 12 || unknown != 1 {
		t.Errorf("%d operations, %d unknown", all, unknown)
	}
}

// The log names the writes that changed something, and seals are told apart.
func TestLoggedNamesWhatChangedSomething(t *testing.T) {
	t.Parallel()
	mem, h := membucket.New(), host.System()
	session := [16]byte{1, 2}
	op := segment.OpID{Txn: 7, Stmt: 2}
	copy(op.Session[:], session[:])
	retry := func(stmt int32) *segment.RetryEntry {
		op := op
		op.Stmt = stmt
		return &segment.RetryEntry{Collection: 1, Key: []byte("k"), Op: op}
	}
	var batch wal.Batch
	for _, r := range []wal.Record{
		{Collection: 1, Key: []byte("k"), Op: wal.Delete, Seq: 1, Retry: retry(2)},
		{Collection: 1, Op: wal.RetryOnly, Retry: retry(3)},
		{Collection: 1, Key: []byte("l"), Op: wal.Delete, Seq: 2},
	} {
		if err := batch.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	l := wal.NewLog(mem, h, manifest.ClusterID{}, "a", 1, 0)
	if _, err := l.Append(t.Context(), &batch); err != nil {
		t.Fatal(err)
	}
	if _, _, err := wal.Seal(t.Context(), mem, h, manifest.ClusterID{}, "a", 1, 0, 2); err != nil {
		t.Fatal(err)
	}
	ids := map[string]manifest.Seq{}
	for index, want := range []bool{false, true} {
		o, err := mem.Get(t.Context(), manifest.WALKey("a", 1, uint64(index)), bucket.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if seal, err := Logged(o.Body, ids); err != nil || seal != want {
			t.Errorf("object %d: seal %v, %v", index, seal, err)
		}
	}
	if len(ids) != 1 || ids[WriteID(session, 7, 2)] != 1 {
		t.Errorf("ids %v", ids)
	}
	if _, err := Logged([]byte("no object"), ids); err == nil {
		t.Error("nonsense was read")
	}
}
