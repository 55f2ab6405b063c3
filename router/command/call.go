package command

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// call is one command under way. Its readers of fields keep the first error in err, so that
// a command reads all it needs and looks once; a field that is not there, or null, reads as
// the zero value.
type call struct {
	*wire.Request
	s      *Commands
	cmd    *Command
	peer   peer
	fields []field // in their order, the command's own first
	err    error

	// Of what every command may carry:
	session []byte // lsid.id; nil: none
	user    []byte // lsid.uid
	retry   *router.Retry
	maxTime time.Duration
	level   rpc.Level
	at      manifest.Version // of a snapshot
}

type field struct {
	name  []byte
	value bson.RawValue
}

// common are the fields of every command that are read here or change nothing.
var common = []string{
	"$db", "lsid", "txnNumber", "maxTimeMS", "readConcern", "writeConcern", "comment", "$readPreference", "$clusterTime",
	"startTransaction", "autocommit", "apiVersion", "apiStrict", "apiDeprecationErrors", "$configTime", "$topologyTime", "$audit",
	"$client", "$oplogQueryData", "maxTimeMSOpOnly", "serialization", "rawData",
}

func (s *Commands) newCall(ctx context.Context, cmd *Command, m *wire.Request, p peer) (*call, error) {
	c := &call{Request: m, s: s, cmd: cmd, peer: p, fields: make([]field, 0, 12)}
	for rest := []byte(m.Body[4:]); ; {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			break
		}
		v := e.Value()
		c.fields = append(c.fields, field{e.KeyBytes(), bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}})
		rest = next
	}
	if err := c.checkFields(); err != nil {
		return nil, err
	}
	c.readCommon(ctx)
	return c, c.err
}

func (c *call) checkFields() error {
	if slices.Contains(c.cmd.Fields, "*") {
		return nil
	}
	known := func(name string) bool {
		return slices.Contains(c.cmd.Fields, name) || slices.Contains(common, name) || slices.Contains(c.cmd.Ignored, name)
	}
	for _, f := range c.fields[1:] {
		if !known(string(f.name)) {
			return unknownField(c.cmd.Name, string(f.name))
		}
	}
	for _, q := range c.Sequences {
		if !known(q.ID) {
			return unknownField(c.cmd.Name, q.ID)
		}
	}
	return nil
}

func unknownField(command, name string) error {
	return mongoerr.New(40415, "BSON field '%s.%s' is an unknown field.", command, name)
}

// readCommon reads what every command may carry.
func (c *call) readCommon(ctx context.Context) {
	if id := c.doc("lsid"); id != nil {
		kind, data, ok := id.Lookup("id").BinaryOK()
		if !ok || kind != bson.TypeBinaryUUID || len(data) != 16 {
			c.fail(mongoerr.New(mongoerr.TypeMismatch, "BSON field 'lsid.id' must be a UUID"))
			return
		}
		c.session = data
		_, c.user, _ = id.Lookup("uid").BinaryOK()
	}
	if ms := c.int("maxTimeMS"); ms < 0 || ms > math.MaxInt32 {
		c.fail(mongoerr.New(mongoerr.BadValue, "%d value for maxTimeMS is out of range [0, 2147483647]", ms))
	} else {
		c.maxTime = time.Duration(ms) * time.Millisecond
	}
	c.readTransaction()
	c.readConcern(ctx)
	if w := c.value("writeConcern"); w.Type != 0 && w.Type != bson.TypeEmbeddedDocument {
		c.fail(wrongType(c.cmd.Name, "writeConcern", w, "'object'"))
	}
}

func (c *call) readTransaction() {
	if c.bool("startTransaction") || c.value("autocommit").Type != 0 {
		c.fail(mongoerr.New(mongoerr.IllegalOperation, "multi-document transactions are not supported: "+
			"each write of one document is atomic by itself, and an insert or update without a transaction is durable when it is answered"))
		return
	}
	if c.value("txnNumber").Type == 0 {
		return
	}
	if c.session == nil {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "Transaction number requires a session ID (lsid)"))
		return
	}
	c.retry = &router.Retry{Txn: c.int("txnNumber")}
	copy(c.retry.Session[:16], c.session)
	copy(c.retry.Session[16:], c.user)
}

// readConcern takes the level of consistency. Everything answered is durable, and of the
// newest state; linearizable also does without any clock.
func (c *call) readConcern(ctx context.Context) {
	rc := c.doc("readConcern")
	if rc == nil {
		return
	}
	level, _ := rc.Lookup("level").StringValueOK()
	switch level {
	case "", "local", "available", "majority":
	case "linearizable":
		c.level = rpc.Verified
	case "snapshot":
		c.readSnapshot(ctx, rc)
	default:
		c.fail(mongoerr.New(mongoerr.FailedToParse, "Enumeration value '%s' for field 'readConcern.level' is not a valid value.", level))
	}
}

// snapshotReads are the commands that can be asked about a snapshot.
var snapshotReads = []string{"find", "aggregate", "count", "distinct"}

// timesFrom is the first second of a cluster time that is a time, as MongoDB's are. Below it is the
// upper half of a version of the root, of which there will not be as many.
const timesFrom = 1_000_000_000

// readSnapshot takes the snapshot to read. Its cluster time is the version of the root, or a time:
// then it is the last one before.
func (c *call) readSnapshot(ctx context.Context, rc bson.Raw) {
	t, i, ok := rc.Lookup("atClusterTime").TimestampOK()
	switch {
	case !slices.Contains(snapshotReads, c.cmd.Name):
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "readConcern level snapshot is for %v, not for %s", snapshotReads, c.cmd.Name))
	case !ok:
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "readConcern level snapshot reads a snapshot that was made before, and needs its atClusterTime: "+
			"db.adminCommand({ createSnapshot: NAME }) makes one, listSnapshots shows them. Without it every read sees all that was acknowledged before it began"))
	case t >= timesFrom:
		pin, err := c.s.router.SnapshotAt(ctx, time.Unix(int64(t), 0), c.maxTime)
		if err != nil {
			c.fail(err)
		}
		c.at = pin.Version
	default:
		c.at = manifest.Version(uint64(t)<<32 | uint64(i))
	}
}

func (c *call) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// value is a field; a zero one is not there.
func (c *call) value(name string) bson.RawValue {
	for _, f := range c.fields {
		if string(f.name) == name {
			return f.value
		}
	}
	return bson.RawValue{}
}

func absent(v bson.RawValue) bool { return v.Type == 0 || v.Type == bson.TypeNull }

func (c *call) doc(name string) bson.Raw {
	v := c.value(name)
	if absent(v) {
		return nil
	}
	d, ok := v.DocumentOK()
	if !ok {
		c.fail(wrongType(c.cmd.Name, name, v, "'object'"))
	}
	return d
}

func (c *call) int(name string) int64 {
	v := c.value(name)
	if absent(v) {
		return 0
	}
	n, ok := asInt(v)
	if !ok {
		c.fail(wrongType(c.cmd.Name, name, v, "'[long, int, decimal, double]'"))
	}
	return n
}

// count reads a number that must not be negative; other is what a missing one is.
func (c *call) count(name string, other int64) int64 {
	if absent(c.value(name)) {
		return other
	}
	n := c.int(name)
	if n < 0 {
		c.fail(mongoerr.New(51024, "BSON field '%s' value must be >= 0, actual value '%d'", name, n))
	}
	return n
}

func (c *call) bool(name string) bool {
	v := c.value(name)
	if absent(v) {
		return false
	}
	b, ok := asBool(v)
	if !ok {
		c.fail(wrongType(c.cmd.Name, name, v, "'[bool, long, int, decimal, double]'"))
	}
	return b
}

func (c *call) string(name string) string {
	v := c.value(name)
	if absent(v) {
		return ""
	}
	s, ok := v.StringValueOK()
	if !ok {
		c.fail(wrongType(c.cmd.Name, name, v, "'string'"))
	}
	return s
}

// docs reads a list of documents: a sequence of the message, or an array in the command.
func (c *call) docs(name string) []bson.Raw {
	if q := c.Sequence(name); q != nil {
		return q
	}
	v := c.value(name)
	if v.Type == 0 {
		return nil
	}
	return c.list(name, v)
}

func (c *call) list(name string, v bson.RawValue) []bson.Raw {
	if v.Type != bson.TypeArray {
		c.fail(wrongType(c.cmd.Name, name, v, "'array'"))
		return nil
	}
	var docs []bson.Raw
	for i, x := range elements(v) {
		d, ok := x.DocumentOK()
		if !ok {
			c.fail(mongoerr.New(mongoerr.TypeMismatch, "BSON field '%s.%s.%d' is the wrong type '%s', expected type 'object'",
				c.cmd.Name, name, i, typeName(x.Type)))
			return nil
		}
		docs = append(docs, d)
	}
	return docs
}

// refuse accepts only the absence of a field, null and false.
func (c *call) refuse(name, why string) {
	v := c.value(name)
	if b, ok := v.BooleanOK(); absent(v) || ok && !b {
		return
	}
	c.fail(mongoerr.New(mongoerr.InvalidOptions, "%s: %s is not supported%s", c.cmd.Name, name, why))
}

// simpleCollation refuses every collation but the binary one.
func (c *call) simpleCollation() {
	d := c.doc("collation")
	if len(d) <= 5 {
		return
	}
	if locale, _ := d.Lookup("locale").StringValueOK(); locale != "simple" {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "%s: only the collation {locale: 'simple'} is supported, strings compare byte by byte", c.cmd.Name))
	}
}

// limited is ctx with the command's time limit.
func (c *call) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := c.maxTime
	if limit <= 0 {
		limit = c.s.options.Patience
	}
	return c.s.host.WithTimeout(ctx, limit)
}
