package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Doorkeeper is what a Handler may also be: it is asked before a message is looked through, so
// that one that is refused costs little more than its bytes.
type Doorkeeper interface {
	// Full refuses a request that Admit would refuse at once if it came now; nil: it may try.
	// It is asked while most of the message is still to come, and takes no place: who is slow
	// to send keeps nobody out.
	Full(g Glance) *mongoerr.Error
	// Admit lets a request in, perhaps after a short wait, or refuses it.
	Admit(ctx context.Context, g Glance) (admission.Pass, *mongoerr.Error)
	// Leave takes a pass back, after Handle and before the reply is taken.
	Leave(admission.Pass)
}

// Glance is what a first look at a message shows. Nothing is checked yet: it may be nonsense,
// which Handle never gets to see.
type Glance struct {
	// Command is the name of the first field; empty when none was found.
	Command []byte
	// MaxTime is maxTimeMS; 0: none.
	MaxTime time.Duration
	// Retryable: there is a txnNumber, or there may be one in what was not looked at.
	Retryable bool
	// moreToCome: nobody waits for a reply.
	moreToCome bool
}

// glanceFields is how many fields of a command are looked at.
const glanceFields = 64

// glanceBytes is how much of a message is looked at before the rest has come: what the buffer of
// a connection has besides the header. Drivers send what they want first, and documents last.
const glanceBytes = inBytes - headerSize

// glance looks at the top level of the body of an OP_MSG, by the lengths that it says. b may be
// only the beginning of it.
func glance(b []byte) (g Glance) {
	if len(b) < 4 {
		return g
	}
	g.moreToCome = binary.LittleEndian.Uint32(b)&flagMoreToCome != 0
	for b = b[4:]; len(b) > 0 && b[0] != 0; { // the body may come behind sequences
		size, ok := lengthOf(b[1:])
		if !ok {
			return g
		}
		b = b[1+size:]
	}
	if len(b) < 1+5 || binary.LittleEndian.Uint32(b[1:]) < 5 {
		return g
	}
	rest := b[1+4:]
	size, whole := lengthOf(b[1:])
	if whole {
		rest = b[1+4 : 1+size-1]
	}
	n := 0
	for ; n < glanceFields && len(rest) > 0; n++ {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			break
		}
		name := e.KeyBytes()
		if n == 0 {
			g.Command = name
		}
		switch string(name) {
		case "maxTimeMS":
			if ms, ok := e.Value().AsInt64OK(); ok && ms > 0 && ms < 1<<31 {
				g.MaxTime = time.Duration(ms) * time.Millisecond
			}
		case "txnNumber":
			g.Retryable = true
		}
		rest = next
	}
	if !whole || n == glanceFields { // who did not ask for it does not look for the label
		g.Retryable = true
	}
	return g
}

// turnAway answers the message that has just begun, when there is no room for it; n bytes of it
// are still to come, and are passed over. All of that is the reader's: waking the worker only to
// say no would cost as much again, when there is least to spare. false: it is not refused yet.
func (c *Conn) turnAway(m message, n int) (bool, error) {
	d := c.s.door
	if d == nil || m.header.opcode != opMsg || n == 0 || c.underway.Load() > 0 {
		return false, nil
	}
	c.timers.set(reading, c.s.o.Host.Mono()+c.s.o.StallTimeout)
	b, err := c.in.Peek(min(n, glanceBytes))
	if err != nil {
		return false, fmt.Errorf("message of %d bytes: %w", m.header.length, err)
	}
	g := glance(b)
	full := d.Full(g)
	if full == nil {
		return false, nil
	}
	if err := c.passOver(m, n); err != nil {
		return true, err
	}
	c.timers.set(reading, 0)
	if !c.process(m, func() bool { return c.turnedAway(m, g.moreToCome, full) }) {
		return true, net.ErrClosed
	}
	return true, nil
}

// turnedAway says so.
func (c *Conn) turnedAway(m message, moreToCome bool, full *mongoerr.Error) bool {
	ok := c.reply(m, &Request{MoreToCome: moreToCome}, ErrorReply(full))
	c.s.refusals.add(c.s.o.Host.Mono() - m.began)
	return ok
}

// admit asks the Doorkeeper, if there is one.
func (c *Conn) admit(m message) (pass admission.Pass, moreToCome bool, refused *mongoerr.Error) {
	d := c.s.door
	if d == nil || m.refused != nil || m.header.opcode != opMsg {
		return pass, false, nil
	}
	g := glance(m.body.b)
	pass, refused = d.Admit(c.alive, g)
	return pass, g.moreToCome, refused
}

func (c *Conn) leave(p admission.Pass) {
	if d := c.s.door; d != nil {
		d.Leave(p)
	}
}
