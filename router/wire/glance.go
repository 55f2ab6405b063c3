package wire

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Doorkeeper is what a Handler may also be: it is asked before a message is looked through, so
// that one that is refused costs little more than its bytes.
type Doorkeeper interface {
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
	// Retryable: there is a txnNumber.
	Retryable bool
	// moreToCome: nobody waits for a reply.
	moreToCome bool
}

// glanceFields is how many fields of a command are looked at.
const glanceFields = 64

// glance looks at the top level of the body of an OP_MSG, by the lengths that it says.
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
	if len(b) == 0 {
		return g
	}
	size, ok := lengthOf(b[1:])
	if !ok {
		return g
	}
	rest := b[1+4 : 1+size-1]
	for n := range glanceFields {
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
	return g
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
