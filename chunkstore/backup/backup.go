// Package backup copies one moment of a cluster to another store, and back.
//
// # What a backup is
//
// A cluster at one moment is a pin: an immutable copy of the root, the pages of chunk lists
// that it names, and the segments that its chunks refer to. All of them are immutable and
// named for ever, so a backup is the same objects under the same keys in another store, and
// the copy of the root as meta/backup/<name>, which is written last:
//
//	pin (flush, commit) --> pages, segments that are not there yet --> meta/backup/<name>
//
// A second backup into the same store copies what is new. The cluster is not stopped: the pin
// keeps what the backup still has to read. One that dies on the way is begun again, and finds
// there what it had copied; its pin ends by its time.
//
// # Restoring
//
// Into a store without a root, the same objects are copied back, and then a root is made of
// the copy: the same cluster at that moment, with every shard free. What was acknowledged after
// the backup began may be missing, what was acknowledged before is not.
//
// # Pruning
//
// A store of backups keeps every object until it is pruned (Prune): the names of the backups that
// go, then whatever the others do not need. A backup that is being copied counts on objects that
// are there already, so the two exclude each other by marks (Begin).
//
// Bytes are compared by size while they are copied; granary fsck --deep reads every row.
//
// The package may change with any release.
package backup

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// prefix is where the copies of roots are in a store of backups.
const prefix = "meta/backup/"

// nameOK is what a backup may be called: it is a part of a key.
var nameOK = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckName refuses a name that is no part of a key. Errors: Invalid.
func CheckName(name string) error {
	if !nameOK.MatchString(name) {
		return fmt.Errorf("backup name %q: %w: letters, digits, and . _ - behind the first, at most 64", name, errkind.Invalid)
	}
	return nil
}

// Object is one that a backup needs.
type Object struct {
	Key  string
	Size int64 // 0: not known before it is read
}

// Plan is what is to be copied.
type Plan struct {
	State   *manifest.State
	Root    []byte // the copy of the root
	Objects []Object
	Bytes   int64 // of objects whose size is known
}

// Read makes the plan of a kept root version, the object key of a store. Errors: NotFound,
// Corrupt; Invalid for what is in several locations.
func Read(ctx context.Context, from bucket.Bucket, key string) (*Plan, error) {
	o, err := from.Get(ctx, key, bucket.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	image, err := manifest.DecodeRoot(o.Body)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	p := &Plan{Root: o.Body}
	if p.State, err = manifest.ReadCopy(ctx, bucket.NewCell(from), nil, key); err != nil {
		return nil, err
	}
	for _, h := range p.State.Shards() {
		if at, err := p.State.Location(h.Location); err == nil {
			return nil, fmt.Errorf("shard %s is in %s: %w: only a cluster that is in its own store altogether can be backed up; "+
				"a copy would share that place with it. Keep its past with granary snapshot create or granary history --keep 24h, "+
				"and take collections out with granary export --at NAME", h.ID, at.URL, errkind.Invalid)
		}
	}
	for _, page := range image.Missing(nil) {
		p.Objects = append(p.Objects, Object{Key: page.Key()})
	}
	seen := make(map[manifest.SegmentID]bool)
	for c := range p.State.AllChunks() {
		for i := range c.Refs {
			r := &c.Refs[i]
			if !seen[r.Segment] {
				seen[r.Segment] = true
				p.Objects = append(p.Objects, Object{Key: r.Segment.Key(), Size: int64(r.Size)})
				p.Bytes += int64(r.Size)
			}
		}
	}
	return p, nil
}

// Copier copies plans between two stores.
type Copier struct {
	From, To bucket.Bucket
	// Parallel is how many objects are copied at once, each held in memory as a whole; 0: 4.
	Parallel int
	// Progress, when not nil, is told after each object; calls do not overlap.
	Progress func(Result)
}

// Result is what was copied so far, and what was there already.
type Result struct {
	Objects, Copied, There int
	Bytes                  int64 // copied
}

// Copy brings every object of a plan that is not there yet. Errors: the first one; what was
// copied stays, and is found by the next call. Corrupt when an object has another size than
// the chunks say.
func (c *Copier) Copy(ctx context.Context, p *Plan) (Result, error) {
	parallel := c.Parallel
	if parallel == 0 {
		parallel = 4
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	r := Result{Objects: len(p.Objects)}
	next := make(chan Object)
	var all sync.WaitGroup
	for range parallel {
		all.Go(func() {
			for o := range next {
				n, err := c.one(ctx, o)
				mu.Lock()
				switch {
				case err != nil:
					cancel(err)
				case n < 0:
					r.There++
				default:
					r.Copied, r.Bytes = r.Copied+1, r.Bytes+n
				}
				if c.Progress != nil {
					c.Progress(r)
				}
				mu.Unlock()
			}
		})
	}
	for _, o := range p.Objects {
		if ctx.Err() != nil {
			break
		}
		next <- o
	}
	close(next)
	all.Wait()
	return r, context.Cause(ctx)
}

// one copies an object, and returns how many bytes; -1: it was there.
func (c *Copier) one(ctx context.Context, o Object) (int64, error) {
	there, err := c.To.Head(ctx, o.Key)
	switch {
	case err == nil && (o.Size == 0 || there.Size == o.Size):
		return -1, nil
	case err != nil && !errors.Is(err, errkind.NotFound):
		return 0, fmt.Errorf("look for %s at the destination: %w", o.Key, err)
	}
	got, err := c.From.Get(ctx, o.Key, bucket.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", o.Key, err)
	}
	if o.Size != 0 && int64(len(got.Body)) != o.Size {
		return 0, fmt.Errorf("%s has %d bytes, its chunk says %d: %w", o.Key, len(got.Body), o.Size, errkind.Corrupt)
	}
	if _, err := c.To.Put(ctx, o.Key, got.Body, bucket.Condition{}); err != nil {
		return 0, fmt.Errorf("write %s: %w", o.Key, err)
	}
	return int64(len(got.Body)), nil
}

// Finish names a backup whose objects are all there, since Begin. Errors: Conflict when there is
// another of that name.
func Finish(ctx context.Context, to bucket.Bucket, name string, p *Plan) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if _, err := to.Put(ctx, prefix+name, p.Root, bucket.IfAbsent); err != nil {
		return fmt.Errorf("write %s%s: %w", prefix, name, err)
	}
	return nil
}

// Open is the plan of a backup by its name, in the store of backups.
func Open(ctx context.Context, from bucket.Bucket, name string) (*Plan, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return Read(ctx, from, prefix+name)
}

// Listed is a backup in a store.
type Listed struct {
	Name   string `json:"name"`
	Millis int64  `json:"millis"` // when it was finished, by the store's clock
}

// List are the backups of a store, by name.
func List(ctx context.Context, from bucket.Bucket) (list []Listed, err error) {
	for after, more := "", true; more; {
		var page []bucket.Attrs
		if page, more, err = from.List(ctx, prefix, after, 0); err != nil {
			return nil, fmt.Errorf("list backups: %w", err)
		}
		for _, a := range page {
			list, after = append(list, Listed{Name: strings.TrimPrefix(a.Key, prefix), Millis: a.ModifiedMillis}), a.Key
		}
		more = more && len(page) > 0
	}
	return list, nil
}

// Restore makes a cluster of a plan whose objects were copied to a store without a root.
// Errors: Conflict when there is one.
func Restore(ctx context.Context, to bucket.Bucket, h host.Host, p *Plan) (*manifest.State, error) {
	return manifest.Restore(ctx, bucket.NewCell(to), h, p.State, h.Wall().UnixMilli())
}
