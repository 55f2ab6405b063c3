package manifest

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// How large chunks should be, and whether they are cut and merged by themselves. The names
// are MongoDB's: for the cluster the settings chunksize {value: MB}, autosplit {enabled} and
// automerge {enabled}; for a collection the options maxChunkSizeBytes, noAutoSplit and
// enableAutoMerge, as config.collections shows them.
const (
	settingChunkSize = "chunksize"
	settingAutosplit = "autosplit"
	settingAutomerge = "automerge"

	chunkSizeOption = "maxChunkSizeBytes"
	noSplitOption   = "noAutoSplit"
	mergeOption     = "enableAutoMerge"
)

// The target size of chunks, in bytes: what it is when nobody said, and the least and the
// most that one can say, 1 MB to 1 GB as in MongoDB.
const (
	ChunkSizeDefault = 64 << 20
	ChunkSizeMin     = 1 << 20
	ChunkSizeMax     = 1 << 30
)

// ChunkSize is the target size of the collection's chunks, in bytes of documents and keys: its
// own, or the cluster's.
func (s *State) ChunkSize(c *Collection) int64 {
	if n, ok := asInt64(c.option(chunkSizeOption)); ok && n > 0 {
		return n
	}
	if mb, ok := asInt64(s.setting(settingChunkSize, "value")); ok && mb > 0 {
		return min(mb, ChunkSizeMax>>20) << 20
	}
	return ChunkSizeDefault
}

// AutoSplit reports whether the collection's chunks are cut when they are too large.
func (s *State) AutoSplit(c *Collection) bool {
	off, _ := c.option(noSplitOption).BooleanOK()
	return s.enabled(settingAutosplit) && !off
}

// AutoMerge reports whether small neighbours among the collection's chunks are merged.
func (s *State) AutoMerge(c *Collection) bool {
	on, said := c.option(mergeOption).BooleanOK()
	return s.enabled(settingAutomerge) && (on || !said)
}

// WithChunkSize is options with a target size of their own, in bytes; 0: with the cluster's.
func WithChunkSize(options bson.Raw, bytes int64) bson.Raw {
	plain := withoutOption(options, chunkSizeOption)
	if bytes == 0 {
		return plain
	}
	return withOption(plain, bsoncore.AppendInt64Element(nil, chunkSizeOption, bytes))
}

// WithAutoSplit is options that let chunks be cut, or not.
func WithAutoSplit(options bson.Raw, on bool) bson.Raw {
	plain := withoutOption(options, noSplitOption)
	if on {
		return plain
	}
	return withOption(plain, bsoncore.AppendBooleanElement(nil, noSplitOption, true))
}

// WithAutoMerge is options that let chunks be merged, or not.
func WithAutoMerge(options bson.Raw, on bool) bson.Raw {
	plain := withoutOption(options, mergeOption)
	if on {
		return plain
	}
	return withOption(plain, bsoncore.AppendBooleanElement(nil, mergeOption, false))
}

// option is one of the collection's options; zero: it has none of that name.
func (c *Collection) option(name string) bson.RawValue {
	if len(c.Options) == 0 {
		return bson.RawValue{}
	}
	v, err := c.Options.LookupErr(name)
	if err != nil {
		return bson.RawValue{}
	}
	return v
}

// setting is a field of a setting of the cluster; zero: nobody set it.
func (s *State) setting(id, field string) bson.RawValue {
	r, ok := s.Record(RecordSetting, id)
	if !ok {
		return bson.RawValue{}
	}
	v, err := r.Body.LookupErr(field)
	if err != nil {
		return bson.RawValue{}
	}
	return v
}

// enabled reports whether a part of the upkeep is on: it is, unless the setting says no.
func (s *State) enabled(id string) bool {
	on, said := s.setting(id, "enabled").BooleanOK()
	return on || !said
}

// asInt64 is a number of any kind as users type them.
func asInt64(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeDouble:
		f := v.Double()
		return int64(f), f == float64(int64(f))
	default:
		return v.AsInt64OK()
	}
}
