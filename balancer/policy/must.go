package policy

import (
	"cmp"
	"fmt"
	"slices"
)

// What must be elsewhere, whatever it costs: chunks of shards that are to be emptied, and
// chunks outside of their zone.

// empty moves chunks off shards that drain.
func (c *collection) empty() {
	have := c.have()
	for _, x := range c.items {
		if x.on.drains {
			c.mustMove(x, Drain, have)
		}
	}
}

// settleZones moves chunks into their zones.
func (c *collection) settleZones() {
	have := c.have()
	for _, x := range c.items {
		switch {
		case x.cross && c.info.Sharded:
			c.stuck = append(c.stuck, stuck{Zone, fmt.Sprintf("the chunk [%v, %v) reaches over the end of a zone: cut it there with sh.splitAt(%q, END)",
				x.chunk.MinBSON, x.chunk.MaxBSON, c.info.Namespace())})
		case x.zone != "" && !x.moved && !x.on.drains && !x.on.zones.InZone(x.zone):
			c.mustMove(x, Zone, have)
		}
	}
}

// held is what a shard has of a collection, by its index.
type held struct {
	bytes  int64
	chunks int
}

func (h *held) take(x *item) {
	h.bytes += x.bytes
	h.chunks++
}

func (c *collection) have() []held {
	have := make([]held, len(c.w.shards))
	for _, x := range c.items {
		have[x.on.index].take(x)
	}
	return have
}

// mustMove gives a chunk to the shard that has least of the collection, and of all: of those in
// its location if there are any, and without a zone rather of those in the cluster's own bucket
// than in another one's.
func (c *collection) mustMove(x *item, reason Reason, have []held) {
	zone := x.zone
	takers := c.w.takers(zone)
	switch {
	case x.on.free:
		c.stuck = append(c.stuck, stuck{reason, fmt.Sprintf("nobody holds %s, which has a chunk that should move: start a granary writer", x.on.id)})
		return
	case len(takers) == 0 && zone != "":
		c.stuck = append(c.stuck, stuck{reason, fmt.Sprintf("zone %s forbids it: no other shard of the zone takes the chunk [%v, %v) of %s; add one with sh.addShardToZone(SHARD, %q)",
			zone, x.chunk.MinBSON, x.chunk.MaxBSON, x.on.id, zone)})
		return
	case len(takers) == 0:
		c.stuck = append(c.stuck, stuck{reason, fmt.Sprintf("no other shard takes the chunks of %s: add one with sh.addShard(NAME) and start a granary writer", x.on.id)})
		return
	}
	to := slices.MinFunc(takers, func(a, b *shard) int {
		return cmp.Or(cmp.Compare(x.dear(a), x.dear(b)), cmp.Compare(have[a.index].bytes, have[b.index].bytes), cmp.Compare(have[a.index].chunks, have[b.index].chunks),
			cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.chunks, b.chunks), cmp.Compare(a.id, b.id))
	})
	have[to.index].take(x)
	c.move(x, to, reason)
}

// dear is how much a shard is to be avoided for the sake of where its data is.
func (x *item) dear(to *shard) int {
	switch {
	case to.at() == x.on.at():
		return 0
	case x.zone != "" || to.at() == 0:
		return 1
	}
	return 2
}
