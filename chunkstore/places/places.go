// Package places opens the locations of a cluster: the buckets, other than its own, that
// shards were added with. A process has one Places, and all that it stores or reads goes
// through it by the number of a location; 0 is the cluster's own bucket.
//
//	sh.addShard("eu01/s3://granary-eu/prod?region=eu-central-1")
//	   |  Prepare: probe the bucket, write meta/location    (once, before the root names it)
//	   v
//	root: location 1 = s3://granary-eu/...                  (for ever)
//	   |  Open(1): a bucket, at once
//	   v
//	first request: open the URL, read meta/location         (once in each process)
//
// # The mark
//
// meta/location in a location says of which cluster it is. A bucket that is another
// cluster's own, or has the mark of another cluster, is refused when a shard is added: two
// clusters would sweep each other's objects. A process that finds another mark, or none,
// where its root says that a location is, has the wrong bucket before it: an endpoint of
// another site, a disk that is not mounted. It gets an error instead of an empty store.
//
// # Secrets
//
// A URL has none. Each process has credentials of its own for a location, from where the
// driver finds them; `profile=` in an s3:// URL names those of one location.
//
// The package may change with any release.
package places

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Opener opens the bucket of a URL, with all the layers that the process wants around it.
type Opener func(ctx context.Context, url string) (bucket.Bucket, error)

// Places are the locations that one process knows. Safe for concurrent use.
type Places struct {
	own  bucket.Bucket
	open Opener
	host host.Host
	root *manifest.Root

	mu    sync.Mutex
	known map[manifest.LocationID]*place
}

// New makes the places of a process, and its view of the root in the cluster's own bucket,
// which reads pages that are elsewhere. Without open, nothing elsewhere can be used. The caller
// closes own.
func New(own bucket.Bucket, open Opener, h host.Host, o *manifest.RootOptions) *Places {
	p := &Places{own: own, open: open, host: h, known: make(map[manifest.LocationID]*place)}
	var with manifest.RootOptions
	if o != nil {
		with = *o
	}
	with.Places = func(l manifest.Location) (manifest.Cell, error) { return bucket.NewCell(p.place(l)), nil }
	p.root = manifest.NewRoot(bucket.NewCell(own), h, &with)
	return p
}

// Root is the process's view of the root.
func (p *Places) Root() *manifest.Root { return p.root }

// Open is the bucket of a location. It sends no request: what is wrong with the location shows
// at the first one. Errors: Invalid, when the newest root that was seen has no such location.
func (p *Places) Open(id manifest.LocationID) (bucket.Bucket, error) {
	if id == 0 {
		return p.own, nil
	}
	p.mu.Lock()
	at := p.known[id]
	p.mu.Unlock()
	if at != nil {
		return at, nil
	}
	s := p.root.State()
	if s == nil {
		return nil, fmt.Errorf("location %d: %w: no root was read", id, errkind.Invalid)
	}
	l, err := s.Location(id)
	if err != nil {
		return nil, err
	}
	return p.place(l), nil
}

// At is the bucket of a location of which a root tells that is not the process's view: a copy, or
// one that is damaged. As Open it sends no request.
func (p *Places) At(l manifest.Location) bucket.Bucket { return p.place(l) }

// place is the location of a root: the same one for the same id, as locations never change.
func (p *Places) place(l manifest.Location) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.known[l.ID]
	if at == nil {
		at = &place{Location: l, p: p, opening: make(chan struct{}, 1)}
		p.known[l.ID] = at
	}
	return at
}

// Close closes the locations that were opened, and not the cluster's own bucket.
func (p *Places) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, at := range p.known {
		errs = append(errs, at.Close())
	}
	return errors.Join(errs...)
}

// MarkKey is the object in a location that says of which cluster it is.
const MarkKey = "meta/location"

// mark is its content.
func mark(c manifest.ClusterID) []byte {
	return fmt.Appendf(nil, "granary location of cluster %x\n", c)
}

// Prepare makes a bucket ready to be a location of the cluster: it is probed, and gets the
// cluster's mark. One that has the mark already is left as it is. Errors: Invalid, when the
// URL is none, when the store is unsafe (bucket.Unsafe), when it is a cluster's own or another
// cluster's location; those of the store.
func (p *Places) Prepare(ctx context.Context, url string) error {
	s, _, err := p.root.Load(ctx)
	if err != nil {
		return err
	}
	if err := p.prepare(ctx, url, mark(s.ClusterID())); err != nil {
		return fmt.Errorf("location %s: %w", url, err)
	}
	return nil
}

func (p *Places) prepare(ctx context.Context, url string, mine []byte) error {
	if p.open == nil {
		return errAlone
	}
	b, err := p.open(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close()
	switch _, err := b.Head(ctx, manifest.RootKey); {
	case err == nil:
		return fmt.Errorf("%w: it is the own bucket of a cluster; name another bucket, or another prefix in it", errkind.Invalid)
	case !errors.Is(err, errkind.NotFound):
		return err
	}
	if err := marked(ctx, b, mine); err == nil || !errors.Is(err, errUnmarked) {
		return err
	}
	if err := bucket.Probe(ctx, b, p.host); err != nil {
		return err
	}
	_, err = b.Put(ctx, MarkKey, mine, bucket.IfAbsent)
	if now := marked(ctx, b, mine); now == nil || !errors.Is(now, errUnmarked) {
		return now // ours, whatever was answered
	}
	return err
}

var (
	errUnmarked = fmt.Errorf("%w: it has no %s, so it is not (or not yet) a location of a cluster: is the bucket there, and is it the right one?", errkind.Invalid, MarkKey)
	errAlone    = fmt.Errorf("%w: this process opens no other bucket than the cluster's own", errkind.Invalid)
)

// marked looks for a mark. Errors: Invalid, when there is none or it is another's; those of the
// store.
func marked(ctx context.Context, b bucket.Bucket, mine []byte) error {
	o, err := b.Get(ctx, MarkKey, bucket.GetOptions{})
	switch {
	case errors.Is(err, errkind.NotFound):
		return errUnmarked
	case err == nil && !bytes.Equal(o.Body, mine):
		return fmt.Errorf("%w: its %s says %q, expected %q: it belongs to another cluster", errkind.Invalid, MarkKey, o.Body, mine)
	}
	return err
}
