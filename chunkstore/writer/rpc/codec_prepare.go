package rpc

import "github.com/granarydb/granary/manifest"

// Append appends the request as a BSON document.
func (r *PrepareRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	chunk := e.doc("chunk")
	appendChunkAt(&e, &r.Chunk)
	e.end(chunk)
	e.bin("key", r.Key)
	e.bin("token", r.Token[:])
	e.str("from", string(r.From.Shard))
	e.int("epoch", int64(r.From.Epoch))
	if r.Op != (OpID{}) {
		at := e.doc("op")
		r.Op.append(&e)
		e.end(at)
	}
	e.raw("doc", r.Doc)
	e.bin("reply", r.Reply)
	e.int("expires", r.Expires)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *PrepareRequest) Parse(doc []byte) error {
	*r = PrepareRequest{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "chunk":
			f.took(parseChunkAt(&r.Chunk, f.doc()))
		case "key":
			r.Key = f.bin()
		case "token":
			f.token(&r.Token)
		case "from":
			r.From.Shard = manifest.ShardID(f.str())
		case "epoch":
			r.From.Epoch = manifest.Epoch(f.int())
		case "op":
			f.took(r.Op.parse(f.doc()))
		case "doc":
			r.Doc = f.raw()
		case "reply":
			r.Reply = f.bin()
		case "expires":
			r.Expires = f.int()
		default:
			if !r.Header.parse(&f) {
				f.unknown()
			}
		}
	}
	return f.err
}

func (f *reader) token(into *[16]byte) {
	b := f.bin()
	f.want(len(b) == len(into), "16 bytes")
	copy(into[:], b)
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *PrepareReply) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.ok()
	e.bool("exists", r.Exists)
	e.int("epoch", int64(r.Epoch))
	e.int("seq", int64(r.Seq))
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *PrepareReply) Parse(doc []byte) error {
	*r = PrepareReply{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "exists":
			r.Exists = f.bool()
		case "epoch":
			r.Epoch = manifest.Epoch(f.int())
		case "seq":
			r.Seq = manifest.Seq(f.int())
		default:
			f.unknown()
		}
	}
	return f.err
}

// Append appends the request as a BSON document.
func (r *DecideRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	e.bin("token", r.Token[:])
	e.bool("aborted", r.Aborted)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *DecideRequest) Parse(doc []byte) error {
	*r = DecideRequest{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "token":
			f.token(&r.Token)
		case "aborted":
			r.Aborted = f.bool()
		default:
			if !r.Header.parse(&f) {
				f.unknown()
			}
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *DecideReply) Append(dst []byte) []byte {
	e := encoder{dst}
	e.end(e.ok())
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *DecideReply) Parse(doc []byte) error {
	f := read(doc)
	for f.next() {
		if string(f.name) != "ok" {
			f.unknown()
		}
	}
	return f.err
}
