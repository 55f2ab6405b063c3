package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// take claims a shard as it was seen.
func (m *Member) take(ctx context.Context, s seen) {
	switch {
	case s.gone:
		m.c.Log.Info("taking over a shard whose holder is gone", "shard", s.id, "epoch", s.epoch+1)
	case s.lost:
		m.c.Log.Info("taking back a shard", "shard", s.id, "epoch", s.epoch+1)
	}
	err := m.c.Writer.HoldAt(ctx, s.id, s.epoch)
	if err != nil && ctx.Err() == nil && !errors.Is(err, errkind.Conflict) {
		m.c.Log.Warn("shard not taken, the next try follows", "shard", s.id, "cause", err)
	}
}

// give hands a shard that this process serves to another one: it is free for a moment.
func (m *Member) give(ctx context.Context, g gift) {
	m.mu.Lock()
	p := m.peers[g.to]
	var to rpc.Process
	if p != nil {
		to = p.process
	}
	m.mu.Unlock()
	if p == nil {
		return
	}
	m.c.Log.Info("giving a shard away", "shard", g.shard, "to", to.Address)
	if err := m.c.Writer.Release(ctx, g.shard); err != nil {
		m.c.Log.Warn("shard not given away", "shard", g.shard, "cause", err)
		return
	}
	m.hand(ctx, g.shard, to)
}

// hand asks a process to claim a shard that was just freed.
func (m *Member) hand(ctx context.Context, id manifest.ShardID, to rpc.Process) {
	ctx, cancel := m.c.Host.WithTimeout(ctx, handWait)
	defer cancel()
	peer, err := m.c.Dial.DialPeer(to.Address)
	if err == nil {
		_, err = peer.Claim(ctx, &rpc.ClaimRequest{Header: rpc.Header{Shard: id, RootVersion: m.c.Root.State().Version(), Deadline: handWait}})
	}
	if err != nil && !errors.Is(err, errkind.Conflict) {
		m.c.Log.Warn("a shard is free: the process that it was meant for did not take it", "shard", id, "address", to.Address, "cause", err)
	}
}

// Leave gives every shard to a live peer, as evenly as it can, all at once; what nobody can
// take is left to Writer.Close, which frees it. Requires: Run has returned. From now on the
// process tells its peers that it is leaving, and takes nothing.
func (m *Member) Leave(ctx context.Context) {
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	st := m.c.Root.State()
	if st == nil {
		return
	}
	others := m.look(st).others
	var all sync.WaitGroup
	for _, x := range st.Shards() {
		if x.Status == manifest.ShardFree || x.Holder != m.c.Holder {
			continue
		}
		line := queue(others, x.ID)
		if len(line) == 0 {
			continue
		}
		raise(others, line[0])
		all.Go(func() { m.give(ctx, gift{x.ID, line[0]}) })
	}
	all.Wait()
}

// Claim implements rpc.Peer.
func (m *Member) Claim(ctx context.Context, r *rpc.ClaimRequest) (*rpc.ClaimReply, error) {
	if err := m.wants(r.Shard); err != nil {
		return nil, err
	}
	st, err := m.c.Root.AtLeast(ctx, r.RootVersion)
	if err == nil && (r.RootVersion == 0 || st.Shard(r.Shard) == nil) {
		st, _, err = m.c.Root.Load(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("claim shard %s: %w", r.Shard, err)
	}
	x := st.Shard(r.Shard)
	switch {
	case x == nil:
		return nil, fmt.Errorf("claim shard %s: %w: no such shard in root version %d", r.Shard, errkind.Invalid, st.Version())
	case x.Status != manifest.ShardFree && x.Holder != m.c.Holder:
		if err := m.waitGone(ctx, x); err != nil {
			return nil, err
		}
	}
	if err := m.c.Writer.HoldAt(ctx, x.ID, x.Epoch); err != nil {
		return nil, err
	}
	return &rpc.ClaimReply{Epoch: m.c.Root.State().Shard(x.ID).Epoch}, nil
}

// wants refuses a shard that this process is not for.
func (m *Member) wants(id manifest.ShardID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.leaving:
		return fmt.Errorf("claim shard %s: %w: this writer is stopping", id, errkind.Conflict)
	case !m.c.Any && !slices.Contains(m.c.Named, id):
		return fmt.Errorf("claim shard %s: %w: this writer is for %v only", id, errkind.Conflict, m.c.Named)
	}
	return nil
}

// waitGone asks a holder until it answers, which is a Conflict, or is gone.
func (m *Member) waitGone(ctx context.Context, x *manifest.Shard) error {
	for {
		m.mu.Lock()
		m.know(rpc.Process{Holder: x.Holder, Address: x.Address}, m.c.Host.Mono())
		m.mu.Unlock()
		m.ping(ctx, rpc.Process{Holder: x.Holder, Address: x.Address})
		m.mu.Lock()
		p, now := m.peers[x.Holder], m.c.Host.Mono()
		gone, silent := p != nil && p.goneAt(now), p != nil && p.silent > 0
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case p == nil:
			return fmt.Errorf("claim shard %s: %w: too many processes are known", x.ID, errkind.Throttled)
		case gone:
			return nil
		case !silent:
			return fmt.Errorf("claim shard %s: %w: its holder at %s answers", x.ID, errkind.Conflict, x.Address)
		}
		if err := m.c.Host.Sleep(ctx, m.c.Host.Jitter(soon)); err != nil {
			return err
		}
	}
}
