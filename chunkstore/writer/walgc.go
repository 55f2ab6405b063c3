package writer

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
)

// walPage is how many keys one listing asks for.
const walPage = 1000

// WALGarbage picks from WAL objects of one shard, listed in order, those that may be deleted
// under a root in which the shard's floor is floor. They are data, and everything they hold
// is in segments.
//
// In the floor's own epoch that is what lies below the floor. In an older epoch the last
// object may be its seal, which stays for ever: without it a PUT of that epoch that was on
// its way all the time would find its place free. So the last object that is listed is
// never picked either, unless next, the key that follows the list, shows that its epoch
// goes on. Keys that are not of the WAL are passed over.
func WALGarbage(shard manifest.ShardID, floor manifest.Position, listed []string, next string) []string {
	var garbage []string
	for i, key := range listed {
		e, index, ok := parseWALKey(shard, key)
		if !ok || !floor.Covers(e, index) {
			continue
		}
		if e == floor.Epoch {
			garbage = append(garbage, key)
			continue
		}
		after := next
		if i+1 < len(listed) {
			after = listed[i+1]
		}
		if following, _, ok := parseWALKey(shard, after); ok && following == e || broken(sealsCollected) {
			garbage = append(garbage, key)
		}
	}
	return garbage
}

// parseWALKey reads a key that manifest.WALKey made for the shard.
func parseWALKey(shard manifest.ShardID, key string) (e manifest.Epoch, index uint64, ok bool) {
	rest, ok := strings.CutPrefix(key, "wal/"+string(shard)+"/")
	if !ok || len(rest) != 41 {
		return 0, 0, false
	}
	epoch, err := strconv.ParseUint(rest[:20], 10, 64)
	index, err2 := strconv.ParseUint(rest[21:], 10, 64)
	e = manifest.Epoch(epoch)
	return e, index, err == nil && err2 == nil && manifest.WALKey(shard, e, index) == key
}

// CollectWAL deletes the WAL objects that nothing needs any more, of all shards of the
// cluster whose floor has moved since this Writer last did so. It may run anywhere, at any
// time, several times at once. It returns how many it deleted.
func (w *Writer) CollectWAL(ctx context.Context) (deleted int, err error) {
	st, _, err := w.root.Load(ctx)
	if err != nil {
		return 0, fmt.Errorf("collect the wal: %w", err)
	}
	for _, sh := range st.Shards() {
		w.mu.Lock()
		swept := w.swept[sh.ID] == sh.Floor
		w.mu.Unlock()
		if swept {
			continue
		}
		n, err := CollectWAL(ctx, w.bucket, sh.ID, sh.Floor)
		deleted += n
		if err != nil {
			return deleted, err
		}
		w.mu.Lock()
		w.swept[sh.ID] = sh.Floor
		w.mu.Unlock()
	}
	return deleted, nil
}

// CollectWAL deletes what WALGarbage picks of one shard's WAL. floor must be the shard's in
// a root that was read.
func CollectWAL(ctx context.Context, b bucket.Bucket, shard manifest.ShardID, floor manifest.Position) (deleted int, err error) {
	prefix := "wal/" + string(shard) + "/"
	var listed []string // one page, and the last key of the one before
	for after, more := "", true; more; {
		var page []bucket.Attrs
		page, more, err = b.List(ctx, prefix, after, walPage)
		if err != nil {
			return deleted, fmt.Errorf("collect the wal of shard %s: list: %w", shard, err)
		}
		for _, o := range page {
			listed = append(listed, o.Key)
		}
		if len(page) == 0 {
			more = false
		}
		last := len(listed)
		if more {
			last-- // what it is shows when the next page is here
			after = listed[last]
		}
		next := ""
		if last < len(listed) {
			next = listed[last]
		}
		for _, key := range WALGarbage(shard, floor, listed[:last], next) {
			if err := b.Delete(ctx, key); err != nil {
				return deleted, fmt.Errorf("collect the wal of shard %s: %w", shard, err)
			}
			deleted++
		}
		listed = listed[last:]
	}
	return deleted, nil
}
