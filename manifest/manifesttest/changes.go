package manifesttest

import (
	"strings"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// changes are the changes by name.
var changes = map[string]func(*args) manifest.Change{
	"put":          parsePut,
	"drop-record":  parseDropRecord,
	"note":         parseNote,
	"add-shards":   parseAddShards,
	"remove-shard": func(l *args) manifest.Change { return manifest.RemoveShard{ID: l.shard(0)} },
	"zones":        parseZones,
	"create":       parseCreate,
	"reshape":      parseReshape,
	"alter":        parseAlter,
	"drop":         func(l *args) manifest.Change { return manifest.DropCollection{ID: l.existing(l.word(0)).ID} },
	"claim":        parseClaim,
	"draining": func(l *args) manifest.Change {
		return manifest.SetDraining{Shard: l.shard(0), Draining: l.has("on")}
	},
	"hold": func(l *args) manifest.Change {
		return manifest.PutRecord{Record: l.hold().Record(), IfAbsent: true}
	},
	"drop-range": parseDropRange,
	"leave":      parseLeave,
	"flush":      parseFlush,
	"free":       parseFree,
	"move":       parseMove,
	"split":      parseSplit,
	"merge":      parseMerge,
	"batch":      parseBatch,
	"direct":     parseDirect,
	"advance":    func(l *args) manifest.Change { return manifest.AdvanceFree{Shard: l.shard(0), Epoch: l.epoch()} },
	"register": func(l *args) manifest.Change {
		j := manifest.Job{ID: l.id16(l.word(0)), Kind: "compact"}
		if list := l.named["chunks"]; list != "" {
			var ids []manifest.ChunkID
			for name := range strings.SplitSeq(list, ",") {
				at, _ := l.chunk(name)
				ids = append(ids, at.ID)
			}
			j.Detail = manifest.ChunksDetail(ids)
		}
		if id := l.int("builds"); id != 0 {
			j.Kind, j.Detail = manifest.JobReshard, manifest.JobDetail(manifest.CollectionID(id), "db.c")
		}
		return manifest.RegisterJob{Job: j}
	},
	"expel":   func(l *args) manifest.Change { return manifest.ExpelJob{ID: l.id16(l.word(0))} },
	"compact": parseCompact,
	"mark":    parseMark,
	"forget":  parseForget,
	"pin": func(l *args) manifest.Change {
		return manifest.AddPin{Pin: manifest.Pin{ID: l.id16(l.word(0)), Name: "pin" + l.word(0)}}
	},
	"unpin": func(l *args) manifest.Change { return manifest.DropPin{ID: l.id16(l.word(0))} },
	"abort": func(l *args) manifest.Change {
		return manifest.DecideToken{Token: l.token(l.word(0), l.has("committed"))}
	},
	"dataversion": func(l *args) manifest.Change {
		return manifest.RaiseDataVersion{Collection: manifest.CollectionID(l.int("collection"))}
	},
	"expire": func(l *args) manifest.Change { return manifest.ExpireTokens{Now: l.int("now")} },
	"format": func(l *args) manifest.Change {
		return manifest.RaiseFormat{MinReader: uint16(l.int("reader")), MinWriter: uint16(l.int("writer"))}
	},
}

func record(l *args) manifest.Record {
	kinds := map[string]manifest.RecordKind{"setting": manifest.RecordSetting, "database": manifest.RecordDatabase, "view": manifest.RecordView, "location": manifest.RecordLocation, "none": 0}
	return manifest.Record{Kind: kinds[l.word(0)], ID: l.word(1), Body: valueBody(l.named["v"])}
}

func valueBody(v string) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendString("v", v).Build())
}

func parseNote(l *args) manifest.Change {
	return manifest.Note{What: l.word(0), NS: l.named["ns"], Detail: valueBody(l.named["v"])}
}

func parsePut(l *args) manifest.Change {
	p := manifest.PutRecord{Record: record(l), IfAbsent: l.has("if-absent")}
	if was, ok := l.named["if"]; ok {
		p.IfBody = valueBody(was)
	}
	return p
}

func parseDropRecord(l *args) manifest.Change {
	r := record(l)
	return manifest.DropRecord{Kind: r.Kind, ID: r.ID}
}

func parseAddShards(l *args) manifest.Change {
	c := manifest.AddShards{URL: l.named["url"]}
	for _, w := range l.plain {
		c.IDs = append(c.IDs, manifest.ShardID(w))
	}
	return c
}

func parseZones(l *args) manifest.Change {
	return manifest.SetShardZones{ID: l.shard(0), Zones: l.plain[1:]}
}

func parseCreate(l *args) manifest.Change {
	return manifest.CreateCollection{Collection: l.collection(l.word(0)), Chunks: l.newChunks()}
}

func parseReshape(l *args) manifest.Change {
	c := manifest.ReshapeCollection{Collection: l.existing(l.word(0)), Chunks: l.newChunks()}
	c.Collection.Sharded = true
	for k := range l.s.Chunks(c.Collection.ID) {
		c.At = append(c.At, k.At())
	}
	if named := l.chunks(); len(named) > 0 {
		c.At = nil
		for _, w := range named {
			at, _ := l.chunk(w)
			c.At = append(c.At, at)
		}
	}
	c.Owners = l.owners()
	if l.named["job"] != "" {
		c.Rebuilt = l.rebuilt(c)
	}
	return c
}

func (l *args) owners() (list []manifest.OwnerAt) {
	for _, w := range strings.Fields(strings.ReplaceAll(l.named["owners"], ",", " ")) {
		id, e := l.at(w)
		list = append(list, manifest.OwnerAt{Shard: id, Epoch: e})
	}
	return list
}

// hold reads h1 db.c d..m: an id, a collection and a range.
func (l *args) hold() manifest.RangeHold {
	low, high := pair(l.word(2))
	return manifest.RangeHold{ID: l.word(0), Collection: l.existing(l.word(1)).ID, Range: shardkey.Range{Min: low, Max: high}}
}

// parseLeave: leave c1 refs=01,02; "otherwise" plans on a collection with other indexes.
func parseLeave(l *args) manifest.Change {
	at, _ := l.chunk(l.word(0))
	c := manifest.Expire{Chunk: at}
	if l.has("otherwise") {
		c.Indexes = []manifest.Index{{Name: "other"}}
	}
	for _, name := range strings.Split(l.named["refs"], ",") {
		for _, r := range l.s.ChunkOf(at.Collection, at.Min).Refs {
			if name != "" && r.Segment.Random == l.id16(name) {
				c.Refs = append(c.Refs, r)
			}
		}
	}
	return c
}

func parseDropRange(l *args) manifest.Change {
	h := l.hold()
	c := manifest.DropRange{Hold: h, Min: Bound(string(h.Range.Min), false), Max: Bound(string(h.Range.Max), true), Owners: l.owners()}
	if m := l.named["max"]; m != "" {
		c.Max = Bound(m, true)
	}
	return c
}

// rebuilt is the data of a reshape: job=05 of=1 data={seg=...}: what is in braces goes to the
// new chunk of that place; "other" takes them for made of other references.
func (l *args) rebuilt(c manifest.ReshapeCollection) *manifest.Rebuilt {
	r := &manifest.Rebuilt{Job: l.id16(l.named["job"]), Added: make([]manifest.Added, len(c.Chunks))}
	for _, at := range c.At {
		refs := l.s.ChunkAt(at).Refs
		if l.has("other") {
			refs = refs[:0:0]
		}
		r.From = append(r.From, refs)
	}
	if data := l.named["data"]; data != "" {
		by := manifest.Creator{Kind: manifest.CreatorJob, Job: r.Job}
		if l.named["by"] != "" {
			by.Job = l.id16(l.named["by"])
		}
		r.Added[l.int("of")] = l.added(strings.Trim(data, "{}"), by)
	}
	return r
}

// parseAlter: balance=off, zone=eu:a..m; "stale" plans on a collection with other options.
func parseAlter(l *args) manifest.Change {
	was := l.existing(l.word(0))
	now := was
	now.NoBalance = l.named["balance"] == "off"
	if z := l.named["zone"]; z != "" {
		name, keys, _ := strings.Cut(z, ":")
		low, high := pair(keys)
		now.Zones = append([]manifest.ZoneRange(nil), now.Zones...)
		now.Zones = append(now.Zones, manifest.ZoneRange{
			Zone: name, Range: shardkey.Range{Min: low, Max: high},
			MinBSON: Bound(string(low), false).BSON, MaxBSON: Bound(string(high), true).BSON,
		})
	}
	if l.has("stale") {
		was.NoBalance = !was.NoBalance
	}
	return manifest.AlterCollection{Was: was, Now: now}
}

func parseClaim(l *args) manifest.Change {
	return manifest.Claim{
		Shard: l.shard(0), Epoch: l.epoch(), Holder: l.named["holder"], Address: l.named["address"],
		LeaseMillis: uint32(l.int("lease")),
	}
}

// flushed reads the chunks of a flush or free.
func (l *args) flushed() []manifest.FlushedChunk {
	by := manifest.Creator{Kind: manifest.CreatorShard, Shard: l.shard(0), Epoch: l.epoch()}
	var chunks []manifest.FlushedChunk
	for _, w := range l.chunks() {
		at, braces := l.chunk(w)
		chunks = append(chunks, manifest.FlushedChunk{At: at, Added: l.added(braces, by)})
	}
	return chunks
}

func parseFlush(l *args) manifest.Change {
	return manifest.Flush{Shard: l.shard(0), Epoch: l.epoch(), Snapshot: l.position("snap"), Complete: l.has("complete"), Chunks: l.flushed()}
}

func parseFree(l *args) manifest.Change {
	return manifest.Free{Shard: l.shard(0), Epoch: l.epoch(), Snapshot: l.position("snap"), Chunks: l.flushed()}
}

func parseMove(l *args) manifest.Change {
	var m manifest.Move
	var braces string
	m.Chunk, braces = l.chunk(l.word(0))
	m.From, m.FromEpoch = l.at(l.named["from"])
	m.To, m.ToEpoch = l.at(l.named["to"])
	m.Promise = l.position("promise")
	m.Added = l.added(braces, manifest.Creator{Kind: manifest.CreatorShard, Shard: m.From, Epoch: m.FromEpoch})
	if l.named["copied"] != "" {
		m.Copied = l.copied(m.Chunk)
	}
	return m
}

// copied is what a move copied: job=05 copied={seg=03 in=1 ...}, all that the chunk has;
// "other" takes it for a copy of other references.
func (l *args) copied(at manifest.ChunkAt) *manifest.Copied {
	c := &manifest.Copied{Job: l.id16(l.named["job"]), From: l.s.ChunkOf(at.Collection, at.Min).Refs, Rows: -1}
	if l.has("other") {
		c.From = c.From[:0:0]
	}
	c.To = l.added(strings.Trim(l.named["copied"], "{}"), manifest.Creator{Kind: manifest.CreatorJob, Job: c.Job}).Refs
	return c
}

func parseSplit(l *args) manifest.Change {
	at, _ := l.chunk(l.word(0))
	c := manifest.Split{Chunk: at, Epoch: l.epoch(), ManualUntil: l.int("manual")}
	for _, p := range strings.Split(l.named["at"], ",") {
		if p != "" {
			c.Points = append(c.Points, Bound(p, false))
		}
	}
	return c
}

func parseMerge(l *args) manifest.Change {
	left, _ := l.chunk(l.word(0))
	right, _ := l.chunk(l.word(1))
	return manifest.Merge{Left: left, Right: right}
}

func (l *args) token(text string, committed bool) manifest.Token {
	app, batch, _ := strings.Cut(text, "/")
	return manifest.Token{App: app, Batch: batch, Committed: committed, ExpiresAt: 1000}
}

func parseBatch(l *args) manifest.Change {
	c := manifest.Batch{Token: l.token(l.word(0), !l.has("aborted"))}
	for _, w := range l.chunks() {
		at, braces := l.chunk(w)
		sub := &args{s: l.s, named: map[string]string{}}
		for _, f := range splitWords(braces) {
			name, value, _ := strings.Cut(f, "=")
			if name == "seg" {
				break
			}
			sub.named[name] = value
		}
		shard := manifest.ShardID(sub.named["shard"])
		by := manifest.Creator{Kind: manifest.CreatorShard, Shard: shard, Epoch: sub.epoch()}
		c.Chunks = append(c.Chunks, manifest.BatchChunk{
			At: at, Shard: shard, Epoch: sub.epoch(),
			Seq: manifest.Seq(sub.int("seq")), Added: l.added(braces, by),
		})
	}
	return c
}

func parseDirect(l *args) manifest.Change {
	c := manifest.DirectCommit{Shard: l.shard(0), Epoch: l.epoch(), MaxSeq: manifest.Seq(l.int("maxseq"))}
	var braces string
	c.Chunk, braces = l.chunk(l.word(1))
	c.Added = l.added(braces, manifest.Creator{Kind: manifest.CreatorDirect, Shard: c.Shard, Epoch: c.Epoch})
	return c
}

// parseCompact: compact 05 c1 in=01,02 out={seg=03 ...}; the inputs are taken from the
// chunk, "in=zz" names one that it does not have. "expired=3" rows were left out, "otherwise"
// by other indexes than the collection has.
func parseCompact(l *args) manifest.Change {
	c := manifest.Compact{Job: l.id16(l.word(0)), Oldest: l.has("oldest"), Rows: -1}
	c.Chunk, _ = l.chunk(l.word(1))
	c.Expired = l.int("expired")
	if l.has("otherwise") {
		c.Indexes = []manifest.Index{{Name: "other_1"}}
	}
	if l.named["rows"] != "" {
		c.Rows = l.int("rows")
	}
	for _, name := range strings.Split(l.named["in"], ",") {
		if name == "" {
			continue
		}
		input := manifest.SegmentRef{Segment: manifest.SegmentID{Random: l.id16(name)}}
		for k := range l.s.AllChunks() {
			for _, r := range k.Refs {
				if k.ID == c.Chunk.ID && r.Segment.Random == input.Segment.Random {
					input = r
				}
			}
		}
		c.Inputs = append(c.Inputs, input)
	}
	by := manifest.Creator{Kind: manifest.CreatorJob, Job: c.Job}
	c.Outputs = l.added(strings.Trim(l.named["out"], "{}"), by).Refs
	return c
}

func parseMark(l *args) manifest.Change {
	at, _ := l.chunk(l.word(0))
	c := manifest.MarkChunk{Chunk: at}
	if l.has("indivisible") {
		c.Flags = manifest.ChunkIndivisible
		if v := l.named["value"]; v != "" {
			c.Indivisible = manifest.Indivisible{Value: Bound(v, false).BSON, Bytes: l.int("bytes")}
		}
	}
	return c
}

// parseForget: forget 01 forgets all candidates of that name.
func parseForget(l *args) manifest.Change {
	var c manifest.ForgetDropped
	for _, d := range l.s.Dropped() {
		if d.Segment.Random == l.id16(l.word(0)) {
			c.Segments = append(c.Segments, d)
		}
	}
	return c
}
