package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// copyOf is an object that is, or should be, a copy of a root version.
type copyOf struct {
	key   string
	image *manifest.Image
}

// survey finds what the repair stands on: the root, or the newest copy of it that can be read
// with all its pages.
func (w *work) survey(ctx context.Context) error {
	o, err := w.Bucket.Get(ctx, manifest.RootKey, bucket.GetOptions{})
	var image *manifest.Image
	switch {
	case errors.Is(err, errkind.NotFound):
		left, err := bucket.Remains(ctx, w.Bucket)
		if err != nil {
			return fmt.Errorf("repair: %w", err)
		}
		if left == "" {
			return fmt.Errorf("repair: %w: the store holds no cluster, and nothing of one", errkind.NotFound)
		}
		w.report.Root = "it is missing"
	case err != nil:
		return fmt.Errorf("repair: read root: %w", err)
	default:
		w.tag = string(o.Tag)
		if image, err = manifest.DecodeRoot(o.Body); errors.Is(err, errkind.Invalid) {
			return fmt.Errorf("repair: %w", err)
		} else if err != nil {
			w.report.Root = err.Error()
		}
	}
	if image != nil {
		if done, err := w.readRoot(ctx, image); err != nil || done {
			return err
		}
	}
	return w.readCopy(ctx)
}

// readRoot reads the root's pages, and makes those again that are lost, as far as copies have
// them. done: the root is whole.
func (w *work) readRoot(ctx context.Context, image *manifest.Image) (done bool, err error) {
	lost, err := w.lostPages(ctx, image)
	if err != nil {
		return false, err
	}
	if len(lost) == 0 {
		w.kept, err = manifest.ReadCopy(ctx, bucket.NewCell(w.Bucket), w.places, manifest.RootKey)
		w.whole = err == nil
		return w.whole, err
	}
	copies, err := w.copies(ctx)
	if err != nil {
		return false, err
	}
	objects := make(map[string][]byte)
	for _, page := range lost {
		object, err := remake(page, copies)
		if err != nil {
			return false, err
		}
		if object == nil {
			w.report.Root = fmt.Sprintf("%s, a part of its list of chunks, is lost, and no copy has it in itself", page.Key())
			return false, nil
		}
		objects[page.Key()] = object
		w.report.Pages = append(w.report.Pages, page.Key())
	}
	return true, w.putPages(ctx, objects)
}

// putPages stores pages that were made again, and reads the root with them. A dry run reads it
// through them.
func (w *work) putPages(ctx context.Context, objects map[string][]byte) (err error) {
	cell := manifest.Cell(bucket.NewCell(w.Bucket))
	if w.o.Write {
		for key, object := range objects {
			if _, err := w.Bucket.Put(ctx, key, object, bucket.Condition{}); err != nil {
				return fmt.Errorf("repair: write %s: %w", key, err)
			}
		}
	} else {
		cell = overlay{cell, objects}
	}
	w.kept, err = manifest.ReadCopy(ctx, cell, w.places, manifest.RootKey)
	w.whole = err == nil
	return err
}

// overlay is a store with some objects that are not in it yet.
type overlay struct {
	manifest.Cell
	objects map[string][]byte
}

func (o overlay) Load(ctx context.Context, key, known string) ([]byte, string, error) {
	if object, ok := o.objects[key]; ok {
		return object, "", nil
	}
	return o.Cell.Load(ctx, key, known)
}

// lostPages are the pages of an image that are missing or damaged.
func (w *work) lostPages(ctx context.Context, image *manifest.Image) (lost []manifest.PageRef, err error) {
	for _, ref := range image.Missing(nil) {
		from, err := w.pageBucket(image, ref)
		if err != nil {
			return nil, err
		}
		o, err := from.Get(ctx, ref.Key(), bucket.GetOptions{})
		if err == nil {
			_, err = manifest.DecodePage(image.ClusterID(), ref, o.Body)
		}
		switch {
		case errors.Is(err, errkind.NotFound), errors.Is(err, errkind.Corrupt):
			lost = append(lost, ref)
		case err != nil:
			return nil, fmt.Errorf("repair: read %s: %w", ref.Key(), err)
		}
	}
	return lost, nil
}

// pageBucket is where a page is.
func (w *work) pageBucket(image *manifest.Image, ref manifest.PageRef) (bucket.Bucket, error) {
	if ref.Location == 0 {
		return w.Bucket, nil
	}
	l, err := image.Location(ref.Location)
	if err != nil {
		return nil, fmt.Errorf("repair: %s: %w", ref.Key(), err)
	}
	return w.place(l)
}

func remake(page manifest.PageRef, copies []copyOf) ([]byte, error) {
	for _, c := range copies {
		if object, err := c.image.RemakePage(page); object != nil || err != nil {
			return object, err
		}
	}
	return nil, nil
}

// copies are the copies of the root that can be decoded, the newest first: those that commits
// left, and those of snapshots. The report names the others.
func (w *work) copies(ctx context.Context) (list []copyOf, err error) {
	for _, prefix := range []string{manifest.HistoryPrefix, manifest.PinPrefix} {
		err := objects(ctx, w.Bucket, prefix, func(a bucket.Attrs) error {
			o, err := w.Bucket.Get(ctx, a.Key, bucket.GetOptions{})
			if errors.Is(err, errkind.NotFound) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("repair: read %s: %w", a.Key, err)
			}
			image, err := manifest.DecodeRoot(o.Body)
			if err != nil {
				w.report.Unreadable = append(w.report.Unreadable, fmt.Sprintf("%s: %v", a.Key, err))
				if v, notOne := manifest.ParseHistoryKey(a.Key); notOne == nil {
					w.missed = max(w.missed, v)
				}
				return nil
			}
			list = append(list, copyOf{a.Key, image})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b copyOf) int {
		return int(min(max(int64(b.image.Version())-int64(a.image.Version()), -1), 1))
	})
	return list, nil
}

// readCopy takes the newest copy that can be read with its pages.
func (w *work) readCopy(ctx context.Context) error {
	w.report.Unreadable = nil
	list, err := w.copies(ctx)
	if err != nil {
		return err
	}
	for _, c := range list {
		state, err := manifest.ReadCopy(ctx, bucket.NewCell(w.Bucket), w.places, c.key)
		switch {
		case err == nil:
			w.kept = state
			w.report.Copy, w.report.CopyVersion, w.report.CopyMillis = c.key, state.Version(), state.CopiedMillis()
			w.doubt(c.key, slices.ContainsFunc(list, func(x copyOf) bool { return strings.HasPrefix(x.key, manifest.HistoryPrefix) }))
			return w.unproven(ctx)
		case !errors.Is(err, errkind.Corrupt) && !errors.Is(err, errkind.NotFound):
			return fmt.Errorf("repair: %w", err)
		}
		w.report.Unreadable = append(w.report.Unreadable, err.Error())
		if strings.HasPrefix(c.key, manifest.HistoryPrefix) {
			w.missed = max(w.missed, c.image.Version())
		} // else of a pin: it may have been given up, and no log is collected because of one
	}
	return fmt.Errorf("repair: %w: no copy of the root can be read (%d were tried), and segments do not say which collections they are of: make a cluster of a backup with granary restore",
		errkind.NotFound, len(w.report.Unreadable))
}

// doubt says what the copy that was taken cannot vouch for. GC keeps what the newest copy that
// commits left needs, and with it what a newer one of a snapshot needs; of what was flushed after
// an older one, the log may be collected.
func (w *work) doubt(taken string, history bool) {
	why := ""
	if w.missed > w.report.CopyVersion {
		why = "a newer copy cannot be read"
	} else if !history {
		why = "it is a snapshot's, and there is none that commits left"
	}
	if why != "" {
		w.report.Lost = append(w.report.Lost, fsck.Problem{Rule: fsck.RuleCopy, Object: taken,
			Detail: fmt.Sprintf("the root is rebuilt from version %d, although %s: what was written after it, was flushed, and of which the log was collected may be missing", w.report.CopyVersion, why)})
	}
}

// modifiedError is how far the store's clock and those of committers may be apart.
const modifiedError = 5 * 60 * 1000

// unproven counts the segments that are younger than the copy and that it does not refer to.
func (w *work) unproven(ctx context.Context) error {
	known := referenced(w.kept)
	for _, d := range w.kept.Dropped() {
		known[d.Segment.Key()] = true
	}
	return w.everywhere(func(b bucket.Bucket) error {
		return objects(ctx, b, "seg/", func(a bucket.Attrs) error {
			if !known[a.Key] && a.ModifiedMillis >= w.report.CopyMillis-modifiedError {
				w.report.Unproven++
			}
			return nil
		})
	})
}

// objects calls fn for every object under a prefix, in key order.
func objects(ctx context.Context, b bucket.Bucket, prefix string, fn func(bucket.Attrs) error) error {
	for after, more := "", true; more; {
		page, further, err := b.List(ctx, prefix, after, 0)
		if err != nil {
			return fmt.Errorf("repair: list %s after %q: %w", prefix, after, err)
		}
		for _, a := range page {
			if err := fn(a); err != nil {
				return err
			}
			after = a.Key
		}
		more = further && len(page) > 0
	}
	return nil
}
