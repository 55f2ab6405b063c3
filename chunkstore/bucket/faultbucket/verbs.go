package faultbucket

import (
	"context"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
)

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	obj, f, err := do(ctx, b, Call{Verb: layer.Get, Key: key}, func(ctx context.Context) (bucket.Object, error) {
		return b.b.Get(ctx, key, o)
	})
	if err != nil {
		return bucket.Object{}, err
	}
	switch n := uint64(len(obj.Body)); {
	case f.Kind == OldTag:
		obj.Tag = b.oldTag(key, obj.Tag)
	case n == 0:
	case f.Kind == Truncate:
		obj.Body = obj.Body[:f.Pick%n]
	case f.Kind == Rot:
		obj.Body[f.Pick/8%n] ^= 1 << (f.Pick % 8)
	}
	return obj, nil
}

// Head implements bucket.Bucket.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	a, _, err := do(ctx, b, Call{Verb: layer.Head, Key: key}, func(ctx context.Context) (bucket.Attrs, error) {
		return b.b.Head(ctx, key)
	})
	return a, err
}

// Put implements bucket.Bucket. A delayed Put works on its own copy of the body.
func (b *Bucket) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	body = slices.Clone(body)
	call := Call{Verb: layer.Put, Key: key, Condition: c, Size: len(body)}
	tag, _, err := do(ctx, b, call, func(ctx context.Context) (bucket.Tag, error) {
		tag, err := b.b.Put(ctx, key, body, c)
		if err == nil {
			b.stored(bucket.Attrs{Key: key, Size: int64(len(body)), Tag: tag})
		}
		return tag, err
	})
	return tag, err
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	_, _, err := do(ctx, b, Call{Verb: layer.Delete, Key: key}, func(ctx context.Context) (struct{}, error) {
		err := b.b.Delete(ctx, key)
		if err == nil {
			b.deleted(key)
		}
		return struct{}{}, err
	})
	return err
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	var more bool
	page, f, err := do(ctx, b, Call{Verb: layer.List, Key: prefix}, func(ctx context.Context) (page []bucket.Attrs, err error) {
		page, more, err = b.b.List(ctx, prefix, after, max)
		return page, err
	})
	if err != nil {
		return nil, false, err
	}
	if f.Kind == StaleList {
		page = b.stale(page, more, prefix, after, f.Pick)
	}
	return page, more, nil
}

// historyMax bounds how many writes are remembered for StaleList and OldTag.
const historyMax = 256

// history is what the last writes did: the material of stale answers.
type history struct {
	recent []event // oldest first
	tags   map[string][2]bucket.Tag
}

type event struct {
	bucket.Attrs
	deleted bool
}

func newHistory() history { return history{tags: map[string][2]bucket.Tag{}} }

func (b *Bucket) stored(a bucket.Attrs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remember(event{Attrs: a})
	b.history.tags[a.Key] = [2]bucket.Tag{b.history.tags[a.Key][1], a.Tag}
}

func (b *Bucket) deleted(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range slices.Backward(b.history.recent) {
		if e.Key == key {
			b.remember(event{Attrs: e.Attrs, deleted: true})
			return
		}
	}
}

// remember adds an event in place of older ones of its key. Requires: mu.
func (b *Bucket) remember(e event) {
	h := &b.history
	h.recent = slices.DeleteFunc(h.recent, func(old event) bool { return old.Key == e.Key })
	if len(h.recent) == historyMax {
		delete(h.tags, h.recent[0].Key)
		h.recent = h.recent[1:]
	}
	h.recent = append(h.recent, e)
}

// oldTag is the tag before now, or now when none is known.
func (b *Bucket) oldTag(key string, now bucket.Tag) bucket.Tag {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.history.tags[key]; t[1] == now && t[0] != "" {
		return t[0]
	}
	return now
}

// stale undoes some of the recent writes in a page: the pick's lowest bit decides about the
// newest one, which is always undone when no bit is set at all.
func (b *Bucket) stale(page []bucket.Attrs, more bool, prefix, after string, pick uint64) []bucket.Attrs {
	if pick == 0 {
		pick = 1
	}
	end := ""
	if more && len(page) > 0 {
		end = page[len(page)-1].Key
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, e := range slices.Backward(b.history.recent) {
		age := len(b.history.recent) - 1 - i
		if pick>>(age%64)&1 == 0 || !strings.HasPrefix(e.Key, prefix) {
			continue
		}
		page = slices.DeleteFunc(page, func(a bucket.Attrs) bool { return a.Key == e.Key })
		if e.deleted && e.Key > after && (end == "" || e.Key < end) {
			page = append(page, e.Attrs)
		}
	}
	slices.SortFunc(page, func(x, y bucket.Attrs) int { return strings.Compare(x.Key, y.Key) })
	return page
}
