package rpc

import "github.com/granarydb/granary/manifest"

// peersMax bounds the processes and shards that one reply may name.
const peersMax = 1000

func (p *Process) append(e *encoder) {
	e.str("holder", p.Holder)
	e.str("address", p.Address)
	e.bool("any", p.Any)
	e.bool("leaving", p.Leaving)
	if len(p.Named) > 0 {
		list := e.array("named")
		for i, id := range p.Named {
			at := e.item(i)
			e.str("shard", string(id))
			e.end(at)
		}
		e.end(list)
	}
}

func (p *Process) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "holder":
			p.Holder = f.str()
		case "address":
			p.Address = f.str()
		case "any":
			p.Any = f.bool()
		case "leaving":
			p.Leaving = f.bool()
		case "named":
			els := f.elements()
			p.Named = make([]manifest.ShardID, 0, els.count(peersMax))
			for els.next() {
				els.took(parseNamed(&p.Named, els.doc()))
			}
			f.took(els.err)
		default:
			f.unknown()
		}
	}
	return f.err
}

func parseNamed(list *[]manifest.ShardID, f reader) error {
	for f.next() {
		if string(f.name) != "shard" {
			f.unknown()
			continue
		}
		*list = append(*list, manifest.ShardID(f.str()))
	}
	return f.err
}

func (s *HeldShard) append(e *encoder) {
	e.str("shard", string(s.ID))
	e.int("epoch", int64(s.Epoch))
	e.str("phase", s.Phase)
	e.int("leaseLeft", s.LeaseLeftMillis)
	e.int("ackAge", s.AckAgeMillis)
	e.int("unflushed", s.Unflushed)
}

func (s *HeldShard) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "shard":
			s.ID = manifest.ShardID(f.str())
		case "epoch":
			s.Epoch = manifest.Epoch(f.int())
		case "phase":
			s.Phase = f.str()
		case "leaseLeft":
			s.LeaseLeftMillis = f.int()
		case "ackAge":
			s.AckAgeMillis = f.int()
		case "unflushed":
			s.Unflushed = f.int()
		default:
			f.unknown()
		}
	}
	return f.err
}

// Append appends the request as a BSON document.
func (r *PingRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	from := e.doc("from")
	r.From.append(&e)
	e.end(from)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *PingRequest) Parse(doc []byte) error {
	*r = PingRequest{}
	f := read(doc)
	for f.next() {
		if string(f.name) == "from" {
			f.took(r.From.parse(f.doc()))
		} else if !r.Header.parse(&f) {
			f.unknown()
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *PingReply) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.ok()
	self := e.doc("self")
	r.Self.append(&e)
	e.end(self)
	if len(r.Peers) > 0 {
		list := e.array("peers")
		for i := range r.Peers {
			at := e.item(i)
			r.Peers[i].append(&e)
			e.end(at)
		}
		e.end(list)
	}
	e.int("root", int64(r.RootVersion))
	e.int("flushed", r.FlushedBytes)
	e.int("merged", r.MergedBytes)
	if len(r.Shards) > 0 {
		list := e.array("shards")
		for i := range r.Shards {
			at := e.item(i)
			r.Shards[i].append(&e)
			e.end(at)
		}
		e.end(list)
	}
	if r.Corrupt > 0 {
		e.int("corrupt", r.Corrupt)
		e.int("corruptAge", r.CorruptAgeMillis)
		e.str("corruptLast", r.CorruptLast)
	}
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *PingReply) Parse(doc []byte) error {
	*r = PingReply{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "self":
			f.took(r.Self.parse(f.doc()))
		case "peers":
			els := f.elements()
			r.Peers = make([]Process, 0, els.count(peersMax))
			for els.next() {
				r.Peers = append(r.Peers, Process{})
				els.took(r.Peers[len(r.Peers)-1].parse(els.doc()))
			}
			f.took(els.err)
		case "root":
			r.RootVersion = manifest.Version(f.int())
		case "flushed":
			r.FlushedBytes = f.int()
		case "merged":
			r.MergedBytes = f.int()
		case "shards":
			els := f.elements()
			r.Shards = make([]HeldShard, 0, els.count(peersMax))
			for els.next() {
				r.Shards = append(r.Shards, HeldShard{})
				els.took(r.Shards[len(r.Shards)-1].parse(els.doc()))
			}
			f.took(els.err)
		case "corrupt":
			r.Corrupt = f.int()
		case "corruptAge":
			r.CorruptAgeMillis = f.int()
		case "corruptLast":
			r.CorruptLast = f.str()
		default:
			f.unknown()
		}
	}
	return f.err
}

// Append appends the request as a BSON document.
func (r *ClaimRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *ClaimRequest) Parse(doc []byte) error {
	*r = ClaimRequest{}
	f := read(doc)
	for f.next() {
		if !r.Header.parse(&f) {
			f.unknown()
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *ClaimReply) Append(dst []byte) []byte { return appendVersion(dst, manifest.Version(r.Epoch)) }

// Parse reads what Append wrote. Errors: Invalid.
func (r *ClaimReply) Parse(doc []byte) error { return parseVersion(doc, (*manifest.Version)(&r.Epoch)) }
