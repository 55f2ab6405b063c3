package manifesttest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ParseChange reads one change, written as the package doc shows. Chunks are named as s
// has them.
func ParseChange(s *manifest.State, line string) (c manifest.Change, err error) {
	defer func() {
		if p := recover(); p != nil {
			bad, ok := p.(parseError)
			if !ok {
				panic(p)
			}
			c, err = nil, fmt.Errorf("%s: %s", line, string(bad))
		}
	}()
	words := splitWords(line)
	l := &args{s: s, named: map[string]string{}}
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok && !strings.ContainsAny(name, "{") {
			l.named[name] = value
		} else {
			l.plain = append(l.plain, w)
		}
	}
	parse := changes[words[0]]
	if parse == nil {
		l.bad("unknown change %q", words[0])
	}
	return parse(l), nil
}

type parseError string

// splitWords cuts at spaces outside of braces.
func splitWords(line string) []string {
	var words []string
	depth, from := 0, 0
	for i, r := range line + " " {
		switch {
		case r == '{':
			depth++
		case r == '}':
			depth--
		case r == ' ' && depth == 0:
			if i > from {
				words = append(words, line[from:i])
			}
			from = i + 1
		}
	}
	return words
}

// args are the words of a change.
type args struct {
	s     *manifest.State
	plain []string
	named map[string]string
}

func (l *args) bad(format string, a ...any) { panic(parseError(fmt.Sprintf(format, a...))) }

func (l *args) word(i int) string {
	if i >= len(l.plain) {
		l.bad("word %d is missing", i+1)
	}
	return l.plain[i]
}

func (l *args) has(word string) bool {
	for _, w := range l.plain {
		if w == word {
			return true
		}
	}
	return false
}

func (l *args) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		l.bad("%q is no number", text)
	}
	return n
}

func (l *args) int(name string) int64 {
	if l.named[name] == "" {
		return 0
	}
	return l.number(l.named[name])
}

func (l *args) shard(i int) manifest.ShardID { return manifest.ShardID(l.word(i)) }
func (l *args) epoch() manifest.Epoch        { return manifest.Epoch(l.int("epoch")) }

func (l *args) position(name string) manifest.Position {
	e, n, ok := strings.Cut(l.named[name], ",")
	if l.named[name] == "" {
		return manifest.Position{}
	}
	if !ok {
		l.bad("%s=epoch,next", name)
	}
	return manifest.Position{Epoch: manifest.Epoch(l.number(e)), Next: uint64(l.number(n))}
}

// at reads shard@epoch.
func (l *args) at(text string) (manifest.ShardID, manifest.Epoch) {
	id, e, ok := strings.Cut(text, "@")
	if !ok {
		l.bad("%q is not shard@epoch", text)
	}
	return manifest.ShardID(id), manifest.Epoch(l.number(e))
}

// chunk reads c7 or c7v2, and what stands in braces behind it.
func (l *args) chunk(text string) (manifest.ChunkAt, string) {
	name, braces, _ := strings.Cut(strings.TrimSuffix(text, "}"), "{")
	id, v, hasVersion := strings.Cut(strings.TrimPrefix(name, "c"), "v")
	at := manifest.ChunkAt{Collection: 1, ID: manifest.ChunkID(l.number(id)), Version: 1}
	for c := range l.s.AllChunks() {
		if c.ID == at.ID {
			at = c.At()
		}
	}
	if hasVersion {
		at.Version = manifest.ChunkVersion(l.number(v))
	}
	return at, braces
}

// chunks are the words that name chunks.
func (l *args) chunks() []string {
	var found []string
	for _, w := range l.plain {
		if len(w) > 1 && w[0] == 'c' && w[1] >= '0' && w[1] <= '9' {
			found = append(found, w)
		}
	}
	return found
}

// id16 reads two hex digits as an id.
func (l *args) id16(text string) (id [16]byte) {
	n, err := strconv.ParseUint(text, 16, 8)
	if err != nil {
		l.bad("%q is not two hex digits", text)
	}
	id[15] = byte(n)
	return id
}

func (l *args) creator(text string) manifest.Creator {
	f := strings.Split(text, ".")
	switch {
	case len(f) == 2 && f[0] == "j":
		return manifest.Creator{Kind: manifest.CreatorJob, Job: l.id16(f[1])}
	case len(f) == 3 && (f[0] == "s" || f[0] == "d"):
		return manifest.Creator{Kind: manifest.CreatorKind(f[0][0]), Shard: manifest.ShardID(f[1]), Epoch: manifest.Epoch(l.number(f[2]))}
	}
	l.bad("creator %q is not s.shard.epoch, d.shard.epoch or j.id", text)
	return manifest.Creator{}
}

// added reads what stands in braces: max=, delta=, bytes= of the chunk, and for each
// reference seg= followed by its fields.
func (l *args) added(braces string, creator manifest.Creator) manifest.Added {
	var a manifest.Added
	for _, w := range splitWords(braces) {
		name, value, _ := strings.Cut(w, "=")
		if name == "seg" {
			a.Refs = append(a.Refs, manifest.SegmentRef{Segment: manifest.SegmentID{Creator: creator, Random: l.id16(value)}})
			continue
		}
		if !l.addedField(&a, name, value) {
			if len(a.Refs) == 0 {
				l.bad("field %q before any seg", name)
			}
			l.refField(&a.Refs[len(a.Refs)-1], name, value)
		}
	}
	return a
}

// addedField reads a field of the chunk; false when it is one of a reference.
func (l *args) addedField(a *manifest.Added, name, value string) bool {
	switch name {
	case "max":
		a.MaxSeq = manifest.Seq(l.number(value))
	case "delta":
		a.RowsDelta = l.number(value)
	case "bytes":
		a.BytesDelta = l.number(value)
	case "shard", "epoch": // of a batch
	default:
		return name == "seq" && len(a.Refs) == 0 // of a batch
	}
	return true
}

func (l *args) refField(r *manifest.SegmentRef, name, value string) {
	switch name {
	case "by":
		r.Segment.Creator = l.creator(value)
	case "keys":
		r.MinKey, r.MaxKey = pair(value)
	case "clip":
		r.Clip.Min, r.Clip.Max = pair(value)
	case "seq":
		low, high, _ := strings.Cut(value, "..")
		r.MinSeq, r.MaxSeq = manifest.Seq(l.number(low)), manifest.Seq(l.number(high))
	case "fixed":
		r.FixedSeq = manifest.Seq(l.number(value))
	case "rows":
		r.Rows = uint64(l.number(value))
	case "size":
		r.Bytes = uint64(l.number(value))
	case "in":
		r.Location = manifest.LocationID(l.number(value))
	case "retry":
		r.RetryUntil = l.number(value)
	default:
		l.bad("unknown field %q of a reference", name)
	}
}

// pair reads low..high, either of which may be empty.
func pair(text string) (low, high []byte) {
	a, b, _ := strings.Cut(text, "..")
	return []byte(a), []byte(b)
}

// Bound is the bound whose key bytes are the text, and {k: text} to users; "" is an open
// end, MinKey below and MaxKey above.
func Bound(key string, above bool) manifest.Bound {
	b := bsoncore.NewDocumentBuilder()
	switch {
	case key != "":
		b.AppendString("k", key)
	case above:
		b.AppendMaxKey("k")
	default:
		b.AppendMinKey("k")
	}
	return manifest.Bound{Key: []byte(key), BSON: bson.Raw(b.Build())}
}

// newChunks reads a,m,b: shard a up to m, then shard b.
func (l *args) newChunks() []manifest.NewChunk {
	if l.named["chunks"] == "" {
		return nil
	}
	f := strings.Split(l.named["chunks"], ",")
	var chunks []manifest.NewChunk
	low := Bound("", false)
	for i := 0; i < len(f); i += 2 {
		high := Bound("", true)
		if i+1 < len(f) {
			high = Bound(f[i+1], false)
		}
		chunks = append(chunks, manifest.NewChunk{Min: low, Max: high, Shard: manifest.ShardID(f[i])})
		low = high
	}
	return chunks
}

// collection makes the collection that a namespace names, with the key {k: 1}.
func (l *args) collection(ns string) manifest.Collection {
	db, name, _ := strings.Cut(ns, ".")
	c := manifest.Collection{
		Database: db, Name: name, Sharded: !l.has("unsharded"),
		Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}},
	}
	copy(c.UUID[:], ns)
	if l.named["uuid"] != "" {
		c.UUID = l.id16(l.named["uuid"])
	}
	if l.named["key"] == "none" {
		c.Key.Fields = nil
	}
	return c
}

// existing is a collection of the state, or one that it does not have.
func (l *args) existing(ns string) manifest.Collection {
	c := l.collection(ns)
	if old := l.s.CollectionByName(c.Database, c.Name); old != nil {
		uuid := c.UUID
		c = *old
		if l.named["uuid"] != "" {
			c.UUID = uuid
		}
	} else {
		c.ID = 99
	}
	return c
}
