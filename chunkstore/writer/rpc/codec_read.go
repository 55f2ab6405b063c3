package rpc

import (
	"github.com/granarydb/granary/manifest"
)

// Append appends the request as a BSON document.
func (r *ReadRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	appendTargets(&e, r.Targets)
	e.int("level", int64(r.Level))
	q := &r.Query
	e.int("mode", int64(q.Mode))
	e.raw("filter", q.Filter)
	e.raw("projection", q.Projection)
	e.raw("sort", q.Sort)
	e.int("keyOrder", int64(q.KeyOrder))
	e.int("skip", q.Skip)
	e.int("limit", q.Limit)
	e.str("field", q.Field)
	e.bool("withSortKey", q.WithSortKey)
	r.Batch.append(&e)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *ReadRequest) Parse(doc []byte) error {
	*r = ReadRequest{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "targets":
			r.Targets = parseTargets(&f)
		case "level":
			r.Level = Level(f.small(int64(Verified)))
		default:
			if !r.Header.parse(&f) && !r.Batch.parse(&f) && !r.Query.parse(&f) {
				f.unknown()
			}
		}
	}
	return f.err
}

func (q *Query) parse(f *reader) bool {
	switch string(f.name) {
	case "mode":
		q.Mode = ReadMode(f.small(int64(Keys)))
	case "filter":
		q.Filter = f.raw()
	case "projection":
		q.Projection = f.raw()
	case "sort":
		q.Sort = f.raw()
	case "keyOrder":
		v := f.int()
		f.want(v >= -1 && v <= 1, "-1, 0 or 1")
		q.KeyOrder = int8(v)
	case "skip":
		q.Skip = f.int()
	case "limit":
		q.Limit = f.int()
	case "field":
		q.Field = f.str()
	case "withSortKey":
		q.WithSortKey = f.bool()
	default:
		return false
	}
	return true
}

// Append appends the reply as a BSON document that begins with ok: 1.
func (r *ReadReply) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.ok()
	e.int("cursor", int64(r.Cursor))
	e.int("n", r.N)
	e.int("dataVersion", int64(r.DataVersion))
	e.int("gained", int64(r.Gained))
	e.int("examined", r.Stats.DocsExamined)
	e.int("requests", r.Stats.BucketRequests)
	e.int("bytes", r.Stats.BucketBytes)
	e.raws("docs", r.Docs)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *ReadReply) Parse(doc []byte) error {
	*r = ReadReply{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "ok":
		case "cursor":
			r.Cursor = uint64(f.int())
		case "n":
			r.N = f.int()
		case "dataVersion":
			r.DataVersion = manifest.DataVersion(f.int())
		case "gained":
			r.Gained = manifest.Version(f.int())
		case "examined":
			r.Stats.DocsExamined = f.int()
		case "requests":
			r.Stats.BucketRequests = f.int()
		case "bytes":
			r.Stats.BucketBytes = f.int()
		case "docs":
			r.Docs = f.raws()
		default:
			f.unknown()
		}
	}
	return f.err
}

// Append appends the request as a BSON document.
func (r *CursorRequest) Append(dst []byte) []byte {
	e := encoder{dst}
	at := e.start()
	r.Header.append(&e)
	e.int("cursor", int64(r.Cursor))
	e.bool("close", r.Close)
	r.Batch.append(&e)
	e.end(at)
	return e.b
}

// Parse reads what Append wrote. Errors: Invalid.
func (r *CursorRequest) Parse(doc []byte) error {
	*r = CursorRequest{}
	f := read(doc)
	for f.next() {
		switch string(f.name) {
		case "cursor":
			r.Cursor = uint64(f.int())
		case "close":
			r.Close = f.bool()
		default:
			if !r.Header.parse(&f) && !r.Batch.parse(&f) {
				f.unknown()
			}
		}
	}
	return f.err
}
