package localstack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// ShardNames are the names that a new cluster of n shards gives them: shard01, shard02, ...
// Errors: Invalid.
func ShardNames(n int) ([]manifest.ShardID, error) {
	if n < 1 || n > 99 {
		return nil, fmt.Errorf("--shards %d: %w: 1 to 99", n, errkind.Invalid)
	}
	names := make([]manifest.ShardID, n)
	for i := range names {
		names[i] = manifest.ShardID(fmt.Sprintf("shard%02d", i+1))
	}
	return names, nil
}

// ensureCluster loads the root, or probes the store and makes the first one. While the store
// cannot be reached it tries again, for as long as Options.Wait says.
func ensureCluster(ctx context.Context, b bucket.Bucket, root *manifest.Root, h host.Host, o Options) error {
	return Patiently(ctx, h, o, b.String(), func() error { return makeCluster(ctx, b, root, h, o) })
}

// Times of Patiently: between two tries, and between two log lines.
const (
	tryAgainMax = 2 * time.Second
	sayAgain    = 10 * time.Second
)

// Patiently does what needs a store, again while the store cannot be reached, for as long as
// Options.Wait says, and says so in the log. What can never succeed (errors of the kinds
// Invalid and Corrupt) fails at once.
func Patiently(ctx context.Context, h host.Host, o Options, store string, do func() error) error {
	start, said, wait := h.Mono(), time.Duration(-1), 100*time.Millisecond
	for {
		err := do()
		if err == nil || errors.Is(err, errkind.Invalid) || errors.Is(err, errkind.Corrupt) || ctx.Err() != nil {
			if err == nil && said >= 0 {
				o.Log.Info("the store is there", "store", store, "after", (h.Mono() - start).Round(time.Millisecond))
			}
			return err
		}
		now := h.Mono()
		if now-start >= o.Wait {
			return err
		}
		if said < 0 || now >= said+sayAgain {
			said = now
			o.Log.Warn("the store cannot be reached, waiting for it", "store", store, "waited", (now - start).Round(time.Millisecond), "cause", err)
		}
		if h.Sleep(ctx, min(h.Jitter(wait), max(o.Wait-(now-start), 1))) != nil {
			return err
		}
		wait = min(2*wait, tryAgainMax)
	}
}

func makeCluster(ctx context.Context, b bucket.Bucket, root *manifest.Root, h host.Host, o Options) error {
	_, _, err := root.Load(ctx)
	if !errors.Is(err, errkind.NotFound) {
		return err
	}
	shards, err := ShardNames(o.Shards)
	if err != nil {
		return err
	}
	if err := NeverHeld(ctx, b); err != nil {
		if _, _, again := root.Load(ctx); again == nil {
			return nil // another process made it just now
		}
		return err
	}
	if err := bucket.Probe(ctx, b, h); err != nil {
		return err
	}
	_, err = manifest.Create(ctx, bucket.NewCell(b), h, manifest.InitOptions{Shards: shards, Millis: h.Wall().UnixMilli()})
	if err != nil && !errors.Is(err, errkind.Conflict) { // another process was faster: fine
		return err
	}
	st, _, err := root.Load(ctx)
	if err == nil {
		o.Log.Info("the store was empty and has a cluster now", "cluster", fmt.Sprintf("%x", st.ClusterID()), "store", b.String(), "shards", len(st.Shards()))
	}
	return err
}

// NeverHeld refuses a store that has no root and objects of a cluster: the root was lost, and a
// new one would bury what is there. Errors: Corrupt, with what to do; those of the store.
func NeverHeld(ctx context.Context, b bucket.Bucket) error {
	left, err := bucket.Remains(ctx, b)
	if err != nil || left == "" {
		return err
	}
	return fmt.Errorf("%s has no root, and is not empty: %w: %s is there. The root was lost: granary repair --dry-run says what can be done", b, errkind.Corrupt, left)
}
