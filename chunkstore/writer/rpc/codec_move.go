package rpc

import (
	"github.com/granarydb/granary/manifest"
)

// Append appends the request as a BSON document.
func (r *PromiseRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	appendChunks(&e, r.Chunks)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *PromiseRequest) Parse(doc []byte) error {
	*r = PromiseRequest{}
	f := read(doc)
	for f.next() {
		if string(f.name) == "chunks" {
			r.Chunks = parseChunks(&f)
		} else if !r.Header.parse(&f) {
			f.unknown()
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *PromiseReply) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.ok()
	e.int("epoch", int64(r.Epoch))
	appendPosition(&e, "at", r.Position)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *PromiseReply) Parse(doc []byte) error {
	*r = PromiseReply{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "epoch":
			r.Epoch = manifest.Epoch(f.int())
		case "at":
			f.took(parsePosition(&r.Position, f.doc()))
		default:
			f.unknown()
		}
	}
	return f.err
}

// Append appends the request as a BSON document.
func (r *MoveRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	appendChunks(&e, r.Chunks)
	e.str("to", string(r.To))
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *MoveRequest) Parse(doc []byte) error {
	*r = MoveRequest{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "chunks":
			r.Chunks = parseChunks(&f)
		case "to":
			r.To = manifest.ShardID(f.str())
		default:
			if !r.Header.parse(&f) {
				f.unknown()
			}
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *MoveReply) Append(dst []byte) []byte { return appendVersion(dst, r.Version) }

// Parse reads what Append wrote. Errors: Invalid.
func (r *MoveReply) Parse(doc []byte) error { return parseVersion(doc, &r.Version) }

// Append appends the request as a BSON document.
func (r *FlushRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *FlushRequest) Parse(doc []byte) error {
	*r = FlushRequest{}
	f := read(doc)
	for f.next() {
		if !r.Header.parse(&f) {
			f.unknown()
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *FlushReply) Append(dst []byte) []byte { return appendVersion(dst, r.Version) }

// Parse reads what Append wrote. Errors: Invalid.
func (r *FlushReply) Parse(doc []byte) error { return parseVersion(doc, &r.Version) }

func appendVersion(dst []byte, v manifest.Version) []byte {
	e := encoder{dst}
	at := e.ok()
	e.int("version", int64(v))
	e.end(at)
	return e.b
}

func parseVersion(doc []byte, v *manifest.Version) error {
	*v = 0
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "version":
			*v = manifest.Version(f.int())
		default:
			f.unknown()
		}
	}
	return f.err
}
