package router

import (
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Statement is one write.
type Statement struct {
	Kind rpc.WriteKind // Insert, Update or Delete
	// Doc is what Insert stores; its _id is added or moved to the front.
	Doc bson.Raw
	// Filter says what Update and Delete concern: the first match, or with Multi all.
	Filter       bson.Raw
	Update       bson.RawValue // replacement, operators or pipeline
	ArrayFilters []bson.Raw
	Multi        bool
	Upsert       bool
	Sort         bson.Raw // which match is the first
	// Return and Projection ask for the document that was changed.
	Return     rpc.ReturnDoc
	Projection bson.Raw
	// Stmt numbers the statement within its client's transaction number.
	Stmt int32
}

// Retry is how a client names a write that it may send again.
type Retry struct {
	Session [32]byte // lsid.id, and a hash of the user
	Txn     int64
}

// Writes are statements on one collection.
type Writes struct {
	Statements []Statement
	// Ordered stops at the first statement that fails.
	Ordered bool
	Retry   *Retry // nil: the client does not send it again
	MaxTime time.Duration
}

// Result is the outcome of one statement. Not Done: it was not tried, or nobody knows; the
// error of Write says which.
type Result struct {
	Done bool
	rpc.WriteResult
}

// work is a statement under way.
type work struct {
	Statement
	op     rpc.OpID
	filter *document.Filter
	update *document.Update
	sort   *document.Sort

	done   bool
	result rpc.WriteResult
	// counted: the figures about targeting have it.
	counted bool
	// uncertain: an answer was lost, the statement may have been applied under op.
	uncertain bool
	// direct is the chunk to which the statement was sent without a key, when it may have
	// been applied there; see settle.
	direct *manifest.ChunkAt
	// told: k's home says that direct was tried.
	told bool
	// try names this try of a client's in an intent of a direct request; 0: not needed yet.
	try int64
	// goal is the row that the statement is for, when it was chosen in a phase of its own.
	goal *goal
	// left is what a Multi has still to visit, nil before it began; total is of the rest.
	left  []shardkey.Range
	total rpc.WriteResult
	// partly: a Multi that a chunk did not finish had changed some documents there.
	partly bool
	// follow: another try of the client's may have chosen a row, or refused what went to a
	// chunk without one; it is asked at the statement's home.
	follow bool
}

func (w *work) finish(res rpc.WriteResult) {
	w.done, w.uncertain, w.result = true, false, res
}

func (w *work) fail(err error) { w.finish(rpc.WriteResult{Err: MongoError(err)}) }

// size is about what the statement takes in a request.
func (w *work) size() int { return len(w.Doc) + len(w.Filter) + len(w.Update.Value) + 128 }

// prepare parses a statement; an error is the statement's result.
func (w *work) prepare(r *Router) {
	var err error
	switch w.Kind {
	case rpc.Insert:
		w.Doc, err = r.ids.withID(w.Doc)
	case rpc.Update:
		if w.filter, err = document.ParseFilter(orEmpty(w.Filter)); err != nil {
			break
		}
		w.update, err = document.ParseUpdate(w.Update, document.UpdateOptions{
			ArrayFilters: w.ArrayFilters, Filter: w.filter, Upsert: w.Upsert, NowMillis: r.host.Wall().UnixMilli(),
		})
		if err == nil && w.Multi && w.update.IsReplacement() {
			err = mongoerr.New(mongoerr.FailedToParse, "multi update is not supported for replacement-style update")
		}
	case rpc.Delete:
		w.filter, err = document.ParseFilter(orEmpty(w.Filter))
	}
	if err == nil && !isEmpty(w.Sort) && !isNatural(w.Sort) {
		w.sort, err = document.ParseSort(w.Sort)
	}
	if err == nil && !isEmpty(w.Projection) {
		_, err = document.ParseProjection(w.Projection)
	}
	if err != nil {
		w.fail(err)
	}
}
