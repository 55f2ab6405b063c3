package wire

import (
	"bytes"

	"github.com/granarydb/granary/chunkstore/mongoerr"
)

// isHello tells whether a command is one of the names of the handshake.
func isHello(command string) bool {
	return command == "hello" || command == "isMaster" || command == "ismaster"
}

// query reads an OP_QUERY, which may only be a hello.
func (p *parser) query(b []byte) *refusal {
	if len(b) < 4 {
		return fatal(mongoerr.FailedToParse, "OP_QUERY without flags")
	}
	end := bytes.IndexByte(b[4:], 0)
	if end < 0 || len(b) < 4+end+1+8 {
		return fatal(mongoerr.FailedToParse, "OP_QUERY is cut short")
	}
	namespace, doc := b[4:4+end], b[4+end+1+8:]
	size, ok := lengthOf(doc)
	if !ok {
		return fatal(mongoerr.FailedToParse, "the document of OP_QUERY does not end with the message")
	}
	p.r.DB = "admin"
	p.r.Body = doc[:size:size]
	if refused := p.validate(p.r.Body, p.o.MaxStranger, depthBody); refused != nil {
		return refused
	}
	// Old drivers wrap the command when they have a read preference to send along.
	if wrapped, ok := p.r.Body.Lookup("$query").DocumentOK(); ok {
		p.r.Body = wrapped
	}
	if refused := p.fields(); refused != nil {
		return refused
	}
	if string(namespace) != "admin.$cmd" || !isHello(p.r.Command) {
		return fatal(unsupportedOpQuery, "Unsupported OP_QUERY command: %s on %s. The client driver may require an upgrade",
			p.r.Command, namespace)
	}
	return nil
}

// unsupportedOpQuery is MongoDB's UnsupportedOpQueryCommand.
const unsupportedOpQuery mongoerr.Code = 352
