package wire

import (
	"log/slog"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/manifest/host"
)

// Options are the settings of a Server. Zero fields mean the defaults; Host and Validate
// are required.
type Options struct {
	Host host.Host
	// Validate checks one document completely, without recursion, before anything looks
	// into it: its bytes must be a document of at most maxBytes that nests at most maxDepth
	// deep. The error goes to the client; a *mongoerr.Error keeps its code. It is
	//
	//	func(doc []byte, maxBytes, maxDepth int) error {
	//		return document.Validate(doc, document.Limits{MaxBytes: maxBytes, MaxDepth: maxDepth})
	//	}
	Validate func(doc []byte, maxBytes, maxDepth int) error
	// Log gets panics as errors, refusals and closings as debug lines. Default: none.
	Log *slog.Logger
	// MaxConns bounds the connections, counted at accept; 2,000.
	MaxConns int
	// MaxMessage bounds a message in either direction, in bytes; 48,000,000, as MongoDB.
	MaxMessage int
	// MaxStranger bounds a message of a client that was not admitted, in bytes; 64 KiB.
	MaxStranger int
	// MaxBatch bounds the documents in the sequences of one message; 100,000, as MongoDB.
	MaxBatch int
	// MaxBuffered bounds the messages being read, handled or sent, all together, in bytes;
	// 512 MiB. A message that would grow beyond it is passed over, and refused with a
	// retryable error. One connection has two messages at most: the one that is answered, and
	// the next.
	MaxBuffered int64
	// Memory is where these bytes are taken from, instead of a pot of MaxBuffered.
	Memory *admission.Account
	// Guarded: a client stays a stranger until the Handler calls Conn.Admit. Otherwise a
	// hello is enough.
	Guarded bool
	// HandshakeTimeout is until when the first message must be there, after accept; 10 s.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long a client may be silent between two requests; 10 min.
	IdleTimeout time.Duration
	// StallTimeout is how long each 64 KiB of a message may take to arrive, or 256 KiB of a
	// reply to be taken; 30 s.
	StallTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Host.Clock == nil || o.Validate == nil {
		panic("wire: Options.Host and Options.Validate are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	orInt := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	orTime := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	orInt(&o.MaxConns, 2000)
	orInt(&o.MaxMessage, 48_000_000)
	orInt(&o.MaxStranger, 64<<10)
	orInt(&o.MaxBatch, 100_000)
	if o.MaxBuffered == 0 {
		o.MaxBuffered = 512 << 20
	}
	if o.Memory == nil {
		o.Memory = admission.NewPot(o.MaxBuffered).Account("messages", 100)
	}
	orTime(&o.HandshakeTimeout, 10*time.Second)
	orTime(&o.IdleTimeout, 10*time.Minute)
	orTime(&o.StallTimeout, 30*time.Second)
	return o
}
