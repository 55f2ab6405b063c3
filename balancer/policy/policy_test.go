package policy_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var update = flag.Bool("update", false, "rewrite the scenarios in testdata")

// TestScenarios plays each scenario of testdata: a placement, and what is planned.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(strings.TrimSpace(string(text)), "\n\n")
		for i, b := range blocks {
			words, want, _ := strings.Cut(b, "\n----")
			got := words + "\n----\n" + show(parse(t, words).plan())
			if got = strings.TrimRight(got, "\n"); !*update && got != words+"\n----"+want {
				t.Errorf("%s, block %d:\n%s\nwant%s", file, i, got, want)
			}
			blocks[i] = got
		}
		if *update {
			if err := os.WriteFile(file, []byte(strings.Join(blocks, "\n\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// world is a placement in the making.
type world struct {
	tb    testing.TB
	state *manifest.State
	in    policy.Input
	n     int
}

func newWorld(tb testing.TB, shards ...manifest.ShardID) *world {
	return &world{tb: tb, state: manifesttest.New(tb, shards...), in: policy.Input{NowMillis: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli()}}
}

func (w *world) apply(changes ...manifest.Change) {
	w.tb.Helper()
	w.n++
	next, err := manifest.Apply(w.state, manifest.Edit{Op: [16]byte{byte(w.n), byte(w.n >> 8), 1}, Changes: changes}, [16]byte{byte(w.n), byte(w.n >> 8), 2})
	if err != nil {
		w.tb.Fatal(err)
	}
	w.state = next
}

func (w *world) claim(id manifest.ShardID) {
	w.apply(manifest.Claim{Shard: id, Epoch: w.state.Shard(id).Epoch, Holder: "p"})
}

// locate adds the shards that are in a location of their own: shard eu in=s3://eu.
func (w *world) locate(text string) {
	for line := range strings.Lines(text) {
		if before, url, ok := strings.Cut(line, " in="); ok && strings.HasPrefix(line, "shard ") {
			w.apply(manifest.AddShards{IDs: []manifest.ShardID{manifest.ShardID(strings.Fields(before)[1])}, URL: strings.Fields(url)[0]})
		}
	}
}

// place is one chunk of a new collection.
type place struct {
	shard manifest.ShardID
	bytes int64
	jumbo bool
	auto  bool // not cut by hand
}

// create makes a collection with chunks at 1, 2, 3, ...
func (w *world) create(ns string, c manifest.Collection, places []place) {
	c.Database, c.Name, _ = strings.Cut(ns, ".")
	c.Key, c.UUID = shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}, [16]byte{byte(len(w.state.Collections()) + 1)}
	low := manifest.Bound{BSON: c.Key.MinBSON()}
	var chunks []manifest.NewChunk
	for i, p := range places {
		high := manifest.Bound{BSON: c.Key.MaxBSON()}
		if i < len(places)-1 {
			high = bound(w.tb, c.Key, i+1)
		}
		n := manifest.NewChunk{Min: low, Max: high, Shard: p.shard}
		if !p.auto {
			n.ManualUntil = w.in.NowMillis/1000 + 3600
		}
		chunks = append(chunks, n)
		low = high
	}
	w.apply(manifest.CreateCollection{Collection: c, Chunks: chunks})
	i := 0
	id := w.state.CollectionByName(c.Database, c.Name).ID
	for chunk := range w.state.Chunks(id) {
		p := places[i]
		i++
		if p.bytes > 0 {
			w.fill(chunk, p.bytes)
		}
		if p.jumbo {
			w.apply(manifest.MarkChunk{Chunk: w.state.ChunkOf(id, chunk.Range.Min).At(), Flags: manifest.ChunkIndivisible})
		}
	}
}

func bound(tb testing.TB, key shardkey.Pattern, at int) manifest.Bound {
	doc, _ := bson.Marshal(bson.D{{Key: "k", Value: at}})
	k, full, err := key.Bound(doc)
	if err != nil {
		tb.Fatal(err)
	}
	return manifest.Bound{Key: k, BSON: full}
}

func (w *world) fill(chunk *manifest.Chunk, bytes int64) {
	h := w.state.Shard(chunk.Shard)
	if h.Status == manifest.ShardFree {
		w.apply(manifest.DirectCommit{Shard: h.ID, Epoch: h.Epoch, Chunk: chunk.At(), MaxSeq: chunk.MaxSeq, Added: manifest.Added{BytesDelta: bytes}})
		return
	}
	w.apply(manifest.Flush{Shard: h.ID, Epoch: h.Epoch, Snapshot: h.Floor, Chunks: []manifest.FlushedChunk{{At: chunk.At(), Added: manifest.Added{BytesDelta: bytes}}}})
}

func (w *world) plan() policy.Plan {
	w.in.State, w.in.Settings = w.state, balancing.Of(w.state)
	return policy.Make(w.in)
}

// carry out moves chunks as owners do.
func (w *world) carryOut(actions []policy.Action) {
	w.tb.Helper()
	var changes []manifest.Change
	for _, a := range actions {
		from, to := w.state.Shard(a.From), w.state.Shard(a.To)
		changes = append(changes, manifest.Move{Chunk: a.Chunk, From: a.From, FromEpoch: from.Epoch, To: a.To, ToEpoch: to.Epoch,
			Promise: manifest.Position{Epoch: to.Epoch}})
	}
	w.apply(changes...)
}

// parse reads a placement:
//
//	shard a | shard b free | shard c zone=eu | shard d drain
//	collection db.c [size=MB] [nobalance] [nomigrations] [zone=eu:FROM..TO] chunks a*2 b=10 c=200!
//	settings {json}     now 12:30     fail CHUNK cause     load CHUNK=N ...
func parse(tb testing.TB, text string) *world {
	var shards []manifest.ShardID
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "shard" && !strings.Contains(line, " in=") {
			shards = append(shards, manifest.ShardID(f[1]))
		}
	}
	w := newWorld(tb, shards...)
	w.locate(text)
	var drains []manifest.ShardID
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		switch f[0] {
		case "shard":
			id := manifest.ShardID(f[1])
			if !slices.Contains(f, "free") {
				w.claim(id)
			}
			if slices.Contains(f, "drain") {
				drains = append(drains, id)
			}
			for _, o := range f[2:] {
				if z, ok := strings.CutPrefix(o, "zone="); ok {
					w.apply(manifest.SetShardZones{ID: id, Zones: strings.Split(z, ",")})
				}
			}
		case "collection":
			parseCollection(w, f[1:])
		case "settings":
			var body bson.D
			if err := bson.UnmarshalExtJSON([]byte(strings.Join(f[1:], " ")), false, &body); err != nil {
				tb.Fatal(err)
			}
			doc, _ := bson.Marshal(body)
			w.apply(manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordBalancer, ID: balancing.SettingsID, Body: doc}})
		case "now":
			at, err := time.Parse("15:04", f[1])
			if err != nil {
				tb.Fatal(err)
			}
			w.in.NowMillis = time.Date(2026, 3, 1, at.Hour(), at.Minute(), 0, 0, time.UTC).UnixMilli()
		case "fail":
			w.in.Failures = append(w.in.Failures, balancing.Failure{
				Chunk: manifest.ChunkID(number(f[1])), Tries: 1, Until: bson.DateTime(w.in.NowMillis + 60_000), Cause: strings.Join(f[2:], " "),
			})
		case "load":
			w.in.Loads = map[manifest.ChunkID]policy.Load{}
			for _, x := range f[1:] {
				id, n, _ := strings.Cut(x, "=")
				w.in.Loads[manifest.ChunkID(number(id))] = policy.Load{Writes: float64(number(n))}
			}
		default:
			tb.Fatalf("unknown line %q", line)
		}
	}
	for _, id := range drains {
		w.apply(balancing.Drain{}.Begin(w.state.Shard(id))...)
	}
	return w
}

func parseCollection(w *world, f []string) {
	var c manifest.Collection
	c.Sharded = true
	var places []place
	for i, word := range f[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "size":
			c.Options = manifest.WithChunkSize(c.Options, int64(number(value))<<20)
		case "nobalance":
			c.NoBalance = true
		case "unsharded":
			c.Sharded = false
		case "nomigrations":
			c.Options = manifest.WithMigrations(c.Options, false)
		case "zone":
			key := shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}
			zone, ends, _ := strings.Cut(value, ":")
			low, high, _ := strings.Cut(ends, "..")
			a, b := bound(w.tb, key, number(low)), bound(w.tb, key, number(high))
			c.Zones = append(c.Zones, manifest.ZoneRange{Zone: zone, Range: shardkey.Range{Min: a.Key, Max: b.Key}, MinBSON: a.BSON, MaxBSON: b.BSON})
		case "chunks":
			for _, p := range f[i+2:] {
				places = append(places, parsePlaces(p)...)
			}
			w.create(f[0], c, places)
			return
		default:
			w.tb.Fatalf("unknown word %q", word)
		}
	}
}

// parsePlaces: a=10 is 10 MB on a, a*3=10 three of them, ! marks one value, ~ that nobody cut
// it by hand.
func parsePlaces(text string) (list []place) {
	text, jumbo := strings.CutSuffix(text, "!")
	text, auto := strings.CutSuffix(text, "~")
	name, bytes, sized := strings.Cut(text, "=")
	name, times, many := strings.Cut(name, "*")
	p, n := place{shard: manifest.ShardID(name), jumbo: jumbo, auto: auto}, 1
	if sized {
		p.bytes = int64(number(bytes)) << 20
	}
	if many {
		n = number(times)
	}
	return slices.Repeat([]place{p}, n)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// show is a plan as text; runs of small chunks are one line.
func show(p policy.Plan) string {
	var b strings.Builder
	var last string
	n := 0
	flush := func() {
		if n > 0 {
			fmt.Fprintf(&b, "%s x%d\n", last, n)
		}
		n = 0
	}
	slices.SortStableFunc(p.Actions, func(a, b policy.Action) int {
		if a.Small && b.Small {
			return strings.Compare(string(a.From+a.To), string(b.From+b.To))
		}
		return 0
	})
	for _, a := range p.Actions {
		line := fmt.Sprintf("%s: %s -> %s", a.Reason, a.From, a.To)
		if a.Small {
			if line != last {
				flush()
			}
			last = line
			n++
			continue
		}
		flush()
		fmt.Fprintf(&b, "%s chunk %d of %d MB\n", line, a.Chunk.ID, a.Bytes>>20)
	}
	flush()
	for _, v := range p.Verdicts {
		fmt.Fprintf(&b, "%s: %s: %s\n", v.Namespace, v.Violation, v.Sentence)
	}
	return b.String()
}

// TestPlansComeToAnEnd carries out plan after plan of random placements until nothing is left
// to do: it ends, no chunk goes to a shard that takes none or out of its zone, no chunk is
// named twice in a plan, and then sizes and numbers are within their bounds.
func TestPlansComeToAnEnd(t *testing.T) {
	for seed := range uint64(300) {
		w, r := randomWorld(t, seed)
		rounds := 0
		for p := w.plan(); len(p.Actions) > 0; p = w.plan() {
			checkActions(t, seed, w, p)
			w.carryOut(p.Actions)
			if rounds++; rounds > 100 {
				t.Fatalf("seed %d: no end; now\n%s", seed, show(w.plan()))
			}
		}
		checkBounds(t, seed, w)
		_ = r
	}
}

func randomWorld(t *testing.T, seed uint64) (*world, *rand.Rand) {
	r := rand.New(rand.NewPCG(seed, 1))
	ids := []manifest.ShardID{"a", "b", "c", "d", "e", "f"}[:2+r.IntN(5)]
	w := newWorld(t, ids...)
	zones := []string{"", "eu", "us"}
	for i, id := range ids {
		if i < 2 || r.IntN(6) > 0 {
			w.claim(id)
		}
		if z := zones[r.IntN(3)]; z != "" {
			w.apply(manifest.SetShardZones{ID: id, Zones: []string{z}})
		}
	}
	for n := range 1 + r.IntN(3) {
		c := manifest.Collection{Sharded: r.IntN(8) > 0}
		var places []place
		skew, byHand := ids[r.IntN(len(ids))], r.IntN(2)
		for range 1 + r.IntN(60) {
			p := place{shard: ids[r.IntN(len(ids))], auto: !c.Sharded || byHand == 0 && r.IntN(3) == 0}
			if r.IntN(3) > 0 {
				p.shard = skew
			}
			if r.IntN(2) > 0 {
				p.bytes = int64(r.IntN(200)) << 20
			}
			places = append(places, p)
		}
		if r.IntN(2) == 0 && len(places) > 6 && c.Sharded {
			key := shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}
			a, b := bound(t, key, 1), bound(t, key, 4)
			c.Zones = []manifest.ZoneRange{{Zone: "eu", Range: shardkey.Range{Min: a.Key, Max: b.Key}, MinBSON: a.BSON, MaxBSON: b.BSON}}
		}
		w.create(fmt.Sprintf("db.c%d", n), c, places)
	}
	if r.IntN(2) == 0 {
		if h := w.state.Shard(ids[0]); h.Status == manifest.ShardHeld {
			w.apply(balancing.Drain{}.Begin(h)...)
		}
	}
	if r.IntN(2) == 0 {
		w.in.Loads = map[manifest.ChunkID]policy.Load{}
		for c := range w.state.AllChunks() {
			w.in.Loads[c.ID] = policy.Load{Reads: float64(r.IntN(100)), Writes: float64(r.IntN(10)) * float64(r.IntN(200))}
		}
	}
	if r.IntN(5) == 0 {
		doc, _ := bson.Marshal(bson.D{{Key: "policy", Value: "chunks"}})
		w.apply(manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordBalancer, ID: balancing.SettingsID, Body: doc}})
	}
	return w, r
}

func checkActions(t *testing.T, seed uint64, w *world, p policy.Plan) {
	seen := map[manifest.ChunkID]bool{}
	for _, a := range p.Actions {
		chunk := w.state.ChunkAt(a.Chunk)
		if chunk == nil || chunk.Shard != a.From || a.From == a.To || seen[a.Chunk.ID] {
			t.Fatalf("seed %d: %+v is not about the chunk there", seed, a)
		}
		seen[a.Chunk.ID] = true
		to := w.state.Shard(a.To)
		c := w.state.Collection(a.Chunk.Collection)
		if z, _ := c.ZoneOf(chunk.Range); to.Status != manifest.ShardHeld || z != nil && !to.InZone(z.Zone) {
			t.Fatalf("seed %d: %+v goes where it must not be", seed, a)
		}
		if w.state.Shard(a.From).Status == manifest.ShardFree {
			t.Fatalf("seed %d: %+v has no owner who could carry it out", seed, a)
		}
		if !c.Sharded && a.Reason != policy.Drain {
			t.Fatalf("seed %d: %+v moves what is not sharded", seed, a)
		}
	}
}

func checkBounds(t *testing.T, seed uint64, w *world) {
	for _, c := range w.state.Collections() {
		small := map[string]map[manifest.ShardID]int{}
		for chunk := range w.state.Chunks(c.ID) {
			zone := ""
			if z, _ := c.ZoneOf(chunk.Range); z != nil {
				zone = z.Zone
			}
			h := w.state.Shard(chunk.Shard)
			if h.Status == manifest.ShardDraining && len(takers(w.state, zone)) > 0 {
				t.Fatalf("seed %d: chunk %d is still on %s", seed, chunk.ID, h.ID)
			}
			if chunk.ManualUntil == 0 {
				small = nil // some are left to merges, or were
				break
			}
			if chunk.Bytes*100 < manifest.ChunkSizeDefault && slices.Contains(takers(w.state, zone), chunk.Shard) {
				if small[zone] == nil {
					small[zone] = map[manifest.ShardID]int{}
				}
				small[zone][chunk.Shard]++
			}
		}
		if !c.Sharded || balancing.Of(w.state).Policy == balancing.ByCount {
			continue
		}
		for zone, counts := range small {
			least, most := 1<<30, 0
			for _, id := range takers(w.state, zone) {
				least, most = min(least, counts[id]), max(most, counts[id])
			}
			if most-least > 1 {
				t.Fatalf("seed %d: small chunks of %s in zone %q: %v", seed, c.Namespace(), zone, counts)
			}
		}
	}
}

func takers(s *manifest.State, zone string) (ids []manifest.ShardID) {
	for _, h := range s.Shards() {
		if h.Status == manifest.ShardHeld && (zone == "" || h.InZone(zone)) {
			ids = append(ids, h.ID)
		}
	}
	return ids
}

// TestPresplitIsDealtLikeCards spreads 1441 empty chunks of one shard over three: each has
// 480 or 481, and no two neighbours are on one shard.
func TestPresplitIsDealtLikeCards(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	for _, id := range []manifest.ShardID{"a", "b", "c"} {
		w.claim(id)
	}
	w.create("data.data", manifest.Collection{Sharded: true}, slices.Repeat([]place{{shard: "a"}}, 1441))
	p := w.plan()
	w.carryOut(p.Actions)
	counts, last, pairs := map[manifest.ShardID]int{}, manifest.ShardID(""), 0
	for c := range w.state.AllChunks() {
		if counts[c.Shard]++; c.Shard == last {
			pairs++
		}
		last = c.Shard
	}
	for id, n := range counts {
		if n < 480 || n > 481 {
			t.Errorf("shard %s has %d chunks", id, n)
		}
	}
	if len(counts) != 3 || pairs > 0 {
		t.Errorf("%v, %d neighbours on one shard", counts, pairs)
	}
	if p := w.plan(); len(p.Actions) > 0 {
		t.Errorf("%d actions are left", len(p.Actions))
	}
}
