package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// underway is where those who work on a store of backups say so, before they look who else does.
const underway = "meta/underway/"

const pruner = "prune"

// Begin says that a backup of that name is being copied: until End, nobody prunes the store, since
// what is there already may be what the backup counts on. One that died is begun again, under its
// name. Errors: Conflict while the store is being pruned.
func Begin(ctx context.Context, to bucket.Bucket, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return enter(ctx, to, "backup."+name, func(other string) bool { return other == pruner },
		"it is being pruned: wait, and should that prune have died, granary backup prune --take-over ends it")
}

// End says that the backup of that name is not being copied any more.
func End(ctx context.Context, to bucket.Bucket, name string) error {
	return leave(ctx, to, "backup."+name)
}

// enter writes a mark and then looks for others: of two who exclude one another, at least one sees
// the other, whatever the order of their requests.
func enter(ctx context.Context, to bucket.Bucket, mark string, excludes func(other string) bool, why string) error {
	if _, err := to.Put(ctx, underway+mark, []byte(mark), bucket.Condition{}); err != nil {
		return fmt.Errorf("write %s%s: %w", underway, mark, err)
	}
	others, err := marks(ctx, to)
	if err != nil {
		return errors.Join(err, leave(ctx, to, mark))
	}
	if i := slices.IndexFunc(others, excludes); i >= 0 {
		return errors.Join(fmt.Errorf("%s: %w: %s is under way: %s", to, errkind.Conflict, others[i], why), leave(ctx, to, mark))
	}
	return nil
}

func leave(ctx context.Context, to bucket.Bucket, mark string) error {
	if err := to.Delete(context.WithoutCancel(ctx), underway+mark); err != nil {
		return fmt.Errorf("delete %s%s: %w", underway, mark, err)
	}
	return nil
}

func marks(ctx context.Context, to bucket.Bucket) (list []string, err error) {
	err = each(ctx, to, underway, func(a bucket.Attrs) { list = append(list, strings.TrimPrefix(a.Key, underway)) })
	return list, err
}

// each calls fn for every object under a prefix, in key order.
func each(ctx context.Context, b bucket.Bucket, prefix string, fn func(bucket.Attrs)) error {
	for after, more := "", true; more; {
		page, further, err := b.List(ctx, prefix, after, 0)
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, a := range page {
			fn(a)
			after = a.Key
		}
		more = further && len(page) > 0
	}
	return nil
}

// Retention says which backups stay: the newest Keep, and those younger than MaxAgeMillis. A zero
// field keeps none.
type Retention struct {
	Keep         int
	MaxAgeMillis int64
}

// Select divides backups into those that stay and those that go, pure; both by time, the newest
// first. Errors: Invalid when nothing would stay.
func (r Retention) Select(list []Listed, nowMillis int64) (stay, gone []Listed, err error) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(b.Millis, a.Millis), cmp.Compare(b.Name, a.Name))
	})
	for i, b := range list {
		if i < r.Keep || r.MaxAgeMillis > 0 && nowMillis-b.Millis < r.MaxAgeMillis {
			stay = append(stay, b)
		} else {
			gone = append(gone, b)
		}
	}
	if len(stay) == 0 && len(list) > 0 {
		return nil, nil, fmt.Errorf("prune %d backups: %w: none would be left: --keep 1 keeps the newest", len(list), errkind.Invalid)
	}
	return stay, gone, nil
}

// Pruned is what a prune removed, or would remove.
type Pruned struct {
	Kept    []Listed `json:"kept"`
	Gone    []Listed `json:"gone"`
	Objects int      `json:"objects"` // that no backup needs any more, also of such that died
	Bytes   int64    `json:"bytes"`
}

// Prune removes the backups that r does not keep: their names first, so that there is never a
// backup that lacks something, then every page and segment that none of the others needs. It may
// be killed anywhere; the next one goes on. One backup that cannot be read stops it. takeOver
// ignores the marks of backups and prunes under way: whoever says so knows that they died.
//
// Errors: Conflict while a backup is under way; Invalid for a store that holds a cluster as well,
// whose objects are not a backup's to delete, and when nothing would be left.
func Prune(ctx context.Context, store bucket.Bucket, r Retention, nowMillis int64, dry, takeOver bool) (p *Pruned, err error) {
	if err := onlyBackups(ctx, store); err != nil {
		return nil, err
	}
	if !dry {
		if err := begin(ctx, store, takeOver); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, leave(ctx, store, pruner)) }()
	}
	list, err := List(ctx, store)
	if err != nil {
		return nil, err
	}
	p = &Pruned{}
	if p.Kept, p.Gone, err = r.Select(list, nowMillis); err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, b := range p.Kept {
		plan, err := Open(ctx, store, b.Name)
		if err != nil {
			return nil, fmt.Errorf("backup %q cannot be read, so nothing is deleted: %w", b.Name, err)
		}
		for _, o := range plan.Objects {
			needed[o.Key] = true
		}
	}
	if dry {
		_, err := p.unneeded(ctx, store, needed)
		return p, err
	}
	for _, b := range p.Gone {
		if err := store.Delete(ctx, prefix+b.Name); err != nil {
			return p, fmt.Errorf("delete backup %q: %w", b.Name, err)
		}
	}
	keys, err := p.unneeded(ctx, store, needed)
	if err != nil {
		return p, err
	}
	return p, deleteAll(ctx, store, keys)
}

// begin marks that the store is being pruned; taking over, it removes the marks of others.
func begin(ctx context.Context, store bucket.Bucket, takeOver bool) error {
	if takeOver {
		others, err := marks(ctx, store)
		if err != nil {
			return err
		}
		for _, m := range others {
			if err := leave(ctx, store, m); err != nil {
				return err
			}
		}
	}
	return enter(ctx, store, pruner, func(other string) bool { return other != pruner },
		"wait, and should it have died, make it again under its name, or --take-over gives it up")
}

// onlyBackups refuses a store in which a cluster lives.
func onlyBackups(ctx context.Context, store bucket.Bucket) error {
	for _, p := range []string{manifest.RootKey, "wal/", manifest.HistoryPrefix, manifest.PinPrefix} {
		page, _, err := store.List(ctx, p, "", 1)
		if err != nil {
			return fmt.Errorf("list %s: %w", p, err)
		}
		if len(page) > 0 {
			return fmt.Errorf("%s: %w: it holds %s, so a cluster is or was here as well: only a store of backups alone is pruned", store, errkind.Invalid, page[0].Key)
		}
	}
	return nil
}

// unneeded lists, and counts, the pages and segments that no backup needs.
func (p *Pruned) unneeded(ctx context.Context, store bucket.Bucket, needed map[string]bool) (keys []string, err error) {
	for _, kind := range []string{"seg/", manifest.PagePrefix} {
		err = each(ctx, store, kind, func(a bucket.Attrs) {
			if !needed[a.Key] {
				keys = append(keys, a.Key)
				p.Objects, p.Bytes = p.Objects+1, p.Bytes+a.Size
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// deletesAtOnce bounds the deletes that are under way together.
const deletesAtOnce = 8

func deleteAll(ctx context.Context, store bucket.Bucket, keys []string) error {
	for part := range slices.Chunk(keys, deletesAtOnce) {
		errs := make([]error, len(part))
		var all sync.WaitGroup
		for i, key := range part {
			all.Go(func() {
				if err := store.Delete(ctx, key); err != nil {
					errs[i] = fmt.Errorf("delete %s: %w", key, err)
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}
