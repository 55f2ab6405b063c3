package rpc

import (
	"context"
	"fmt"
	"sync"

	"github.com/granarydb/granary/manifest"
)

// Local is the Dialer of owners in this process: requests and replies are handed over as
// they are, without a copy, and must not be changed by either side afterwards.
//
// A holder that is not registered (any more) is Unreachable: at Dial, and at every call of
// an Owner dialled before. A call under way when its holder is removed ends as the holder
// ends it.
type Local struct {
	mu     sync.RWMutex // held for a map operation only
	owners map[string]Owner
	others Dialer
}

// NewLocal makes an empty registry. others, if not nil, dials the holders that are not in
// this process.
func NewLocal(others Dialer) *Local {
	return &Local{owners: map[string]Owner{}, others: others}
}

// Add registers a process's owner under its holder name; a later one replaces an earlier.
func (l *Local) Add(holder string, o Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owners[holder] = o
}

// Remove makes a holder unreachable.
func (l *Local) Remove(holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.owners, holder)
}

// Dial implements Dialer. Errors: Unreachable.
func (l *Local) Dial(shard manifest.ShardID, holder, address string) (Owner, error) {
	if _, err := l.find(holder); err != nil {
		if l.others != nil {
			return l.others.Dial(shard, holder, address)
		}
		return nil, fmt.Errorf("dial %s: %w", shard, err)
	}
	return localOwner{l, holder}, nil
}

func (l *Local) find(holder string) (Owner, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if o := l.owners[holder]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("holder %q is not in this process: %w", holder, Unreachable)
}

// localOwner looks its holder up at each call, so that a removed one is not used again.
type localOwner struct {
	l      *Local
	holder string
}

func (o localOwner) Read(ctx context.Context, r *ReadRequest) (*ReadReply, error) {
	return local(ctx, o, Owner.Read, r)
}

func (o localOwner) Cursor(ctx context.Context, r *CursorRequest) (*ReadReply, error) {
	return local(ctx, o, Owner.Cursor, r)
}

func (o localOwner) Write(ctx context.Context, r *WriteRequest) (*WriteReply, error) {
	return local(ctx, o, Owner.Write, r)
}

func (o localOwner) Promise(ctx context.Context, r *PromiseRequest) (*PromiseReply, error) {
	return local(ctx, o, Owner.Promise, r)
}

func (o localOwner) Prepare(ctx context.Context, r *PrepareRequest) (*PrepareReply, error) {
	return local(ctx, o, Owner.Prepare, r)
}

func (o localOwner) Decide(ctx context.Context, r *DecideRequest) (*DecideReply, error) {
	return local(ctx, o, Owner.Decide, r)
}

func (o localOwner) Move(ctx context.Context, r *MoveRequest) (*MoveReply, error) {
	return local(ctx, o, Owner.Move, r)
}

func (o localOwner) Loads(ctx context.Context, r *LoadsRequest) (*LoadsReply, error) {
	return local(ctx, o, Owner.Loads, r)
}

func (o localOwner) Flush(ctx context.Context, r *FlushRequest) (*FlushReply, error) {
	return local(ctx, o, Owner.Flush, r)
}

func local[Q, R any](ctx context.Context, o localOwner, verb func(Owner, context.Context, *Q) (*R, error), q *Q) (*R, error) {
	owner, err := o.l.find(o.holder)
	if err != nil {
		return nil, err
	}
	return verb(owner, ctx, q)
}
