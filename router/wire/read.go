package wire

import (
	"encoding/binary"
	"fmt"
	"io"

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
// message was refused by its header or for want of memory.
type message struct {
	header  header
	body    *buffer
	refused *refusal
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
	m := message{header: readHeader(c.head[:])}
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
	return c.readBody(m, int(m.header.length)-headerSize)
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
	for rest > 0 {
		c.timers.set(reading, c.s.o.Host.Mono()+c.s.o.StallTimeout)
		passed, err := c.in.Discard(min(rest, step))
		if err != nil {
			return m, fmt.Errorf("message of %d bytes: %w", m.header.length, err)
		}
		rest -= passed
	}
	refused := admission.MongoError(c.s.memory.account.Refusal(int64(n)))
	// It may be a write that can be sent again; nobody looks for this label elsewhere.
	refused.Labels = append(refused.Labels, retryableWrite)
	m.refused = &refusal{err: refused}
	return m, nil
}

// retryableWrite labels an error whose write a driver may send again.
const retryableWrite = "RetryableWriteError"
