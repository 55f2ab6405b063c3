package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Location is a place other than the cluster's own bucket: a shard that is added with one
// keeps there all that its chunks are made of.
//
// Invariant: every reference of a chunk is in the location of the chunk's shard, and so are
// the shard's log and the pages that list the chunk. Outside of it nothing is written that
// has a key or a document of the chunk: what the root names of it are its shard, counters,
// and the bounds that it has in common with a chunk elsewhere, which are those of a zone
// where zones are kept. A chunk changes its location in one way only: a Move replaces all
// its references by copies at the destination.
type Location struct {
	Cluster ClusterID // whose location it is
	ID      LocationID
	// URL names the bucket, as --store does. It holds no secret.
	URL string
}

// Places opens a location as registers, as the cluster's own bucket is. A Root asks before
// each request, so it must be quick for a location that is open.
type Places func(Location) (Cell, error)

// locationURL is the field of a location's record.
const locationURL = "url"

func (l Location) record() Record {
	return Record{
		Kind: RecordLocation, ID: l.ID.key(),
		Body: bson.Raw(bsoncore.NewDocumentBuilder().AppendString(locationURL, l.URL).Build()),
	}
}

// key is the id of the location's record.
func (id LocationID) key() string { return strconv.FormatUint(uint64(id), 10) }

func (r Record) location() (l Location, err error) {
	n, err := strconv.ParseUint(r.ID, 10, 32)
	l.ID = LocationID(n)
	if err != nil || n == 0 || l.ID.key() != r.ID {
		return l, invalid("check record", r.subject(), "a location's id is a number above 0")
	}
	url, err := r.Body.LookupErr(locationURL)
	if err == nil {
		l.URL, _ = url.StringValueOK()
	}
	if l.URL == "" || len(l.URL) > nameMax {
		return l, invalid("check record", r.subject(), "it needs a url of 1 to %d bytes", nameMax)
	}
	return l, nil
}

// Locations are the places other than the cluster's own bucket, by id.
func (s *State) Locations() []Location {
	var list []Location
	for _, r := range s.Records(RecordLocation) {
		if l, err := r.location(); err == nil { // always: the state is checked
			l.Cluster = s.cluster
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b Location) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Location is the location of that id, which is not 0. Errors: Invalid.
func (s *State) Location(id LocationID) (Location, error) {
	if r, ok := s.Record(RecordLocation, id.key()); ok {
		l, err := r.location()
		l.Cluster = s.cluster
		return l, err
	}
	return Location{}, fmt.Errorf("location %d: %w: root version %d has none of that id", id, errkind.Invalid, s.version)
}

// LocationOf is where the chunks of a shard are; 0: in the cluster's own bucket.
func (s *State) LocationOf(id ShardID) LocationID {
	if h := s.Shard(id); h != nil {
		return h.Location
	}
	return 0
}

// Spread tells whether some shard is in another place than the cluster's own bucket.
func (s *State) Spread() bool {
	return slices.ContainsFunc(s.shards, func(h *Shard) bool { return h.Location != 0 })
}

// Leaves names a zone that a part of c's range belongs to, and h does not; "" when there is none.
// A move to another location that leaves one is refused.
func (s *State) Leaves(c *Chunk, h *Shard) string {
	for _, z := range s.Collection(c.Collection).Zones {
		if z.Range.Overlaps(c.Range) && !h.InZone(z.Zone) {
			return z.Zone
		}
	}
	return ""
}

// location finds the location of a URL, or makes it.
func (b *builder) location(url string) LocationID {
	next := LocationID(1)
	for _, l := range b.s.Locations() {
		if l.URL == url {
			return l.ID
		}
		next = l.ID + 1
	}
	r := Location{ID: next, URL: url}.record()
	i, _ := b.s.searchRecord(r.Kind, r.ID)
	b.s.records = inserted(b.s.records, i, r)
	// A release that does not know locations would put a shard's log into the wrong bucket.
	b.s.format.MinReader = max(b.s.format.MinReader, formatLocations)
	b.s.format.MinWriter = max(b.s.format.MinWriter, formatLocations)
	return next
}

// checkPlaces requires that the chunks of a page are in one location, all of each, and that
// the page is there, too, if it is an object.
func checkPlaces(s *State, p *page) error {
	at := s.LocationOf(p.chunks[0].Shard)
	if p.stored != nil && p.stored.location != at {
		return invalid("check page", p.id, "it is in location %d, its chunks in %d", p.stored.location, at)
	}
	last := p.chunks[0].Shard
	for _, c := range p.chunks {
		if c.Shard == last {
			// as the one before
		} else if of := s.LocationOf(c.Shard); of != at {
			return invalid("check page", p.id, "chunk %d is in location %d, others of its page in %d", c.ID, of, at)
		}
		last = c.Shard
		for i := range c.Refs {
			if c.Refs[i].Location != at {
				return invalid("check chunk", c.ID, "%s is in location %d, the chunk's shard %s in %d", c.Refs[i].Segment, c.Refs[i].Location, c.Shard, at)
			}
		}
	}
	return nil
}

// discreet tells whether nothing about a chunk's keys may be told in the root, since one of
// some shards has a location of its own.
func (b *builder) discreet(shards ...ShardID) bool {
	return slices.ContainsFunc(shards, func(id ShardID) bool { return b.s.LocationOf(id) != 0 })
}

// bounds appends the bounds of c to an entry of the history, unless they must not be there.
func (b *builder) bounds(d *bsoncore.DocumentBuilder, c *Chunk, shards ...ShardID) *bsoncore.DocumentBuilder {
	if b.discreet(append(shards, c.Shard)...) {
		return d
	}
	return d.AppendDocument("min", doc(c.MinBSON)).AppendDocument("max", doc(c.MaxBSON))
}

// tellable tells whether the root may name a key of a collection as a bound: it is declared as
// the bound of a zone, or is not among the keys of chunks in another location.
func (s *State) tellable(c *Collection, key []byte) bool {
	if len(key) == 0 || !s.Spread() {
		return true
	}
	for i := range c.Zones {
		if r := c.Zones[i].Range; bytes.Equal(r.Min, key) || bytes.Equal(r.Max, key) {
			return true
		}
	}
	at := s.ChunkOf(c.ID, key)
	return at == nil || s.LocationOf(at.Shard) == 0
}

// checkHold refuses to hold a range whose bounds the root may not name.
func (s *State) checkHold(verb string, h RangeHold) error {
	c := s.Collection(h.Collection)
	if c == nil || s.tellable(c, h.Range.Min) && s.tellable(c, h.Range.Max) {
		return nil
	}
	return invalid(verb, c.Namespace(), "a bound of the range lies among documents that are kept in another location, and would have to be told in the cluster's own bucket: "+
		"delete the documents, or name bounds of zones")
}
