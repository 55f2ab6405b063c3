package writer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
)

// retryable is an insert that can be sent again, of a session of its own.
func retryable(id int) rpc.WriteOp {
	op := big(id)
	op.Op = rpc.OpID{Session: [32]byte{byte(id >> 8), byte(id)}, Txn: 1}
	return op
}

// What a process remembers of retryable writes is counted in the memory that all of it shares,
// and stays within its part however many chunks there are; nothing of it is left when the
// process ends.
func TestRetryIDsStayWithinTheirMemory(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		pot := admission.NewPot(64 << 10)
		ids := pot.Account("retry_ids", 50)
		p := w.process("p", func(s *Settings) { s.Retries = ids }).holds("a")
		w.collection("a,a,a,a", 100, 200, 300)
		c := w.client()
		for i := range 400 {
			c.do(retryable(i))
			if i%100 == 50 {
				if got := ids.Bound().Used; got < 10<<10 {
					t.Fatalf("after %d: %d bytes are counted", i, got)
				}
			}
		}
		p.trimRetries()
		if b := ids.Bound(); b.Used > b.Limit || b.Used < b.Limit/2 {
			t.Errorf("%+v", b)
		}
		p.Abandon()
		if b := ids.Bound(); b.Used != 0 {
			t.Errorf("nobody is there, and %+v", b)
		}
	})
}

// Where there is little memory a flush builds smaller segments, and gives back what it took.
func TestFlushesBuildWhatThereIsMemoryFor(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		pot := admission.NewPot(8 << 20)
		account := pot.Account("segments_written", 50)
		p := w.process("p", func(s *Settings) { s.Segments = account })
		rows := &part{rows: &memtable{size: 16 << 20}, retries: []segment.RetryEntry{{Key: make([]byte, 100), Reply: make([]byte, 200)}}}
		most, back := p.borrow([]*part{rows})
		if most != segmentLeast {
			t.Errorf("a segment may have %d bytes, a quarter of 4 MiB are left", most)
		}
		if got := account.Bound().Used; got != segmentLeast+rows.retries[0].MemoryBytes() {
			t.Errorf("%d bytes are counted", got)
		}
		back()
		few := &part{retries: []segment.RetryEntry{{}}}
		most, back = p.borrow([]*part{few})
		if most != p.set.SegmentBytes {
			t.Errorf("there is room, and a segment may have %d bytes", most)
		}
		back()
		p.holds("a")
		w.collection("a")
		c := w.client()
		for i := range 20 {
			c.do(retryable(i))
		}
		if err := p.shard("a").flush(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if got := account.Bound().Used; got != 0 {
			t.Errorf("%d bytes were not given back", got)
		}
	})
}

// A segment ends where the memory for it does, wherever that is.
func TestASegmentEndsWithItsMemory(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		pot := admission.NewPot(4 << 20)
		p := w.process("p", func(s *Settings) { s.Segments, s.BatchBytes = pot.Account("segments_written", 100), 1<<20 }).holds("a")
		w.collection("a")
		c := w.client()
		for i := range 3 {
			c.do(insertOp(fmt.Sprintf(`{_id: %d, s: "%s"}`, i, noise(i, 1<<20))))
		}
		if err := p.shard("a").flush(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if n := len(w.chunk(1).Refs); n < 2 {
			t.Errorf("%d segments of 3 MiB, where one may have a quarter of 4", n)
		}
	})
}

// noise is text that does not compress.
func noise(seed, n int) string {
	var b strings.Builder
	for x := uint64(seed + 1); b.Len() < n; {
		x = x*6364136223846793005 + 1442695040888963407
		fmt.Fprintf(&b, "%016x", x)
	}
	return b.String()
}
