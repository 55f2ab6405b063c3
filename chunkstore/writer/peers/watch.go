package peers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// What makes a holder gone.
const (
	silentMax  = 3
	silentFor  = 2 * time.Second
	refusedMax = 2
	refusedFor = 100 * time.Millisecond
	// contestedMax: two minutes at most; contestedFor is how long it is remembered.
	contestedMax = 6
	contestedFor = 10 * time.Minute
)

// peer is another process as far as it is known here.
type peer struct {
	process rpc.Process
	// heard is when it last answered or called; never, when heardOf is false.
	heard   time.Duration
	heardOf bool
	known   time.Duration // since when its name is known
	// silent counts the pings in a row that got no answer, since first; refused those of
	// them at which nobody listened.
	silent, refused int
	first           time.Duration
	// contested counts the shards that it took from this process since it was last heard.
	contested int
	taken     time.Duration // when it took the last one
	// replaced: another process answers at its address.
	replaced bool
	warned   bool // that it answers, and does not talk to us
}

func (p *peer) liveAt(now time.Duration) bool {
	return p.heardOf && !p.replaced && p.refused == 0 && now < p.heard+liveFor
}

// goneAt is the verdict on a holder. Two that reach the store and not one another both seem
// gone, and would take the same shards in turn for ever: each time that one loses a shard to
// the other it waits twice as long.
func (p *peer) goneAt(now time.Duration) bool {
	return p.replaced ||
		p.refused >= refusedMax && now >= p.first+refusedFor ||
		p.silent >= silentMax && now >= p.first+silentFor<<min(p.contested, contestedMax)
}

// answered forgets the silence.
func (p *peer) answered(now time.Duration) {
	p.heard, p.heardOf, p.silent, p.refused, p.contested = now, true, 0, 0, 0
}

// contest notes that a holder that is silent took a shard away: it is alive.
func (p *peer) contest(now time.Duration) {
	p.contested, p.taken, p.silent, p.refused = p.contested+1, now, 0, 0
}

// forgottenAt tells whether a process that holds nothing need not be asked any more. One that
// took a shard from here is remembered, and may come within reach again.
func (p *peer) forgottenAt(now time.Duration) bool {
	return now >= max(p.heard, p.known)+forgetAfter && (p.contested == 0 || now >= p.taken+contestedFor)
}

// missed counts a ping without an answer.
func (p *peer) missed(now time.Duration, err error) {
	if p.silent == 0 {
		p.first = now
	}
	p.silent++
	if rpc.NobodyListens(err) {
		p.refused++
	} else {
		p.refused = 0
	}
}

// pingAll asks everybody that the root names or that is known otherwise; false when one of
// them gave no answer.
func (m *Member) pingAll(ctx context.Context, st *manifest.State) bool {
	targets := m.targets(st)
	slots := make(chan struct{}, pingsAtOnce)
	quiet := make([]bool, len(targets))
	var all sync.WaitGroup
	for i, p := range targets {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			quiet[i] = m.ping(ctx, p)
		})
	}
	all.Wait()
	return !slices.Contains(quiet, false)
}

// targets are whom to ask: copies, by holder. Whoever is named by no root and was not heard
// of for long is forgotten.
func (m *Member) targets(st *manifest.State) []rpc.Process {
	now := m.c.Host.Mono()
	m.mu.Lock()
	defer m.mu.Unlock()
	holds := make(map[string]bool)
	for _, x := range st.Shards() {
		if x.Status != manifest.ShardFree && x.Holder != m.c.Holder {
			holds[x.Holder] = true
			m.know(rpc.Process{Holder: x.Holder, Address: x.Address}, now)
		}
	}
	var list []rpc.Process
	for holder, p := range m.peers {
		if !holds[holder] && p.forgottenAt(now) {
			delete(m.peers, holder)
			continue
		}
		list = append(list, p.process)
	}
	slices.SortFunc(list, func(a, b rpc.Process) int { return strings.Compare(a.Holder, b.Holder) })
	return list
}

// know is the peer of a process; it may be new. Beyond peersMax a new one is not kept.
// Requires: the mutex.
func (m *Member) know(x rpc.Process, now time.Duration) *peer {
	p := m.peers[x.Holder]
	if p == nil {
		p = &peer{process: x, known: now}
		if len(m.peers) < peersMax {
			m.peers[x.Holder] = p
		}
	}
	return p
}

// ping asks one process, and notes what that says; false: no answer.
func (m *Member) ping(ctx context.Context, x rpc.Process) bool {
	reply, err := ask(ctx, m.c, x.Address, m.self())
	if ctx.Err() != nil {
		return true
	}
	now := m.c.Host.Mono()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[x.Holder]
	if p == nil {
		return true
	}
	switch {
	case errors.Is(err, rpc.Unreachable):
		p.missed(now, err)
		if p.goneAt(now) && p.silent == silentMax {
			m.c.Log.Warn("a writer does not answer", "holder", x.Holder, "address", x.Address, "cause", err)
		}
		return false
	case err != nil: // it is there, and cannot be asked
		p.answered(now)
		p.heardOf = false
		if !p.warned {
			p.warned = true
			m.c.Log.Warn("a writer does not talk to us", "holder", x.Holder, "address", x.Address, "cause", err)
		}
		return true
	}
	m.hear(reply, now)
	if reply.Self.Holder != x.Holder {
		p.replaced = true
		return false
	}
	return true
}

// hear takes an answer in. Requires: the mutex.
func (m *Member) hear(reply *rpc.PingReply, now time.Duration) {
	m.hint = max(m.hint, reply.RootVersion)
	if reply.Self.Holder != m.c.Holder {
		p := m.know(reply.Self, now)
		p.process = reply.Self
		p.answered(now)
	}
	for _, x := range reply.Peers {
		if x.Holder != m.c.Holder && x.Holder != "" {
			m.know(x, now)
		}
	}
}

// ask sends one ping.
func ask(ctx context.Context, c Config, address string, from rpc.Process) (*rpc.PingReply, error) {
	peer, err := c.Dial.DialPeer(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.Host.WithTimeout(ctx, pingWait)
	defer cancel()
	return peer.Ping(ctx, &rpc.PingRequest{Header: rpc.Header{Deadline: pingWait}, From: from})
}

// self is what this process says of itself.
func (m *Member) self() rpc.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return rpc.Process{Holder: m.c.Holder, Address: m.c.Address, Any: m.c.Any, Named: m.c.Named, Leaving: m.leaving}
}

// Ping implements rpc.Peer.
func (m *Member) Ping(_ context.Context, r *rpc.PingRequest) (*rpc.PingReply, error) {
	reply := &rpc.PingReply{Self: m.self()}
	if st := m.c.Root.State(); st != nil {
		reply.RootVersion = st.Version()
	}
	for _, s := range m.c.Writer.Status().Shards {
		reply.Shards = append(reply.Shards, heldShard(&s))
		reply.FlushedBytes += s.Counts.SegmentBytes
	}
	if m.c.Merged != nil {
		reply.MergedBytes = m.c.Merged()
	}
	if r.From.Holder == "" { // an older process would not understand it
		found := m.c.Alarm.Found()
		reply.Corrupt, reply.CorruptAgeMillis, reply.CorruptLast = found.Count, found.Ago.Milliseconds(), found.Last
	}
	now := m.c.Host.Mono()
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.From.Holder != "" && r.From.Holder != m.c.Holder {
		p := m.know(r.From, now)
		p.process = r.From
		p.answered(now)
	}
	for holder, p := range m.peers {
		if p.liveAt(now) && holder != r.From.Holder {
			reply.Peers = append(reply.Peers, p.process)
		}
	}
	slices.SortFunc(reply.Peers, func(a, b rpc.Process) int { return strings.Compare(a.Holder, b.Holder) })
	return reply, nil
}

func heldShard(s *writer.ShardStatus) rpc.HeldShard {
	h := rpc.HeldShard{
		ID: s.ID, Epoch: s.Epoch, Phase: string(s.Phase), Unflushed: s.Bytes,
		LeaseLeftMillis: s.LeaseLeft.Milliseconds(), AckAgeMillis: -1,
	}
	if s.SinceAck >= 0 {
		h.AckAgeMillis = s.SinceAck.Milliseconds()
	}
	return h
}
