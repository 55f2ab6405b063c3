package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Finder finds writers for a process that has none of its own, a router: it asks those that
// the root names, and those that they know, to claim a shard. It keeps addresses, as hints.
// Safe for concurrent use.
type Finder struct {
	root *manifest.Root
	dial rpc.PeerDialer
	host host.Host
	log  *slog.Logger

	mu    sync.Mutex // never held across a call
	known map[string]bool
	said  map[manifest.ShardID]time.Duration // when it was last said that a shard has no writer
}

// sayEvery is the time between two log lines about a shard without a writer.
const sayEvery = 10 * time.Second

// NewFinder makes a Finder.
func NewFinder(root *manifest.Root, dial rpc.PeerDialer, h host.Host, log *slog.Logger) *Finder {
	return &Finder{root: root, dial: dial, host: h, log: log, known: make(map[string]bool), said: make(map[manifest.ShardID]time.Duration)}
}

// Claim has some writer claim the shard, and returns when it is served, or when nobody can
// take it now. A holder that answers keeps it. Errors: those of the root; that nobody can is
// logged, now and then.
func (f *Finder) Claim(ctx context.Context, id manifest.ShardID) error {
	st, _, err := f.root.Load(ctx)
	if err != nil {
		return fmt.Errorf("find a writer for shard %s: %w", id, err)
	}
	x := st.Shard(id)
	if x == nil {
		return fmt.Errorf("find a writer for shard %s: %w: no such shard", id, errkind.Invalid)
	}
	found := f.everybody(ctx, st)
	var last error
	for _, c := range found {
		if c.Self.Holder == x.Holder && x.Status != manifest.ShardFree {
			return nil // it works, or takes the shard back by itself
		}
	}
	for _, c := range ranked(found, id) {
		peer, err := f.dial.DialPeer(c.Self.Address)
		if err == nil {
			_, err = peer.Claim(ctx, &rpc.ClaimRequest{Header: rpc.Header{Shard: id, RootVersion: st.Version()}})
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, errkind.Conflict) {
			return nil // in a conflict somebody else is at it, or it is no longer needed
		}
		last = err
	}
	f.say(id, len(found), last)
	return nil
}

// everybody pings all writers that can be found.
func (f *Finder) everybody(ctx context.Context, st *manifest.State) []*rpc.PingReply {
	f.mu.Lock()
	next := maps.Clone(f.known)
	f.mu.Unlock()
	for _, x := range st.Shards() {
		if x.Status != manifest.ShardFree && x.Address != "" {
			next[x.Address] = true
		}
	}
	asked := make(map[string]bool)
	var found []*rpc.PingReply
	for len(next) > 0 && len(asked) < peersMax {
		replies := f.pingAll(ctx, slices.Sorted(maps.Keys(next)))
		maps.Copy(asked, next)
		clear(next)
		for _, r := range replies {
			found = append(found, r)
			for _, p := range r.Peers {
				if !asked[p.Address] && p.Address != "" {
					next[p.Address] = true
				}
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.known)
	for _, r := range found {
		f.known[r.Self.Address] = true
	}
	return found
}

func (f *Finder) pingAll(ctx context.Context, addresses []string) []*rpc.PingReply {
	replies := make([]*rpc.PingReply, len(addresses))
	slots := make(chan struct{}, pingsAtOnce)
	var all sync.WaitGroup
	for i, a := range addresses {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if r, err := ask(ctx, Config{Dial: f.dial, Host: f.host}, a, rpc.Process{}); err == nil && r.Self.Address != "" {
				replies[i] = r
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(replies, func(r *rpc.PingReply) bool { return r == nil })
}

// ranked are those that may take a shard, the best first: started for it, with few shards.
func ranked(found []*rpc.PingReply, id manifest.ShardID) []*rpc.PingReply {
	names := func(r *rpc.PingReply) bool { return slices.Contains(r.Self.Named, id) }
	list := slices.DeleteFunc(slices.Clone(found), func(r *rpc.PingReply) bool {
		return r.Self.Leaving || !r.Self.Any && !names(r)
	})
	slices.SortFunc(list, func(a, b *rpc.PingReply) int {
		return cmp.Or(-compareBool(names(a), names(b)), cmp.Compare(serving(a), serving(b)), strings.Compare(a.Self.Holder, b.Self.Holder))
	})
	return list
}

// serving counts the shards that a process holds.
func serving(r *rpc.PingReply) (n int) {
	for _, s := range r.Shards {
		if s.Phase != "ended" {
			n++
		}
	}
	return n
}

// say logs that nobody takes a shard.
func (f *Finder) say(id manifest.ShardID, writers int, cause error) {
	now := f.host.Mono()
	f.mu.Lock()
	last, said := f.said[id]
	if said && now < last+sayEvery {
		f.mu.Unlock()
		return
	}
	f.said[id] = now
	f.mu.Unlock()
	if writers == 0 {
		f.log.Warn("a shard has no writer, and no writer is known: start one with granary writer --any", "shard", id)
		return
	}
	f.log.Warn("a shard has no writer, and none of those that answer takes it", "shard", id, "writers", writers, "cause", cause)
}
