package writer

import (
	"context"
	"encoding/hex"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// hold is a row that a commit of the root is about to change: a document leaves it for
// another shard, or comes to it. From before the commit is sent until a root was absorbed
// that shows what became of it, nobody reads the row: until then this process cannot know
// whether what it has in memory is still true. Nobody writes it either, for who prepared the
// commit has the row's latch.
//
// Invariant: a hold ends when an absorbed root decides it (decided), or when the one who
// would have sent the commit says that he never did and never will. Time alone ends none: an
// owner that waits for too long decides the token itself, by a commit that aborts it, after
// which the other one conflicts.
//
// Owned by: the shard's mutex.
type hold struct {
	token [16]byte
	from  manifest.OwnerAt // who commits
	at    manifest.ChunkAt // the row's chunk, a precondition of the commit
	key   []byte           // of the row
	seq   manifest.Seq     // of what comes
	entry *retry           // that comes along; nil: none
	latch latch            // zero: another has it
	gate  *gate            // for reads
	since time.Duration    // Mono
}

// batchApp is the app of the tokens under which documents go from shard to shard.
const batchApp = "keyChange"

// How long tokens are remembered. A committed one matters until both owners have absorbed
// its root, and nothing goes wrong when it is forgotten sooner: whoever absorbs a later root
// has absorbed the commit with it. An aborted one must outlive every commit that can still
// be sent.
const (
	committedFor = time.Hour
	abortedFor   = 30 * 24 * time.Hour
)

func tokenName(t [16]byte) string { return hex.EncodeToString(t[:]) }

// decided reports whether the root shows what became of h: its token is decided, or one of
// the commit's preconditions will never hold again.
func (h *hold) decided(st *manifest.State) (decided, committed bool) {
	if t, ok := st.Token(batchApp, tokenName(h.token)); ok {
		return true, t.Committed
	}
	from := st.Shard(h.from.Shard)
	return from == nil || from.Epoch != h.from.Epoch || st.ChunkAt(h.at) == nil, false
}

// settleHolds ends the holds that the absorbed root decides. Requires: the mutex.
func (s *shard) settleHolds() {
	for _, h := range slices.Clone(s.heldRows) {
		if decided, committed := h.decided(s.state); decided {
			s.endHold(h, committed)
		}
	}
}

// endHold ends one; the retry entry that came with the document is known from now on.
// Requires: the mutex.
func (s *shard) endHold(h *hold, committed bool) {
	i := slices.Index(s.heldRows, h)
	if i < 0 {
		return
	}
	s.heldRows = slices.Delete(s.heldRows, i, i+1)
	if committed && h.entry != nil {
		s.learn(h.at.Collection, h.entry)
	}
	if h.latch != (latch{}) {
		s.latches.release(h.latch)
	}
	close(h.gate.opened)
}

// learn makes a retry entry that a segment has known to the chunks it belongs to. Requires:
// the mutex.
func (s *shard) learn(coll manifest.CollectionID, e *retry) {
	if kindClass(e) != 1 {
		if c := s.owned(coll, e.Key); c != nil {
			c.retries.learn(e)
		}
		return
	}
	s.eachTouched(coll, e, func(c *chunk) { c.inheritProgress(e) })
}

// holdOf is the hold of a token, or nil. Requires: the mutex.
func (s *shard) holdOf(token [16]byte) *hold {
	for _, h := range s.heldRows {
		if h.token == token {
			return h
		}
	}
	return nil
}

// heldRow is a held row that a read of this part of the chunk would see, or nil. Requires:
// the mutex.
func (s *shard) heldRow(c *chunk, t *rpc.Target) *hold {
	for _, h := range s.heldRows {
		if h.at.ID != c.info.ID {
			continue
		}
		if len(t.Ranges) == 0 {
			return h
		}
		for _, r := range t.Ranges {
			if r.Contains(h.key) {
				return h
			}
		}
	}
	return nil
}

// settleOld looks after holds that are older than they should become: the root is read, as the one
// who was to tell what came of it may have been cut off, and what it has not decided in HoldMax is
// aborted.
func (w *Writer) settleOld(ctx context.Context) {
	for _, s := range w.held() {
		if len(s.oldHolds(w.set.HoldMax/8)) == 0 {
			continue
		}
		if _, _, err := w.root.Load(ctx); err != nil {
			continue
		}
		for _, token := range s.oldHolds(w.set.HoldMax) {
			_, err := w.root.Commit(ctx, manifest.Edit{
				Op: w.running.ID16(), Millis: w.host.Wall().UnixMilli(),
				Changes: []manifest.Change{manifest.DecideToken{Token: manifest.Token{
					App: batchApp, Batch: tokenName(token), ExpiresAt: w.host.Wall().Add(abortedFor).Unix(),
				}}},
			})
			w.log.Info("aborted what another owner had begun", "shard", s.id, "cause", err)
		}
	}
}

// oldHolds are the tokens of those that others prepared that long ago, and that are not decided.
func (s *shard) oldHolds(age time.Duration) (tokens [][16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.w.host.Mono()
	for _, h := range s.heldRows {
		if h.latch != (latch{}) && now >= h.since+age {
			tokens = append(tokens, h.token)
		}
	}
	return tokens
}
