package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
)

// step is how many bytes of a message are read between two looks at the clock, and how much
// memory a length is good for before anything has arrived.
const step = 64 << 10

// header is the first 16 bytes of a message.
type header struct{ length, requestID, responseTo, opcode int32 }

const headerSize = 16

func readHeader(b []byte) header {
	at := func(i int) int32 { return int32(binary.LittleEndian.Uint32(b[i:])) }
	return header{length: at(0), requestID: at(4), responseTo: at(8), opcode: at(12)}
}

// message is a message as it was read. body is what follows the header; nil when the
// message was refused by its header or for want of memory, or answered already.
type message struct {
	header  header
	began   time.Duration // Mono when the header was there
	body    *buffer
	refused *refusal
	// answered: there was no room for it, and it was told so.
	answered bool
}

// browserAnswer is for people who point a browser at the port.
const browserAnswer = "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n" +
	"This port speaks MongoDB's wire protocol, not HTTP: connect with mongosh or a driver.\n"

// readMessage reads one message. An error ends the connection without an answer: the client
// has gone, or what it sends is not of this protocol.
func (c *Conn) readMessage() (message, error) {
	if _, err := io.ReadFull(c.in, c.head[:]); err != nil {
		return message{}, err
	}
	m := message{header: readHeader(c.head[:]), began: c.s.o.Host.Mono()}
	limit := c.limit.Load()
	switch h := m.header; {
	case string(c.head[:4]) == "GET ":
		_, _ = io.WriteString(c.nc, browserAnswer)
		return m, fmt.Errorf("an HTTP request")
	case h.opcode != opMsg && h.opcode != opQuery && h.opcode != opCompressed:
		return m, fmt.Errorf("opcode %d is not of this protocol", h.opcode)
	case h.length < headerSize:
		return m, fmt.Errorf("message length %d is shorter than a header", h.length)
	case h.length > limit:
		m.refused = fatal(mongoerr.InvalidLength, "a message of %d bytes, the most is %d now", h.length, limit)
		return m, nil
	case h.opcode == opCompressed:
		m.refused = fatal(mongoerr.CommandNotSupported, "OP_COMPRESSED was not negotiated: connect without compressors")
		return m, nil
	}
	defer c.timers.set(reading, 0)
	n := int(m.header.length) - headerSize
	if done, err := c.turnAway(m, n); done || err != nil {
		m.answered = done
		return m, err
	}
	return c.readBody(m, n)
}

// readBody reads n bytes, and takes memory only as they arrive.
func (c *Conn) readBody(m message, n int) (message, error) {
	b, ok := c.s.memory.try(min(n, step))
	if !ok {
		return c.refuseBody(m, n, n)
	}
	for len(b.b) < n {
		if len(b.b) == cap(b.b) {
			if b, ok = c.s.memory.grow(b, n); !ok {
				have := len(b.b)
				c.s.memory.put(b)
				return c.refuseBody(m, n, n-have)
			}
		}
		have := len(b.b)
		b.b = b.b[:min(n, cap(b.b), have+step)]
		c.timers.set(reading, c.s.o.Host.Mono()+c.s.o.StallTimeout)
		if _, err := io.ReadFull(c.in, b.b[have:]); err != nil {
			c.s.memory.put(b)
			return m, fmt.Errorf("message of %d bytes: %w", m.header.length, err)
		}
	}
	m.body = b
	return m, nil
}

// refuseBody passes over the rest of a body of n bytes that there is no memory for, so that
// the connection can go on: a client that lost it would open another, and that costs more.
func (c *Conn) refuseBody(m message, n, rest int) (message, error) {
	if err := c.passOver(m, rest); err != nil {
		return m, err
	}
	refused := admission.MongoError(c.s.memory.account.Refusal(int64(n)))
	// It may be a write that can be sent again; nobody looks for this label elsewhere.
	refused.Labels = append(refused.Labels, retryableWrite)
	m.refused = &refusal{err: refused}
	return m, nil
}

// passOver reads the last n bytes of a message into nothing: in large pieces where there is memory
// for one, since each piece is a call of the system.
func (c *Conn) passOver(m message, n int) error {
	if n -= c.discard(n); n == 0 {
		return nil
	}
	b, ok := c.s.memory.try(min(n, step))
	if ok {
		defer c.s.memory.put(b)
	}
	for err := error(nil); n > 0; {
		c.timers.set(reading, c.s.o.Host.Mono()+c.s.o.StallTimeout)
		passed := min(n, step)
		if ok {
			passed, err = io.ReadFull(c.in, b.b[:min(n, cap(b.b))])
		} else {
			passed, err = c.in.Discard(passed)
		}
		if err != nil {
			return fmt.Errorf("message of %d bytes: %w", m.header.length, err)
		}
		n -= passed
	}
	return nil
}

// discard drops what has been read of the next n bytes.
func (c *Conn) discard(n int) int {
	n, _ = c.in.Discard(min(n, c.in.Buffered()))
	return n
}

// retryableWrite labels an error whose write a driver may send again.
const retryableWrite = "RetryableWriteError"
