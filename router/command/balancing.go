package command

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// balancing is what sh.startBalancer, sh.stopBalancer and their like send.
func (s *Commands) balancing() []Command {
	return []Command{
		{Name: "balancerStart", Help: "lets balancers move chunks", Admin: true, Run: s.balancerSwitch(false)},
		{Name: "balancerStop", Help: "ends all moves by balancers, and returns when the round under way is over", Admin: true, Run: s.balancerSwitch(true)},
		{Name: "balancerStatus", Help: "whether chunks are moved by themselves, which balancer is active, and what is not balanced", Admin: true, Run: s.balancerStatus},
		{Name: "balancerCollectionStatus", Help: "whether the chunks of a collection are where they should be, and why not", Admin: true, Run: s.balancerCollectionStatus},
		{
			Name: "configureCollectionBalancing", Help: "sets the chunk size of a collection, and whether its chunks are merged, moved, and cut inside a value", Admin: true,
			Fields: []string{"chunkSize", "defragmentCollection", "enableAutoMerger", "enableBalancing", splitWithinKey}, Run: s.configureCollectionBalancing,
		},
		{
			Name: "setAllowMigrations", Help: "permits or forbids that chunks of a collection change their shard", Admin: true,
			Fields: []string{"allowMigrations"}, Run: s.setAllowMigrations,
		},
		{
			Name: "clearJumboFlag", Help: "has it tried again to cut a chunk that could not be cut", Admin: true,
			Fields: []string{"find", "bounds"}, Run: s.clearJumboFlag,
		},
	}
}

// who is how the record of a change names its author.
func (c *call) who() string {
	if by, ok := c.value("comment").StringValueOK(); ok && by != "" {
		return fmt.Sprintf("%s (%s)", c.peer, by)
	}
	return c.peer.String()
}

func (s *Commands) balancerSwitch(stopped bool) func(context.Context, *call) (bson.Raw, error) {
	return func(ctx context.Context, c *call) (bson.Raw, error) {
		if err := s.router.SwitchBalancer(ctx, stopped, c.who(), c.maxTime); err != nil {
			return nil, err
		}
		return okReply(), nil
	}
}

func (s *Commands) balancerStatus(ctx context.Context, c *call) (bson.Raw, error) {
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	set, now := balancing.Of(st), s.host.Wall().UnixMilli()
	last, _ := balancing.LastRound(st)
	mode := "full"
	if set.Stopped {
		mode = "off"
	}
	b := build().AppendString("mode", mode).AppendBoolean("inBalancerRound", last.InRound).AppendInt64("numBalancerRounds", last.Rounds)
	if set.Stopped {
		b.AppendString("stopped", set.Who())
	}
	if w := set.Window; w != nil {
		d := build().AppendString("is", w.String()).AppendBoolean("open", w.Open(now))
		if !w.Open(now) {
			d.AppendString("opens", w.Until(now)).AppendDateTime("opensAt", w.Next(now).UnixMilli())
		}
		b.AppendDocument("window", d.Build())
	}
	if last.Holder != "" {
		b.AppendDocument("active", build().AppendString("holder", last.Holder).AppendString("address", last.Address).
			AppendDateTime("lastRound", int64(last.Started)).Build())
	}
	var open []bson.Raw
	for _, v := range s.options.Verdicts(st) {
		if !v.Balanced() {
			open = append(open, bson.Raw(build().AppendString("ns", v.Namespace).AppendString("why", v.Sentence).Build()))
		}
	}
	return ok(b.AppendArray("notBalanced", array(open))), nil
}

func (s *Commands) balancerCollectionStatus(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	if c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	coll := st.CollectionByName(ns.Database, ns.Collection)
	switch {
	case coll == nil:
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "collection %s not found", ns)
	case !coll.Sharded:
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "%s is not sharded, so there is nothing to balance: sh.shardCollection(%q, { ... })", ns, ns.String())
	}
	b := build().AppendInt32("chunkSize", int32(st.ChunkSize(coll)>>20))
	v := verdictOf(s.options.Verdicts(st), ns.String())
	b.AppendBoolean("balancerCompliant", v.Balanced())
	if !v.Balanced() {
		b.AppendString("firstComplianceViolation", v.Violation).AppendDocument("details", build().AppendString("reason", v.Sentence).Build())
	}
	b.AppendString("why", v.Sentence)
	if hot, known := s.options.HotTails()[ns.String()]; known {
		b.AppendString("hotTail", hot)
	}
	return ok(b), nil
}

func verdictOf(all []balancing.Verdict, ns string) balancing.Verdict {
	for _, v := range all {
		if v.Namespace == ns {
			return v
		}
	}
	return balancing.Verdict{Namespace: ns, Sentence: "nothing is known: this router was not given a balancer's rules"}
}

func (s *Commands) configureCollectionBalancing(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	size, sized := c.int("chunkSize"), !absent(c.value("chunkSize"))
	merge, balance, within := c.bool("enableAutoMerger"), c.bool("enableBalancing"), c.bool(splitWithinKey)
	switch {
	case c.bool("defragmentCollection"):
		c.fail(mongoerr.New(mongoerr.CommandNotSupported, "defragmentCollection is not supported, and not needed: small neighbours are merged by themselves, "+
			"and what compaction leaves is whole: enableAutoMerger: true turns merging on, mergeAllChunksOnShard does it at once"))
	case sized && size != 0 && (size < manifest.ChunkSizeMin>>20 || size > manifest.ChunkSizeMax>>20):
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "chunkSize %d is out of range: give 1 to %d MB, or 0 for the cluster's", size, manifest.ChunkSizeMax>>20))
	}
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	err := s.router.AlterBalancing(ctx, ns, func(coll *manifest.Collection) error {
		if !coll.Sharded {
			return mongoerr.New(mongoerr.NamespaceNotSharded, "%s is not sharded, so there is nothing to balance: sh.shardCollection(%q, { ... })", ns, ns.String())
		}
		if sized {
			coll.Options = manifest.WithChunkSize(coll.Options, size<<20)
		}
		if !absent(c.value("enableAutoMerger")) {
			coll.Options = manifest.WithAutoMerge(coll.Options, merge)
		}
		if !absent(c.value("enableBalancing")) {
			coll.NoBalance = !balance
		}
		if !absent(c.value(splitWithinKey)) {
			return switchWithinKey(coll, within, s.host.Wall().UnixMilli())
		}
		return nil
	}, c.maxTime)
	if err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) setAllowMigrations(ctx context.Context, c *call) (bson.Raw, error) {
	ns, permit := c.qualified(c.fields[0].value), c.bool("allowMigrations")
	if c.err == nil && absent(c.value("allowMigrations")) {
		c.fail(missingField("setAllowMigrations.allowMigrations"))
	}
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	err := s.router.AlterBalancing(ctx, ns, func(coll *manifest.Collection) error {
		coll.Options = manifest.WithMigrations(coll.Options, permit)
		return nil
	}, c.maxTime)
	if err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) clearJumboFlag(ctx context.Context, c *call) (bson.Raw, error) {
	ns, at := c.qualified(c.fields[0].value), c.where("find", "bounds")
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	if err := s.router.ClearJumbo(ctx, ns, at, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

// configActionlog is what balancers and their users did, of the root's history.
func configActionlog(st *manifest.State) (docs []bson.Raw) {
	for i, h := range st.History() {
		if isAction(h.What) {
			docs = append(docs, historyDoc(i, h, h.What, h.Detail))
		}
	}
	return docs
}

// isAction: of the actionlog, not of the changelog.
func isAction(what string) bool {
	return what == "balancer.round" || what == "balancer.start" || what == "balancer.stop"
}

func historyDoc(i int, h manifest.HistoryEntry, what string, details bson.Raw) bson.Raw {
	b := build().
		AppendDocument("_id", build().AppendInt64("version", int64(h.Version)).AppendInt32("n", int32(i)).AppendString("what", what).Build()).
		AppendDateTime("time", h.Millis).
		AppendString("what", what).
		AppendString("ns", h.NS)
	if len(details) > 0 {
		b.AppendDocument("details", bsoncore.Document(details))
	}
	return bson.Raw(b.Build())
}
