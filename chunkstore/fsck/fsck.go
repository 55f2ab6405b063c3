package fsck

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Problem is one broken rule.
type Problem struct {
	Rule   string `json:"rule"`
	Object string `json:"object,omitempty"`
	Chunk  string `json:"chunk,omitempty"` // namespace, chunk id and key range at stake
	Detail string `json:"detail"`
	// AtStake are the documents that may be missing or wrong; of those that are in so many
	// chunks that they are not all listed, More counts the rest.
	AtStake []KeyRange `json:"atStake,omitempty"`
	More    int        `json:"more,omitempty"`
}

// The rules whose breach a Report names.
const (
	RuleRoot       = "root is valid"
	RuleExists     = "referenced segment exists"
	RuleSegment    = "segment is whole and its own"
	RuleBounds     = "reference bounds its rows"
	RuleRow        = "row is valid and in its place"
	RuleCount      = "exact row count"
	RuleLogName    = "log object has a log name"
	RuleLogShard   = "log object belongs to a shard"
	RuleLogWhole   = "log object is whole"
	RuleLogPlace   = "log object is in its place"
	RuleContiguous = "log is contiguous"
	RuleAfterSeal  = "nothing after a seal"
	RuleReplayed   = "acknowledged writes are replayed"
	RulePin        = "pin can be read"
	RulePinned     = "pinned segment is there and whole"
	RuleCopy       = "copy of the root can be read"
	RuleLocation   = "object is in the location of its shard"
)

// Report is what a check found. Counts are of the root that was checked.
type Report struct {
	Version     manifest.Version `json:"version"`
	Collections int              `json:"collections"`
	Chunks      int              `json:"chunks"`
	Segments    int              `json:"segments"`
	Rows        int64            `json:"rows"`       // live documents in segments; deep only
	Bytes       int64            `json:"bytes"`      // of the referenced segments
	WALObjects  int              `json:"walObjects"` // with records, above the floors
	WALRecords  int              `json:"walRecords"`
	Copies      int              `json:"copies"` // of the root, under meta/history
	Orphans     int              `json:"orphans"`
	OrphanBytes int64            `json:"orphanBytes"`
	Problems    []Problem        `json:"problems"`
}

func (r *Report) add(p Problem) { r.Problems = append(r.Problems, p) }

// Checker checks one cluster.
type Checker struct {
	Root   *manifest.Root
	Bucket bucket.Bucket // the cluster's own
	Open   func(manifest.LocationID) (bucket.Bucket, error)
	// Deep reads every row of every segment instead of the tails.
	Deep bool
	// Progress, when not nil, is told after each chunk.
	Progress func(done, total int)
}

// Run checks everything. The error says that the check itself could not be finished;
// what is wrong with the data is in the report. A root that is damaged, or lost while
// objects of a cluster are there, is a problem, and the only one that can be told then.
// Errors: those of the bucket; NotFound for a store without any cluster; Invalid for a root
// or a segment of a format newer than this program.
func (c *Checker) Run(ctx context.Context) (*Report, error) {
	r := &Report{Problems: []Problem{}}
	state, err := c.begin(ctx, r)
	if err != nil || state == nil {
		return r, err
	}
	for _, check := range []func(context.Context, *manifest.State, *Report) error{c.checkChunks, c.checkWAL, c.checkOrphans} {
		if err := check(ctx, state, r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// begin reads the root and checks it by itself; nil when there is none that can be read, which
// is then in the report.
func (c *Checker) begin(ctx context.Context, r *Report) (*manifest.State, error) {
	state, err := c.load(ctx)
	if err != nil {
		return nil, c.unreadable(ctx, r, err)
	}
	r.Version = state.Version()
	if err := manifest.Validate(state); err != nil {
		r.add(Problem{Rule: RuleRoot, Object: manifest.RootKey, Detail: err.Error()})
	}
	return state, nil
}

// unreadable judges why the root cannot be read. A store that has no root and nothing else of a
// cluster is empty; with objects of one, the root is lost.
func (c *Checker) unreadable(ctx context.Context, r *Report, err error) error {
	switch {
	case errors.Is(err, errkind.NotFound):
		left, listErr := bucket.Remains(ctx, c.Bucket)
		if listErr != nil {
			return fmt.Errorf("fsck: %w", listErr)
		}
		if left == "" {
			return err
		}
		err = fmt.Errorf("it is missing, and %s is there: the root is lost", left)
	case !errors.Is(err, errkind.Corrupt):
		return err
	}
	r.add(Problem{Rule: RuleRoot, Object: manifest.RootKey, Detail: err.Error() + "; granary repair --dry-run says what can be done"})
	return nil
}

// load reads the root as it is now.
func (c *Checker) load(ctx context.Context) (*manifest.State, error) {
	state, _, err := c.Root.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("fsck: read root: %w", err)
	}
	return state, nil
}

// Name is how a report names a chunk: namespace, id and bounds.
func Name(state *manifest.State, chunk *manifest.Chunk) string {
	return fmt.Sprintf("%s chunk %d [%s, %s)", namespace(state, chunk), chunk.ID, chunk.MinBSON, chunk.MaxBSON)
}

// at is the bucket of a location.
func (c *Checker) at(id manifest.LocationID) (bucket.Bucket, error) {
	if id == 0 {
		return c.Bucket, nil
	}
	b, err := c.Open(id)
	if err != nil {
		return nil, fmt.Errorf("fsck: location %d: %w", id, err)
	}
	return b, nil
}

// everywhere calls fn for the cluster's own bucket, 0, and each location.
func everywhere(state *manifest.State, fn func(manifest.LocationID) error) error {
	if err := fn(0); err != nil {
		return err
	}
	for _, l := range state.Locations() {
		if err := fn(l.ID); err != nil {
			return err
		}
	}
	return nil
}

// list calls fn for every object under a prefix in a location, in key order, page by page.
func (c *Checker) list(ctx context.Context, at manifest.LocationID, prefix string, fn func(bucket.Attrs) error) error {
	b, err := c.at(at)
	if err != nil {
		return err
	}
	after := ""
	for {
		page, more, err := b.List(ctx, prefix, after, 0)
		if err != nil {
			return fmt.Errorf("fsck: list %s after %q: %w", prefix, after, err)
		}
		for _, a := range page {
			if err := fn(a); err != nil {
				return err
			}
			after = a.Key
		}
		if !more || len(page) == 0 {
			return nil
		}
	}
}
