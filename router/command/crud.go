package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// crud changes documents.
func (s *Commands) crud() []Command {
	ignored := []string{"bypassDocumentValidation", "bypassEmptyTsReplacement"}
	return []Command{
		{Name: "insert", Help: "stores documents", Fields: []string{"documents", "ordered", "stmtId", "stmtIds"}, Ignored: ignored, Run: s.insert},
		{Name: "update", Help: "changes documents that match", Fields: []string{"updates", "ordered", "stmtId", "stmtIds", "let"}, Ignored: ignored, Run: s.update},
		{Name: "delete", Help: "removes documents that match", Fields: []string{"deletes", "ordered", "stmtId", "stmtIds", "let"}, Ignored: ignored, Run: s.delete},
		{
			Name: "findAndModify", Aliases: []string{"findandmodify"}, Help: "changes one document and returns it", Run: s.findAndModify,
			Fields:  []string{"query", "sort", "remove", "update", "new", "fields", "upsert", "arrayFilters", "collation", "stmtId", "let"},
			Ignored: append([]string{"hint"}, ignored...),
		},
	}
}

func (s *Commands) insert(ctx context.Context, c *call) (bson.Raw, error) {
	docs := c.docs("documents")
	s.counts.insert.Add(int64(len(docs)))
	return s.write(ctx, c, docs, func(doc bson.Raw) (router.Statement, error) {
		return router.Statement{Kind: rpc.Insert, Doc: doc}, nil
	})
}

func (s *Commands) update(ctx context.Context, c *call) (bson.Raw, error) {
	docs := c.docs("updates")
	s.counts.update.Add(int64(len(docs)))
	if c.DB == "config" {
		return s.updateConfig(ctx, c, docs)
	}
	return s.write(ctx, c, docs, c.updateStatement)
}

func (s *Commands) delete(ctx context.Context, c *call) (bson.Raw, error) {
	docs := c.docs("deletes")
	s.counts.delete.Add(int64(len(docs)))
	return s.write(ctx, c, docs, c.deleteStatement)
}

// write runs a command of statements, and answers {n, nModified, upserted, writeErrors}.
func (s *Commands) write(ctx context.Context, c *call, docs []bson.Raw, parse func(bson.Raw) (router.Statement, error)) (bson.Raw, error) {
	ns := c.written()
	ordered := absent(c.value("ordered")) || c.bool("ordered")
	first, ids := c.statementIDs(len(docs))
	if len(c.doc("let")) > 5 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "%s: let is not supported", c.cmd.Name))
	}
	if n := len(docs); c.err == nil && (n == 0 || n > maxWriteBatch) {
		c.fail(mongoerr.New(mongoerr.InvalidLength, "Write batch sizes must be between 1 and %d. Got %d operations.", maxWriteBatch, n))
	}
	if c.err != nil {
		return nil, c.err
	}
	w := router.Writes{Statements: make([]router.Statement, len(docs)), Ordered: ordered, Retry: c.retry, MaxTime: c.maxTime}
	for i, d := range docs {
		st, err := parse(d)
		if err != nil {
			return nil, err
		}
		if st.Multi && c.retry != nil {
			return nil, mongoerr.New(mongoerr.InvalidOptions, "Cannot use (or request) retryable writes with limit=0 or multi=true")
		}
		st.Stmt = first + int32(i)
		if ids != nil {
			st.Stmt = ids[i]
		}
		w.Statements[i] = st
	}
	results, err := s.router.Write(ctx, ns, w)
	if err != nil {
		return nil, err
	}
	return writeReply(c.cmd.Name, results), nil
}

// statementIDs are the numbers that a client gave its statements: consecutive from the
// first, or a list.
func (c *call) statementIDs(n int) (first int32, ids []int32) {
	first = int32(c.int("stmtId"))
	v := c.value("stmtIds")
	if v.Type != bson.TypeArray {
		return first, nil
	}
	for _, x := range elements(v) {
		id, _ := asInt(x)
		ids = append(ids, int32(id))
	}
	if len(ids) != n {
		c.fail(mongoerr.New(mongoerr.InvalidLength, "Number of statement ids must match the number of batch entries. Got %d statement ids but %d operations.", len(ids), n))
	}
	return first, ids
}

func writeReply(name string, results []router.Result) bson.Raw {
	var n, modified int64
	var upserted, failed []bson.Raw
	for i, r := range results {
		if !r.Done {
			continue
		}
		n += r.N
		modified += r.Modified
		if r.UpsertedID.Type != 0 {
			upserted = append(upserted, bson.Raw(build().AppendInt32("index", int32(i)).AppendValue("_id", core(r.UpsertedID)).Build()))
		}
		if r.Err != nil {
			failed = append(failed, writeError(i, r.Err))
		}
	}
	b := build().AppendInt32("n", int32(n))
	if len(upserted) > 0 {
		b.AppendArray("upserted", array(upserted))
	}
	if name == "update" {
		b.AppendInt32("nModified", int32(modified))
	}
	if len(failed) > 0 {
		b.AppendArray("writeErrors", array(failed))
	}
	return ok(b)
}

func writeError(index int, e *mongoerr.Error) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "index", int32(index))
	doc = bsoncore.AppendInt32Element(doc, "code", int32(e.Code))
	doc = appendInfo(doc, e)
	doc = bsoncore.AppendStringElement(doc, "errmsg", e.Message)
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// updateStatement reads {q, u, multi, upsert, arrayFilters, sort, ...}.
func (c *call) updateStatement(d bson.Raw) (router.Statement, error) {
	st := router.Statement{Kind: rpc.Update}
	err := c.fieldsOf("update.updates", d, func(name string, v bson.RawValue) (known bool, ok bool) {
		switch name {
		case "q":
			st.Filter, ok = v.DocumentOK()
		case "u":
			st.Update, ok = v, v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray
		case "multi":
			st.Multi, ok = asBool(v)
		case "upsert":
			st.Upsert, ok = asBool(v)
		case "sort":
			st.Sort, ok = v.DocumentOK()
		case "arrayFilters":
			st.ArrayFilters, ok = documents(v)
		case "hint", "collation":
			ok = simple(name, v)
		default:
			return false, false
		}
		return true, ok
	})
	switch {
	case err != nil:
	case st.Filter == nil:
		err = missingField("update.updates.q")
	case st.Update.Type == 0:
		err = missingField("update.updates.u")
	case st.Multi && len(st.Sort) > 5:
		err = mongoerr.New(mongoerr.FailedToParse, "Cannot specify sort with multi=true")
	}
	return st, err
}

// deleteStatement reads {q, limit, ...}.
func (c *call) deleteStatement(d bson.Raw) (router.Statement, error) {
	st := router.Statement{Kind: rpc.Delete}
	limit := int64(-1)
	err := c.fieldsOf("delete.deletes", d, func(name string, v bson.RawValue) (known bool, ok bool) {
		switch name {
		case "q":
			st.Filter, ok = v.DocumentOK()
		case "limit":
			limit, ok = asInt(v)
		case "hint", "collation":
			ok = simple(name, v)
		default:
			return false, false
		}
		return true, ok
	})
	st.Multi = limit == 0
	switch {
	case err != nil:
	case st.Filter == nil:
		err = missingField("delete.deletes.q")
	case limit == -1:
		err = missingField("delete.deletes.limit")
	case limit != 0 && limit != 1:
		err = mongoerr.New(mongoerr.FailedToParse, "The limit field in delete objects must be 0 or 1. Got %d", limit)
	}
	return st, err
}

// fieldsOf reads the fields of a statement; read says whether it knows a name, and whether
// the value is of the right type.
func (c *call) fieldsOf(path string, d bson.Raw, read func(name string, v bson.RawValue) (known, ok bool)) error {
	for rest := []byte(d[4:]); ; {
		e, next, more := bsoncore.ReadElement(rest)
		if !more {
			return nil
		}
		v := e.Value()
		known, ok := read(string(e.KeyBytes()), bson.RawValue{Type: bson.Type(v.Type), Value: v.Data})
		switch {
		case !known:
			return unknownField(path, string(e.KeyBytes()))
		case !ok:
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field '%s.%s' is of type '%s', which is not supported here", path, e.KeyBytes(), typeName(bson.Type(v.Type)))
		}
		rest = next
	}
}

func missingField(path string) error {
	return mongoerr.New(40414, "BSON field '%s' is missing but a required field", path)
}

func documents(v bson.RawValue) (docs []bson.Raw, ok bool) {
	if v.Type != bson.TypeArray {
		return nil, false
	}
	for _, x := range elements(v) {
		d, ok := x.DocumentOK()
		if !ok {
			return nil, false
		}
		docs = append(docs, d)
	}
	return docs, true
}

// simple accepts any hint, and the one collation there is.
func simple(name string, v bson.RawValue) bool {
	d, ok := v.DocumentOK()
	if name == "hint" || ok && len(d) <= 5 {
		return true
	}
	locale, _ := d.Lookup("locale").StringValueOK()
	return ok && locale == "simple"
}
