package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/granarydb/granary/localstack/history"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// client is one application: it works on a few documents through one router for a while,
// and retries like a driver: the same session and transaction number, another router.
type client struct {
	id      int
	world   *World
	node    *Node
	rng     *rand.Rand
	session [16]byte
	txn     int64
	router  int           // 0 or 1: which of its two routers it sticks to
	last    map[int]int64 // what it believes of each document, for swaps
}

func newClient(w *World, id int) *client {
	c := &client{
		id: id, world: w, rng: rand.New(rand.NewPCG(w.cfg.Seed, uint64(id)+1000)),
		node: NewNode(w.ctx, w.bus, fmt.Sprintf("c%d", id), w.cfg.Seed, 0, 0), last: map[int]int64{},
	}
	binary.BigEndian.PutUint64(c.session[:8], w.cfg.Seed)
	binary.BigEndian.PutUint64(c.session[8:], uint64(id)+1)
	return c
}

// run works until the busy time is over.
func (c *client) run() {
	if c.id == 0 && c.world.cfg.Moving > 0 {
		c.insertMoving()
	}
	for !c.world.quiet() {
		if c.world.cfg.Moving > 0 && c.rng.IntN(100) < c.world.cfg.Mix.Moving {
			c.moveOne()
		} else if c.world.cfg.Mix.Dated > 0 && c.rng.IntN(100) < c.world.cfg.Mix.Dated {
			c.dateOne()
		} else {
			c.one(c.draw())
		}
		if c.rng.IntN(100) < 5 {
			c.router = 1 - c.router
		}
		pause := time.Duration(c.rng.Int64N(int64(2*c.world.cfg.Think) + 1))
		if c.node.Host().Sleep(c.node.Context(), pause) != nil {
			return
		}
	}
}

// draw picks an operation from the seed's mix, or two inserts that go in one command.
func (c *client) draw() []history.Input {
	m := c.world.cfg.Mix
	in := history.Input{Doc: c.rng.IntN(c.world.cfg.Docs), Val: int64(c.rng.IntN(1_000_000))}
	n := c.rng.IntN(m.Read + m.Insert + m.Pair + m.Inc + m.Add + m.Replace + m.Swap + m.Delete)
	if n -= m.Pair; n < 0 {
		in.Kind = history.Insert
		other := history.Input{Kind: history.Insert, Doc: c.rng.IntN(c.world.cfg.Docs), Val: in.Val + 1}
		return []history.Input{in, other}
	}
	for _, k := range []struct {
		kind   history.Kind
		weight int
	}{{history.Read, m.Read}, {history.Insert, m.Insert}, {history.Inc, m.Inc}, {history.Add, m.Add}, {history.Replace, m.Replace}, {history.Swap, m.Swap}, {history.Delete, m.Delete}} {
		if n < k.weight {
			in.Kind = k.kind
			break
		}
		n -= k.weight
	}
	if in.Kind == history.Inc || in.Kind == history.Add {
		in.Val = 1 + int64(c.rng.IntN(9))
	}
	if in.Kind == history.Swap {
		in.Old = c.last[in.Doc]
	}
	return []history.Input{in}
}

// one runs a command, with up to two more tries under the same transaction number.
func (c *client) one(ins []history.Input) {
	c.txn++
	in := ins[0]
	calls := make([]int, len(ins))
	for i := range ins {
		calls[i] = c.world.history.Call(c.id, ins[i], history.WriteID(c.session, c.txn, i))
	}
	cmd := c.command(ins)
	for try := range 3 {
		reply, err := c.world.ask(c, cmd)
		c.world.log(c.node).Debug("asked", "client", c.id, "op", in.Kind.String(), "doc", in.Doc, "of", len(ins), "try", try, "reply", reply, "err", err)
		if err == nil {
			outs, known := results(ins, reply)
			if known {
				if outs[0].Found && in.Kind != history.Delete {
					c.last[in.Doc] = outs[0].Val
				}
				for i, out := range outs {
					c.world.history.Return(calls[i], out)
				}
				return
			}
			if !retryable(reply) && in.Kind != history.Read {
				return
			}
		}
		if try < 2 {
			c.router = 1 - c.router
			if c.node.Host().Sleep(c.node.Context(), 50*time.Millisecond) != nil {
				return
			}
		}
	}
}

const collection = "docs"

// command is ins as a driver would send them.
func (c *client) command(ins []history.Input) bson.Raw {
	in := ins[0]
	id := bson.D{{Key: "_id", Value: docID(in.Doc)}}
	pad := bson.E{Key: "pad", Value: bson.Binary{Data: make([]byte, c.world.cfg.Pad)}}
	one := func(q, u bson.D) bson.D {
		return bson.D{{Key: "update", Value: collection}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "u", Value: u}}}}}
	}
	var cmd bson.D
	switch in.Kind {
	case history.Read:
		cmd = bson.D{{Key: "find", Value: collection}, {Key: "filter", Value: id}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}}
	case history.Insert:
		var docs bson.A
		for _, in := range ins {
			docs = append(docs, bson.D{{Key: "_id", Value: docID(in.Doc)}, {Key: "v", Value: in.Val}, pad})
		}
		cmd = bson.D{{Key: "insert", Value: collection}, {Key: "documents", Value: docs}}
	case history.Inc:
		cmd = bson.D{{Key: "findAndModify", Value: collection}, {Key: "query", Value: id}, {Key: "update", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: in.Val}}}}}, {Key: "new", Value: true}}
	case history.Add:
		cmd = one(id, bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: in.Val}}}})
	case history.Replace:
		cmd = one(id, bson.D{{Key: "v", Value: in.Val}, pad})
	case history.Swap:
		cmd = one(append(id, bson.E{Key: "v", Value: in.Old}), bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: in.Val}}}})
	case history.Delete:
		cmd = bson.D{{Key: "delete", Value: collection}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: id}, {Key: "limit", Value: 1}}}}}
	}
	cmd = append(cmd, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: c.session[:]}}}})
	if in.Kind != history.Read {
		cmd = append(cmd, bson.E{Key: "txnNumber", Value: c.txn})
	}
	cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: c.world.cfg.Patience.Milliseconds()}, bson.E{Key: "$db", Value: "sim"})
	raw, err := bson.Marshal(cmd)
	if err != nil {
		panic(err)
	}
	return raw
}

func docID(doc int) int32 { return int32(doc * 10) }

// results reads what a reply says of ins; known is false when it does not say whether they
// happened. Of inserts behind one that failed there are none.
func results(ins []history.Input, reply bson.Raw) (outs []history.Output, known bool) {
	if number(reply, "ok") != 1 {
		return nil, false
	}
	if ins[0].Kind != history.Insert {
		out, known := result(ins[0], reply)
		return []history.Output{out}, known
	}
	outs = make([]history.Output, number(reply, "n"))
	if code, failed := writeError(reply); failed {
		return append(outs, history.Output{Dup: true}), code == 11000
	}
	return outs, len(outs) == len(ins)
}

// result is results of a command that is no insert, and did not fail.
func result(in history.Input, reply bson.Raw) (out history.Output, known bool) {
	if _, failed := writeError(reply); failed {
		return history.Output{}, false
	}
	switch in.Kind {
	case history.Read:
		doc, err := reply.LookupErr("cursor", "firstBatch", "0")
		if err != nil {
			return history.Output{}, true
		}
		d, _ := doc.DocumentOK()
		return history.Output{Found: true, Val: number(d, "v")}, true
	case history.Inc:
		d, ok := reply.Lookup("value").DocumentOK()
		if !ok {
			return history.Output{}, true
		}
		return history.Output{Found: true, Val: number(d, "v")}, true
	default:
		return history.Output{Found: number(reply, "n") == 1}, true
	}
}

// writeError is the code of the reply's first write error.
func writeError(reply bson.Raw) (code int64, failed bool) {
	first, err := reply.LookupErr("writeErrors", "0")
	if err != nil {
		return 0, false
	}
	d, _ := first.DocumentOK()
	return number(d, "code"), true
}

// retryable reports whether the reply carries the label that makes drivers retry a write.
func retryable(reply bson.Raw) bool {
	labels, ok := reply.Lookup("errorLabels").ArrayOK()
	if !ok {
		return false
	}
	values, _ := labels.Values()
	for _, v := range values {
		if s, _ := v.StringValueOK(); s == "RetryableWriteError" {
			return true
		}
	}
	return false
}

func number(doc bson.Raw, path ...string) int64 {
	v := doc.Lookup(path...)
	if n, ok := v.AsInt64OK(); ok {
		return n
	}
	return 0
}

// ask sends a command through one of the client's own two routers. No two clients share one:
// requests that wait in it for the same answer would go on at the same moment, in an order
// that the seed does not decide.
func (w *World) ask(c *client, cmd bson.Raw) (bson.Raw, error) {
	r := w.routers[2*c.id+c.router].current()
	return call(c.node.Context(), w.net, c.node, r.node, fmt.Sprintf("command c%d", c.id), func(ctx context.Context) (bson.Raw, error) {
		return r.do(ctx, cmd), nil
	})
}
