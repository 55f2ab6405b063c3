package rpc

import (
	"math"
	"time"

	"github.com/granarydb/granary/manifest"
)

// Append appends the request as a BSON document.
func (r *LoadsRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *LoadsRequest) Parse(doc []byte) error {
	*r = LoadsRequest{}
	f := read(doc)
	for f.next() {
		if !r.Header.parse(&f) {
			f.unknown()
		}
	}
	return f.err
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *LoadsReply) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.ok()
	list := e.array("chunks")
	for i := range r.Chunks {
		c := &r.Chunks[i]
		at := e.item(i)
		e.int("coll", int64(c.Collection))
		e.int("id", int64(c.ID))
		e.int("v", int64(c.Version))
		e.float("reads", c.Reads)
		e.float("writes", c.Writes)
		e.float("inserts", c.Inserts)
		e.int("rows", c.UnflushedRows)
		e.int("bytes", c.UnflushedBytes)
		e.float("tail", c.TailShare)
		e.bin("median", c.Median)
		e.int("age", int64(c.Age)) // nanoseconds
		e.end(at)
	}
	e.end(list)
	if len(r.Copying) > 0 {
		list := e.array("copying")
		for i := range r.Copying {
			c := &r.Copying[i]
			at := e.item(i)
			e.int("coll", int64(c.Collection))
			e.int("id", int64(c.Chunk))
			e.int("n", c.Chunks)
			e.str("to", string(c.To))
			e.int("bytes", c.Bytes)
			e.int("total", c.Total)
			e.end(at)
		}
		e.end(list)
	}
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *LoadsReply) Parse(doc []byte) error {
	*r = LoadsReply{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "chunks":
			els := f.elements()
			r.Chunks = make([]ChunkLoad, 0, els.count(math.MaxInt32))
			for els.next() {
				r.Chunks = append(r.Chunks, ChunkLoad{})
				els.took(r.Chunks[len(r.Chunks)-1].parse(els.doc()))
			}
			f.took(els.err)
		case "copying":
			els := f.elements()
			r.Copying = make([]Copying, 0, els.count(math.MaxInt32))
			for els.next() {
				r.Copying = append(r.Copying, Copying{})
				els.took(r.Copying[len(r.Copying)-1].parse(els.doc()))
			}
			f.took(els.err)
		default:
			f.unknown()
		}
	}
	return f.err
}

func (c *Copying) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "coll":
			c.Collection = collection(&f)
		case "id":
			c.Chunk = manifest.ChunkID(f.int())
		case "n":
			c.Chunks = f.int()
		case "to":
			c.To = manifest.ShardID(f.str())
		case "bytes":
			c.Bytes = f.int()
		case "total":
			c.Total = f.int()
		default:
			f.unknown()
		}
	}
	return f.err
}

func (c *ChunkLoad) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "coll":
			c.Collection = collection(&f)
		case "id":
			c.ID = manifest.ChunkID(f.int())
		case "v":
			c.Version = manifest.ChunkVersion(f.int())
		case "reads":
			c.Reads = f.float()
		case "writes":
			c.Writes = f.float()
		case "inserts":
			c.Inserts = f.float()
		case "rows":
			c.UnflushedRows = f.int()
		case "bytes":
			c.UnflushedBytes = f.int()
		case "tail":
			c.TailShare = f.float()
		case "median":
			c.Median = f.bin()
		case "age":
			c.Age = time.Duration(f.int())
		default:
			f.unknown()
		}
	}
	return f.err
}
