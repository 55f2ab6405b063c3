package rpc

import (
	"math"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Append appends the request as a BSON document.
func (r *WriteRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	e.bool("ordered", r.Ordered)
	e.bool("early", r.Early)
	appendPosition(&e, "after", r.After)
	appendTargets(&e, r.Targets)
	if len(r.Ops) > 0 {
		list := e.array("ops")
		for i := range r.Ops {
			at := e.item(i)
			r.Ops[i].append(&e)
			e.end(at)
		}
		e.end(list)
	}
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid, also for an operation whose target is
// not in the request.
func (r *WriteRequest) Parse(doc []byte) error {
	*r = WriteRequest{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ordered":
			r.Ordered = f.bool()
		case "early":
			r.Early = f.bool()
		case "after":
			f.took(parsePosition(&r.After, f.doc()))
		case "targets":
			r.Targets = parseTargets(&f)
		case "ops":
			els := f.elements()
			r.Ops = make([]WriteOp, 0, els.count(itemsMax))
			for els.next() {
				r.Ops = append(r.Ops, WriteOp{})
				els.took(r.Ops[len(r.Ops)-1].parse(els.doc()))
			}
			f.took(els.err)
		default:
			if !r.Header.parse(&f) {
				f.unknown()
			}
		}
	}
	for i := range r.Ops {
		if t := r.Ops[i].Target; t >= len(r.Targets) {
			f.fail("operation %d is for target %d of %d", i, t, len(r.Targets))
		}
	}
	return f.err
}

func (op *WriteOp) append(e *encoder) {
	e.int("kind", int64(op.Kind))
	if op.Op != (OpID{}) {
		at := e.doc("op")
		op.Op.append(e)
		e.end(at)
	}
	e.int("target", int64(op.Target))
	e.bin("key", op.Key)
	e.raw("doc", op.Doc)
	e.raw("filter", op.Filter)
	e.value("update", op.Update)
	e.raws("arrayFilters", op.ArrayFilters)
	e.raw("sort", op.Sort)
	e.bool("multi", op.Multi)
	e.bool("upsert", op.Upsert)
	e.int("return", int64(op.Return))
	e.raw("projection", op.Projection)
}

func (op *WriteOp) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "kind":
			op.Kind = WriteKind(f.small(int64(Refuse)))
		case "op":
			f.took(op.Op.parse(f.doc()))
		case "target":
			op.Target = int(f.small(math.MaxInt32))
		case "key":
			op.Key = f.bin()
		case "doc":
			op.Doc = f.raw()
		case "filter":
			op.Filter = f.raw()
		case "update":
			op.Update = f.value()
			f.want(op.Update.Type == bson.TypeEmbeddedDocument || op.Update.Type == bson.TypeArray, "a document or an array")
		case "arrayFilters":
			op.ArrayFilters = f.raws()
		case "sort":
			op.Sort = f.raw()
		case "multi":
			op.Multi = f.bool()
		case "upsert":
			op.Upsert = f.bool()
		case "return":
			op.Return = ReturnDoc(f.small(int64(ReturnAfter)))
		case "projection":
			op.Projection = f.raw()
		default:
			f.unknown()
		}
	}
	return f.err
}

func (id *OpID) append(e *encoder) {
	e.bin("session", id.Session[:])
	e.int("txn", id.Txn)
	e.int("stmt", int64(id.Stmt))
	e.int("attempt", int64(id.Attempt))
}

func (id *OpID) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "session":
			b := f.bin()
			f.want(len(b) == len(id.Session), "32 bytes")
			copy(id.Session[:], b)
		case "txn":
			id.Txn = f.int()
		case "stmt":
			id.Stmt = f.int32()
		case "attempt":
			id.Attempt = f.int32()
		default:
			f.unknown()
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *WriteReply) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.ok()
	if len(r.Results) > 0 {
		list := e.array("results")
		for i := range r.Results {
			at := e.item(i)
			r.Results[i].append(&e)
			e.end(at)
		}
		e.end(list)
	}
	appendPosition(&e, "until", r.Until)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *WriteReply) Parse(doc []byte) error {
	*r = WriteReply{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "results":
			els := f.elements()
			r.Results = make([]WriteResult, 0, els.count(itemsMax))
			for els.next() {
				r.Results = append(r.Results, WriteResult{})
				els.took(r.Results[len(r.Results)-1].parse(els.doc()))
			}
			f.took(els.err)
		case "until":
			f.took(parsePosition(&r.Until, f.doc()))
		default:
			f.unknown()
		}
	}
	return f.err
}

func (r *WriteResult) append(e *encoder) {
	e.int("n", r.N)
	e.int("modified", r.Modified)
	e.value("upserted", r.UpsertedID)
	e.raw("value", r.Value)
	if r.Err != nil {
		at := e.doc("err")
		appendMongo(e, r.Err)
		e.end(at)
	}
	e.bool("stale", r.Stale)
	e.str("waits", string(r.Waits))
}

func (r *WriteResult) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "n":
			r.N = f.int()
		case "modified":
			r.Modified = f.int()
		case "upserted":
			r.UpsertedID = f.value()
		case "value":
			r.Value = f.raw()
		case "err":
			var p parsedError
			f.took(p.parse(f.doc()))
			r.Err = &p.m
		case "stale":
			r.Stale = f.bool()
		case "waits":
			r.Waits = manifest.ShardID(f.str())
		default:
			f.unknown()
		}
	}
	return f.err
}
