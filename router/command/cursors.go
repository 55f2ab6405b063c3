package command

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// rows is where a cursor's documents come from.
type rows interface {
	// Batch takes the next documents: at most docs (0: no bound), and from the second on at
	// most size bytes. Fewer means the end.
	Batch(ctx context.Context, docs, size int) ([]bson.Raw, error)
	// Done reports that nothing follows, as far as that is known.
	Done() bool
	Close(ctx context.Context)
}

// cursor is an open cursor of a client.
type cursor struct {
	id      int64
	ns      string
	session []byte // of the command that made it; nil: none
	rows    rows
	// forever: the client asked for no timeout. It ends with its session all the same.
	forever bool
	used    time.Duration // Mono of the last use
	busy    bool          // a getMore has it
	killed  bool          // to be closed when it is no longer busy
}

// cursors are the open ones. Ids are random: nobody can guess another's.
type cursors struct {
	host host.Host
	idle time.Duration
	max  int

	mu     sync.Mutex // never held across a call
	open   map[int64]*cursor
	opened int64
	// timedOut counts cursors that idled out.
	timedOut int64
}

func newCursors(h host.Host, idle time.Duration, max int) *cursors {
	return &cursors{host: h, idle: idle, max: max, open: make(map[int64]*cursor)}
}

// add keeps a cursor under a new id.
func (cs *cursors) add(c *cursor) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.open) >= cs.max {
		return mongoerr.New(mongoerr.OperationFailed, "%d cursors are open, which is the most; close some, or exhaust them", cs.max)
	}
	for c.id == 0 || cs.open[c.id] != nil {
		c.id = int64(cs.host.Uint64() >> 1) // 63 bits
	}
	c.session = bytes.Clone(c.session)
	c.used = cs.host.Mono()
	cs.open[c.id] = c
	cs.opened++
	return nil
}

// take gives a cursor to one getMore.
func (cs *cursors) take(id int64, ns string, session []byte) (*cursor, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open[id]
	switch {
	case c == nil || c.killed:
		return nil, mongoerr.New(mongoerr.CursorNotFound, "cursor id %d not found", id)
	case c.ns != ns:
		return nil, mongoerr.New(mongoerr.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", ns, c.ns)
	case c.session != nil && !bytes.Equal(c.session, session):
		return nil, mongoerr.New(50738, "Cannot run getMore on cursor %d, which was created in another session", id)
	case c.busy:
		return nil, mongoerr.New(12051, "cursor id %d is already in use", id)
	}
	c.busy = true
	return c, nil
}

// give takes it back; done says that it is at its end or broken.
func (cs *cursors) give(ctx context.Context, c *cursor, done bool) {
	cs.mu.Lock()
	c.busy = false
	c.used = cs.host.Mono()
	done = done || c.killed
	if done {
		delete(cs.open, c.id)
	}
	cs.mu.Unlock()
	if done {
		c.rows.Close(ctx)
	}
}

// kill closes a cursor of the namespace, or leaves that to the getMore that has it.
func (cs *cursors) kill(ctx context.Context, id int64, ns string) bool {
	found := cs.remove(func(c *cursor) bool { return c.id == id && c.ns == ns })
	closeRows(ctx, found.idle)
	return found.any
}

// endSession closes the cursors of a session; nil: of all sessions.
func (cs *cursors) endSession(ctx context.Context, session []byte) {
	closeRows(ctx, cs.remove(func(c *cursor) bool {
		return c.session != nil && (session == nil || bytes.Equal(c.session, session))
	}).idle)
}

// sweep closes the cursors that idled too long.
func (cs *cursors) sweep(ctx context.Context) {
	now := cs.host.Mono()
	found := cs.remove(func(c *cursor) bool { return !c.busy && !c.forever && now-c.used >= cs.idle })
	cs.mu.Lock()
	cs.timedOut += int64(len(found.idle))
	cs.mu.Unlock()
	closeRows(ctx, found.idle)
}

// closeAll closes all cursors.
func (cs *cursors) closeAll(ctx context.Context) {
	closeRows(ctx, cs.remove(func(*cursor) bool { return true }).idle)
}

// removed is what remove found: the cursors to close now, and whether there was any.
type removed struct {
	idle []*cursor
	any  bool
}

func (cs *cursors) remove(which func(*cursor) bool) (found removed) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for id, c := range cs.open {
		if c.killed || !which(c) {
			continue
		}
		found.any = true
		if c.busy {
			c.killed = true
			continue
		}
		delete(cs.open, id)
		found.idle = append(found.idle, c)
	}
	slices.SortFunc(found.idle, func(a, b *cursor) int { return cmp.Compare(a.id, b.id) })
	return found
}

func closeRows(ctx context.Context, list []*cursor) {
	for _, c := range list {
		c.rows.Close(ctx)
	}
}

// figures are how many cursors are open, were opened, and idled out.
func (cs *cursors) figures() (open, opened, timedOut int64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return int64(len(cs.open)), cs.opened, cs.timedOut
}
