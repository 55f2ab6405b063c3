package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// underway are the commands that this router is answering now. What they cause at shards is
// theirs, and is not listed by itself.
type underway struct {
	mu    sync.Mutex // never held across a call
	last  int64
	calls map[int64]running
}

type running struct {
	id      int64
	command string
	db      string
	body    bson.Raw // of the request: alive while the command runs
	peer    peer
	start   time.Duration // Mono
}

func (u *underway) begin(c *call, now time.Duration) (id int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	u.calls[u.last] = running{id: u.last, command: c.cmd.Name, db: c.DB, body: c.Body, peer: c.peer, start: now}
	return u.last
}

func (u *underway) end(id int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.calls, id)
}

// shownBytes is how large a command may be to be shown as a whole.
const shownBytes = 16 << 10

// list is what $currentOp says of them, the oldest first.
func (u *underway) list(now time.Duration, wall time.Time) []bson.Raw {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []running
	for _, r := range u.calls {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b running) int { return cmp.Compare(a.id, b.id) })
	var docs []bson.Raw
	for _, r := range all {
		docs = append(docs, r.describe(now-r.start, wall))
	}
	return docs
}

var opTypes = map[string]string{"find": "query", "getMore": "getmore", "insert": "insert", "update": "update", "delete": "remove"}

func (r running) describe(took time.Duration, wall time.Time) bson.Raw {
	op := opTypes[r.command]
	if op == "" {
		op = "command"
	}
	ns := r.db + ".$cmd"
	if name, isName := r.body.Index(0).Value().StringValueOK(); isName {
		ns = r.db + "." + name
	}
	body := r.body
	if len(body) > shownBytes {
		body = bson.Raw(build().AppendValue(r.command, core(r.body.Index(0).Value())).AppendBoolean("$truncated", true).Build())
	}
	return bson.Raw(build().
		AppendString("type", "op").
		AppendString("desc", "conn").
		AppendInt64("connectionId", r.peer.id).
		AppendString("client", r.peer.String()).
		AppendBoolean("active", true).
		AppendString("currentOpTime", wall.UTC().Format(time.RFC3339Nano)).
		AppendInt64("opid", r.id).
		AppendInt64("secs_running", int64(took/time.Second)).
		AppendInt64("microsecs_running", took.Microseconds()).
		AppendString("op", op).
		AppendString("ns", ns).
		AppendDocument("command", body).Build())
}

// operations is $currentOp.
func (s *Commands) operations(ctx context.Context, maxTime time.Duration) ([]bson.Raw, error) {
	list, err := s.reshardings(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	copies, err := s.router.Copyings(ctx, maxTime)
	for _, c := range copies {
		list = append(list, describeCopying(c))
	}
	return append(s.underway.list(s.host.Mono(), s.host.Wall()), list...), err
}

// describeCopying has the fields that MongoDB has for what counts its progress.
func describeCopying(c router.Copying) bson.Raw {
	return bson.Raw(build().
		AppendString("type", "op").
		AppendString("desc", "chunk copier").
		AppendBoolean("active", true).
		AppendString("op", "command").
		AppendString("ns", c.Namespace).
		AppendDocument("command", build().AppendString("moveRange", c.Namespace).AppendString("toShard", string(c.To)).Build()).
		AppendString("msg", fmt.Sprintf("copying %d chunks, the first of them %d, from %s to %s: %d of %d bytes", c.Chunks, c.Chunk, c.From, c.To, c.Bytes, c.Total)).
		AppendDocument("progress", build().AppendInt64("done", c.Bytes).AppendInt64("total", c.Total).Build()).
		AppendString("shard", string(c.From)).Build())
}
