package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// askWait bounds the question to one holder.
const askWait = time.Second

// asker asks writers how they are.
type asker struct{ *rpc.HTTPDialer }

func newAsker(secret string, h host.Host) asker {
	return asker{rpc.NewHTTPDialer(secret, h, &rpc.HTTPOptions{ConnectWait: askWait, CallWait: askWait})}
}

// ask asks every holder that has an address, all at once.
func (s *status) ask(ctx context.Context, a asker, state *manifest.State) {
	replies := map[string]*rpc.PingReply{}
	for i := range s.Shards {
		if address := s.Shards[i].Address; address != "" {
			replies[address] = nil
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, address := range slices.Sorted(maps.Keys(replies)) {
		all.Go(func() {
			reply := a.ping(ctx, address)
			mu.Lock()
			defer mu.Unlock()
			replies[address] = reply
		})
	}
	all.Wait()
	s.Compaction.ask(replies)
	for _, address := range slices.Sorted(maps.Keys(replies)) {
		if r := replies[address]; r != nil && r.Corrupt > 0 {
			s.Alarms = append(s.Alarms, alarmStatus{r.Self.Holder, address, r.Corrupt, r.CorruptLast, r.CorruptAgeMillis})
		}
	}
	for i := range s.Shards {
		if sh := &s.Shards[i]; sh.Address != "" {
			sh.answered(replies[sh.Address], state.Shard(sh.ID))
		}
	}
}

// askLoads asks every holder that has an address what is asked of its chunks, and adds the hot
// tails. Who does not answer has said so to ask.
func (s *status) askLoads(ctx context.Context, a asker, state *manifest.State) {
	loads := make(plan.Loads)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, h := range state.Shards() {
		if h.Status == manifest.ShardFree || h.Address == "" {
			continue
		}
		all.Go(func() {
			owner, err := a.Dial(h.ID, h.Holder, h.Address)
			if err != nil {
				return
			}
			reply, err := owner.Loads(ctx, &rpc.LoadsRequest{Header: rpc.Header{Shard: h.ID, Deadline: askWait}})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, l := range reply.Chunks {
				loads[l.ID] = l
			}
			for _, c := range reply.Copying {
				if coll := state.Collection(c.Collection); coll != nil {
					s.Copying = append(s.Copying, copyStatus{coll.Namespace(), c.Chunk, c.Chunks, h.ID, c.To, c.Bytes, c.Total})
				}
			}
		})
	}
	all.Wait()
	nobodys := func(manifest.ShardID) bool { return false } // nothing is to be done here
	for _, t := range plan.Make(state, nobodys, loads, 0, plan.Settings{}).HotTails {
		s.HotTails = append(s.HotTails, hotTailStatus{t.Collection.Namespace(), t.Chunk.Shard, t.Share, t.Inserts, t.String()})
	}
}

// ping is what a writer says; nil: nothing.
func (a asker) ping(ctx context.Context, address string) *rpc.PingReply {
	peer, err := a.DialPeer(address)
	if err != nil {
		return nil
	}
	reply, err := peer.Ping(ctx, &rpc.PingRequest{Header: rpc.Header{Deadline: askWait}})
	if err != nil {
		return nil
	}
	return reply
}

// answered adds what a holder said of a shard; nil: nothing.
func (s *shardStatus) answered(reply *rpc.PingReply, in *manifest.Shard) {
	yes := reply != nil && reply.Self.Holder == s.Holder
	s.Answers = &yes
	if !yes {
		return
	}
	for _, h := range reply.Shards {
		if h.ID != s.ID || h.Epoch != s.Epoch {
			continue
		}
		s.Phase, s.Unflushed = h.Phase, &h.Unflushed
		age := int64(in.LeaseMillis) - h.LeaseLeftMillis
		s.LeaseAge = &age
		if h.AckAgeMillis >= 0 {
			s.AckAge = &h.AckAgeMillis
		}
	}
}

// recentMax is how many takeovers and moves a table shows.
const recentMax = 5

func printStatus(out io.Writer, s status) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "store %s, cluster %s, root version %d\n\n", s.Store, s.Cluster, s.Version)
	for _, a := range s.Alarms {
		fmt.Fprintf(w, "ALARM: the writer at %s found %d times that stored bytes are not what was written, the last %s ago:\n  %s\n  run granary fsck --store %s\n\n",
			a.Address, a.Corrupt, ago(&a.Age), a.Last, s.Store)
	}
	fmt.Fprintln(w, "SHARD\tSTATE\tEPOCH\tHOLDER\tADDRESS\tPHASE\tLEASE AGE\tLAST ACK\tFLOOR\tOPEN EPOCHS\tLOG OBJECTS\tLOG BYTES\tCHUNKS\tROWS\tBYTES")
	for _, sh := range s.Shards {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.8s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n",
			sh.ID, sh.State, sh.Epoch, dash(sh.Holder), dash(sh.Address), sh.phase(), ago(sh.LeaseAge), ago(sh.AckAge),
			sh.Floor, sh.Open, sh.WALObjects, sh.WALBytes, sh.Chunks, sh.Rows, sh.Bytes)
	}
	fmt.Fprintln(w, "\nCOLLECTION\tKEY\tSHARDED\tCHUNKS\tROWS\tBYTES")
	for _, c := range s.Collections {
		rows := fmt.Sprint(c.Rows)
		if !c.Exact {
			rows = "~" + rows
		}
		fmt.Fprintf(w, "%s\t%s\t%t\t%d\t%s\t%d\n", c.Namespace, c.Key, c.Sharded, c.Chunks, rows, c.Bytes)
	}
	if len(s.HotTails) > 0 {
		fmt.Fprintln(w, "\nHOT TAIL\tSHARD\tSAYS")
		for _, h := range s.HotTails {
			fmt.Fprintf(w, "%s\t%s\t%s\n", h.Namespace, h.Shard, h.Says)
		}
	}
	if len(s.Resharding) > 0 {
		fmt.Fprintln(w, "\nRESHARDING\tKEY\tPHASE\tROWS\tOF\tBYTES\tSECONDS\tSAID AT")
		for _, r := range s.Resharding {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", r.Namespace, r.Key, r.Phase, r.Rows, r.RowsTotal, r.Bytes, r.Seconds, r.At)
		}
	}
	if len(s.Copying) > 0 {
		fmt.Fprintln(w, "\nCOPYING\tCHUNK\tCHUNKS\tFROM\tTO\tBYTES\tOF")
		for _, c := range s.Copying {
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%d\t%d\n", c.Namespace, c.Chunk, c.Chunks, c.From, c.To, c.Bytes, c.Total)
		}
	}
	s.Compaction.print(w)
	if len(s.Takeovers) > 0 {
		fmt.Fprintln(w, "\nTAKEOVER\tSHARD\tEPOCH\tBY")
		for _, t := range s.Takeovers[:min(recentMax, len(s.Takeovers))] {
			fmt.Fprintf(w, "%s\t%s\t%d\t%.8s\n", t.At, t.Shard, t.Epoch, t.Holder)
		}
	}
	if len(s.Moves) > 0 {
		fmt.Fprintln(w, "\nMOVE\tCOLLECTION\tFROM\tTO")
		for _, m := range s.Moves[:min(recentMax, len(s.Moves))] {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.At, m.Namespace, m.From, m.To)
		}
	}
	return w.Flush()
}

// phase is what the holder does with the shard.
func (s *shardStatus) phase() string {
	if s.Answers != nil && !*s.Answers {
		return "no answer"
	}
	return dash(s.Phase)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func ago(millis *int64) string {
	if millis == nil {
		return "-"
	}
	d := time.Duration(*millis) * time.Millisecond
	if d >= 10*time.Second {
		d = d.Round(time.Second)
	}
	return d.String()
}
