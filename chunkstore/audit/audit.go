// Package audit reads every object of a cluster in every location, and tells which hold a key
// or a document of a zone that may not be there.
//
// A zone's data may be where the zone's shards are. The audit believes no list: it decodes
// whatever it finds under wal/, seg/ and meta/, referenced or not, and looks at
//
//   - rows and records of the log, with their keys and retry entries;
//   - retry entries of segments: keys, documents that they answer with, rows that they name;
//   - bounds and keys in chunk list pages, in the root and in its copies: pins and history.
//
// A bound that a zone's range declares is no breach: the root names it anyway. What belongs to
// no zone may be anywhere, and a collection that is gone has no zones. What other programs keep
// in the same buckets is counted and passed over.
//
// Everything is judged by one root, the newest when the audit begins. Objects that are deleted
// meanwhile are no breach; what a zone forbids since a moment ago is one until the balancer and
// the collector have done their work.
//
// The package may change with any release.
package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Breach is an object that holds what may not be where it is.
type Breach struct {
	Location  string `json:"location"`
	Object    string `json:"object"`
	Zone      string `json:"zone"`
	Namespace string `json:"namespace"`
	What      string `json:"what"`
	// Count is how many keys of the zone the object has; Key is the first of them, in hex.
	Count int    `json:"count"`
	Key   string `json:"key"`
}

// Report is what an audit found.
type Report struct {
	Version  manifest.Version `json:"version"`
	Zones    int              `json:"zones"` // ranges that belong to a zone
	Objects  int              `json:"objects"`
	Foreign  int              `json:"foreign"` // objects that are not the cluster's
	Keys     int64            `json:"keys"`
	Breaches []Breach         `json:"breaches"`
	// Unread are objects that could not be decoded, with the reason: nobody knows what is in them.
	Unread []string `json:"unread"`
}

// Auditor audits one cluster.
type Auditor struct {
	Root *manifest.Root
	Open func(manifest.LocationID) (bucket.Bucket, error)
	// Progress, when not nil, is told after each object.
	Progress func(objects int)
}

// Run reads everything. Errors: those of the buckets; what was found is in the report.
func (a *Auditor) Run(ctx context.Context) (*Report, error) {
	state, _, err := a.Root.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: read root: %w", err)
	}
	r := newReport(state)
	ids := []manifest.LocationID{0}
	for _, l := range state.Locations() {
		ids = append(ids, l.ID)
	}
	for _, id := range ids {
		b, err := a.Open(id)
		if err == nil {
			err = (&place{Auditor: a, state: state, report: r, id: id, b: b}).run(ctx)
		}
		if err != nil {
			return r, fmt.Errorf("audit: location %d: %w", id, err)
		}
	}
	return r, nil
}

// Object audits one object of a location, by a root, wherever its bytes are now: what must never
// have been written can be found while it is.
func Object(state *manifest.State, b bucket.Bucket, id manifest.LocationID, key string, body []byte) *Report {
	p := &place{Auditor: &Auditor{}, state: state, report: newReport(state), id: id, b: b}
	if decode := p.decoder(key); decode != nil {
		p.read(decode, key, body)
	}
	return p.report
}

func newReport(state *manifest.State) *Report {
	r := &Report{Version: state.Version(), Breaches: []Breach{}, Unread: []string{}}
	for _, c := range state.Collections() {
		r.Zones += len(c.Zones)
	}
	return r
}

// place is one location under audit.
type place struct {
	*Auditor
	state  *manifest.State
	report *Report
	id     manifest.LocationID
	b      bucket.Bucket
	// of the object that is read
	key   string
	found map[string]int // in Breaches, by zone and collection
}

func (p *place) run(ctx context.Context) error {
	after := ""
	for {
		page, more, err := p.b.List(ctx, "", after, 0)
		if err != nil {
			return fmt.Errorf("list after %q: %w", after, err)
		}
		for _, o := range page {
			if err := p.object(ctx, o.Key); err != nil {
				return err
			}
			after = o.Key
		}
		if !more || len(page) == 0 {
			return nil
		}
	}
}

// object reads and judges one object.
func (p *place) object(ctx context.Context, key string) error {
	decode := p.decoder(key)
	if decode == nil {
		p.report.Foreign++
		return nil
	}
	o, err := p.b.Get(ctx, key, bucket.GetOptions{})
	if errors.Is(err, errkind.NotFound) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	p.read(decode, key, o.Body)
	if p.Progress != nil {
		p.Progress(p.report.Objects)
	}
	return nil
}

func (p *place) read(decode func([]byte) error, key string, body []byte) {
	p.key, p.found = key, nil
	if err := decode(body); err != nil {
		p.report.Unread = append(p.report.Unread, fmt.Sprintf("%s: %s: %v", p.b, key, err))
	}
	p.report.Objects++
}

// decoder is what reads an object of that name; nil for one that is not the cluster's, or holds
// nothing of documents.
func (p *place) decoder(key string) func([]byte) error {
	switch {
	case strings.HasPrefix(key, "wal/"):
		if _, _, _, err := manifest.ParseWALKey(key); err == nil {
			return p.log
		}
	case strings.HasPrefix(key, "seg/"):
		if id, err := manifest.ParseSegmentKey(key); err == nil {
			return func(body []byte) error { return segment.Walk(id, body, p.row, p.retry) }
		}
	case key == manifest.RootKey, strings.HasPrefix(key, "meta/pin/"), strings.HasPrefix(key, "meta/history/"), strings.HasPrefix(key, "meta/page/"):
		return p.mentions
	}
	return nil
}

func (p *place) log(body []byte) error {
	_, records, err := wal.Decode(body)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Op != wal.RetryOnly {
			p.judge(r.Collection, r.Key, "record of the log", false)
		}
		if r.Retry != nil {
			if err := p.retry(*r.Retry); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *place) row(r segment.Row) error {
	p.judge(r.Collection, r.Key, "row of a segment", false)
	return nil
}

func (p *place) retry(e segment.RetryEntry) error {
	p.judge(e.Collection, e.Key, "key of a retry entry", true)
	p.judge(e.Collection, e.Span.Min, "range of a retry entry", true)
	p.judge(e.Collection, e.Span.Max, "range of a retry entry", true)
	docs, key := writer.Told(&e)
	p.judge(e.Collection, key, "row that a retry entry names", false)
	for _, d := range docs {
		p.document(e.Collection, d)
	}
	return nil
}

// document judges one that a retry entry answers with, if it is whole: a projection need not
// have the fields of the key.
func (p *place) document(id manifest.CollectionID, d bson.Raw) {
	c := p.state.Collection(id)
	if c == nil || len(c.Key.Missing(d)) > 0 {
		return
	}
	if key, err := c.Key.AppendKey(nil, d); err == nil {
		p.judge(id, key, "document that a retry entry answers with", false)
	}
}

func (p *place) mentions(body []byte) error {
	list, err := manifest.Mentions(body)
	for _, m := range list {
		p.judge(m.Collection, m.Key, m.What, true)
	}
	return err
}

// judge notes a key that may not be here; asBound: it may be a declared bound.
func (p *place) judge(id manifest.CollectionID, key []byte, what string, asBound bool) {
	if len(key) == 0 {
		return
	}
	p.report.Keys++
	c := p.state.Collection(id)
	if c == nil {
		return
	}
	for i := range c.Zones {
		z := &c.Zones[i]
		if !z.Range.Contains(key) {
			continue
		}
		if asBound && bytes.Equal(key, z.Range.Min) || Allowed(p.state, z.Zone, p.id) {
			return
		}
		p.breach(c, z.Zone, key, what)
		return
	}
}

func (p *place) breach(c *manifest.Collection, zone string, key []byte, what string) {
	at := zone + "\x00" + c.Namespace()
	i, ok := p.found[at]
	if !ok {
		i = len(p.report.Breaches)
		p.report.Breaches = append(p.report.Breaches, Breach{
			Location: p.b.String(), Object: p.key, Zone: zone, Namespace: c.Namespace(), What: what, Key: fmt.Sprintf("%x", key),
		})
		if p.found == nil {
			p.found = make(map[string]int)
		}
		p.found[at] = i
	}
	p.report.Breaches[i].Count++
}

// Allowed reports whether data of a zone may be in a location: whether some shard of the zone
// is there. Of a zone without shards nobody said where it may be.
func Allowed(s *manifest.State, zone string, at manifest.LocationID) bool {
	shards := s.ShardsOf(zone)
	for _, h := range shards {
		if h.Location == at {
			return true
		}
	}
	return len(shards) == 0
}
