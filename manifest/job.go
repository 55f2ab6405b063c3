package manifest

import (
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// JobReshard is the kind of a job that rewrites a collection under another key.
const JobReshard = "reshard"

// buildsField of a job's detail is the id of the collection that it builds.
const buildsField = "builds"

// Builds is the id of the collection whose segments the job makes before the collection is
// there; 0: none. It is the job's alone: no other collection ever gets it.
func (j Job) Builds() CollectionID {
	if len(j.Detail) == 0 {
		return 0
	}
	id, _ := j.Detail.Lookup(buildsField).Int64OK()
	return CollectionID(id)
}

// JobDetail is the detail of a job that builds a collection: its id and the namespace that it
// will have.
func JobDetail(builds CollectionID, ns string) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt64(buildsField, int64(builds)).AppendString("ns", ns).Build())
}

// JobCompact is the kind of a job that merges segments of chunks.
const JobCompact = "compact"

// MovingSuffix is what the holder of a job that copies chunks to another location ends with.
const MovingSuffix = " moves"

// Moves reports whether the job copies chunks to another location, to hand them over there.
func (j Job) Moves() bool { return strings.HasSuffix(j.Holder, MovingSuffix) }

// abandonedAfter is the age at which a job that merges segments is taken for abandoned.
const abandonedAfter = time.Hour

// Abandoned reports whether a job that merges segments is so old that nobody is likely to be at
// work on it. It is for processes that do not live long enough to see that it does not end.
// Whether it is right does not matter for safety: a job that is expelled while it works cannot
// commit, and its work is done again.
func (j Job) Abandoned(nowMillis int64) bool {
	return j.Kind == JobCompact && nowMillis-j.StartedMillis >= abandonedAfter.Milliseconds()
}

// chunksField of a job's detail lists the chunks that it works on.
const chunksField = "chunks"

// Chunks are those that a job says it works on: a hint for others to leave them alone.
func (j Job) Chunks() (ids []ChunkID) {
	if len(j.Detail) == 0 {
		return nil
	}
	list, ok := j.Detail.Lookup(chunksField).ArrayOK()
	if !ok {
		return nil
	}
	values, _ := list.Values()
	for _, v := range values {
		if id, ok := v.Int64OK(); ok {
			ids = append(ids, ChunkID(id))
		}
	}
	return ids
}

// ChunksDetail is the detail of a job that works on chunks.
func ChunksDetail(ids []ChunkID) bson.Raw {
	list := bsoncore.NewArrayBuilder()
	for _, id := range ids {
		list.AppendInt64(int64(id))
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendArray(chunksField, list.Build()).Build())
}

// Resharding reports whether a job rewrites the collection of that name under another key. It
// notices what is written meanwhile, but not that references go without a trace.
func (s *State) Resharding(ns string) bool {
	return slices.ContainsFunc(s.jobs, func(j Job) bool {
		if j.Kind != JobReshard || len(j.Detail) == 0 {
			return false
		}
		name, _ := j.Detail.Lookup("ns").StringValueOK()
		return name == ns
	})
}
