package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// firstBatch is how many documents a find sends when nobody says: MongoDB's number.
const firstBatch = 101

// find reads, and what continues a read.
func (s *Commands) find() []Command {
	return []Command{
		{
			Name: "find", Help: "documents that match a filter", Run: s.runFind,
			Fields: []string{"filter", "sort", "projection", "skip", "limit", "batchSize", "singleBatch", "noCursorTimeout",
				"tailable", "awaitData", "collation", "let", "min", "max", "returnKey", "showRecordId"},
			Ignored: []string{"hint", "allowDiskUse", "allowPartialResults", "oplogReplay", "readOnce"},
		},
		{Name: "getMore", Help: "the next documents of a cursor", Fields: []string{"collection", "batchSize"}, Run: s.getMore, entry: continues},
		{Name: "killCursors", Help: "closes cursors", Fields: []string{"cursors"}, Run: s.killCursors, entry: always},
		{
			Name: "count", Help: "how many documents match", Run: s.count,
			Fields: []string{"query", "limit", "skip", "collation"}, Ignored: []string{"hint", "fields"},
		},
		{
			Name: "distinct", Help: "the different values of a field", Run: s.distinct,
			Fields: []string{"key", "query", "collation"}, Ignored: []string{"hint"},
		},
		{Name: "explain", Help: "which chunks a command would visit, and why", Fields: []string{"verbosity"}, Run: s.explain},
	}
}

func (s *Commands) runFind(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.namespace()
	q := c.findQuery()
	for _, name := range []string{"tailable", "awaitData"} {
		c.refuse(name, ": collections are not capped; read again, or keep the last _id that was seen")
	}
	forever, single := c.bool("noCursorTimeout"), c.bool("singleBatch")
	batch := int(c.count("batchSize", firstBatch))
	if c.err != nil {
		return nil, c.err
	}
	s.counts.query.Add(1)
	ctx, cancel := c.limited(ctx)
	defer cancel()
	q.First = batch
	r, err := s.read(ctx, ns, q)
	if err != nil {
		return nil, err
	}
	return s.first(ctx, c, &cursor{ns: ns.String(), session: c.session, rows: r, forever: forever}, batch, single)
}

// findQuery reads what find and its explain have in common.
func (c *call) findQuery() router.Query {
	q := router.Query{
		Filter: clone(c.doc("filter")), Sort: clone(c.doc("sort")), Projection: clone(c.doc("projection")),
		Skip: c.count("skip", 0), Limit: c.count("limit", 0), Level: c.level, At: c.at, MaxTime: c.maxTime,
	}
	c.simpleCollation()
	for _, name := range []string{"min", "max", "returnKey", "showRecordId"} {
		c.refuse(name, "")
	}
	if len(c.doc("let")) > 5 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "%s: let is not supported", c.cmd.Name))
	}
	return q
}

// read starts a query, on stored documents or on those that show the cluster.
func (s *Commands) read(ctx context.Context, ns router.Namespace, q router.Query) (rows, error) {
	docs, ok, err := s.virtual(ctx, ns, q.Filter, q.MaxTime)
	if err != nil {
		return nil, err
	}
	if ok {
		return queryDocs(docs, q)
	}
	return s.router.Find(ctx, ns, q)
}

// first answers with a cursor's first batch, and keeps the cursor when more follows.
func (s *Commands) first(ctx context.Context, c *call, cur *cursor, batch int, single bool) (bson.Raw, error) {
	var docs []bson.Raw
	var err error
	if batch > 0 {
		docs, err = cur.rows.Batch(ctx, batch, maxReply)
	}
	if err != nil || single || cur.rows.Done() {
		cur.rows.Close(ctx)
	} else if err = s.cursors.add(cur); err != nil {
		cur.rows.Close(ctx)
	}
	if err != nil {
		return nil, err
	}
	return cursorReply("firstBatch", docs, cur.id, cur.ns), nil
}

func (s *Commands) getMore(ctx context.Context, c *call) (bson.Raw, error) {
	id, ok := c.fields[0].value.AsInt64OK()
	if !ok {
		return nil, wrongType("getMore", "getMore", c.fields[0].value, "'long'")
	}
	ns := c.DB + "." + c.string("collection")
	batch := int(c.count("batchSize", 0))
	if c.err != nil {
		return nil, c.err
	}
	s.counts.getmore.Add(1)
	cur, err := s.cursors.take(id, ns, c.session)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	docs, err := cur.rows.Batch(ctx, batch, maxReply)
	done := err != nil || cur.rows.Done()
	s.cursors.give(ctx, cur, done)
	if err != nil {
		return nil, err
	}
	if done {
		id = 0
	}
	return cursorReply("nextBatch", docs, id, ns), nil
}

func (s *Commands) killCursors(ctx context.Context, c *call) (bson.Raw, error) {
	name, _ := c.fields[0].value.StringValueOK()
	list := c.value("cursors")
	if list.Type != bson.TypeArray {
		return nil, wrongType("killCursors", "cursors", list, "'array'")
	}
	var killed, missing []bson.RawValue
	for _, v := range elements(list) {
		id, ok := v.AsInt64OK()
		if ok && s.cursors.kill(ctx, id, c.DB+"."+name) {
			killed = append(killed, v)
		} else {
			missing = append(missing, v)
		}
	}
	b := build().
		AppendArray("cursorsKilled", values(killed)).
		AppendArray("cursorsNotFound", values(missing)).
		AppendArray("cursorsAlive", stringArray()).
		AppendArray("cursorsUnknown", stringArray())
	return ok(b), nil
}

func (s *Commands) count(ctx context.Context, c *call) (bson.Raw, error) {
	ns, q := c.namespace(), c.countQuery()
	if c.err != nil {
		return nil, c.err
	}
	n, err := s.countRows(ctx, ns, q)
	if err != nil {
		return nil, err
	}
	return ok(appendCount(build(), "n", n)), nil
}

// countQuery reads what count and its explain have in common.
func (c *call) countQuery() router.Query {
	q := router.Query{Filter: c.doc("query"), Skip: c.count("skip", 0), Limit: c.int("limit"), Level: c.level, At: c.at, MaxTime: c.maxTime}
	if q.Limit < 0 {
		q.Limit = -q.Limit
	}
	c.simpleCollation()
	return q
}

// countRows counts stored documents or those that show the cluster.
func (s *Commands) countRows(ctx context.Context, ns router.Namespace, q router.Query) (int64, error) {
	docs, ok, err := s.virtual(ctx, ns, q.Filter, q.MaxTime)
	if err != nil {
		return 0, err
	}
	if !ok {
		return s.router.Count(ctx, ns, q)
	}
	return countDocs(docs, q)
}

func (s *Commands) distinct(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.namespace()
	key := c.string("key")
	q := router.Query{Filter: c.doc("query"), Level: c.level, At: c.at, MaxTime: c.maxTime}
	c.simpleCollation()
	if c.err == nil && key == "" {
		c.fail(mongoerr.New(mongoerr.BadValue, "distinct: key must name a field"))
	}
	if c.err != nil {
		return nil, c.err
	}
	docs, virtual, err := s.virtual(ctx, ns, q.Filter, q.MaxTime)
	if err != nil {
		return nil, err
	}
	var vs []bson.RawValue
	if virtual {
		vs, err = distinctDocs(docs, key, q)
	} else {
		vs, err = s.router.Distinct(ctx, ns, key, q)
	}
	if err != nil {
		return nil, err
	}
	return ok(build().AppendArray("values", values(vs))), nil
}
