package manifest

import (
	"encoding/binary"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Mention is a key that an object of the manifest names, and as what.
type Mention struct {
	Collection CollectionID
	Key        []byte
	What       string
}

// Mentions are the keys that an object names: a root or a copy of one (a pin, a history entry),
// or a page, whatever refers to it. Errors: Corrupt, Invalid for a newer format.
func Mentions(object []byte) ([]Mention, error) {
	if len(object) > len(pageMagic) && string(object[:len(pageMagic)]) == pageMagic {
		return pageMentions(object)
	}
	m, err := DecodeRoot(object)
	if err != nil {
		return nil, err
	}
	list, err := m.mentions()
	if err != nil {
		return nil, err
	}
	for _, h := range m.s.RangeHolds() {
		list = append(list, Mention{h.Collection, h.Range.Min, "bound of a held range"}, Mention{h.Collection, h.Range.Max, "bound of a held range"})
	}
	for _, h := range m.s.history {
		list = append(list, m.s.told(h)...)
	}
	return list, nil
}

// mentions are those of the pages in the root, and of the names of the others.
func (m *Image) mentions() (list []Mention, err error) {
	for _, t := range m.tables {
		for i := range t.pages {
			p := &t.pages[i]
			if p.stored {
				list = append(list, Mention{t.collection, p.ref.FirstKey, "first key of a page"})
				continue
			}
			chunks, err := DecodeChunks(t.collection, p.inline)
			if err != nil {
				return nil, fmt.Errorf("page %v: %w", p.id, err)
			}
			list = append(list, chunkMentions(chunks)...)
		}
	}
	return list, nil
}

func pageMentions(object []byte) ([]Mention, error) {
	extra, body, err := unpack(pageMagic, pageExtra, object)
	if err != nil {
		return nil, err
	}
	chunks, err := DecodeChunks(CollectionID(binary.LittleEndian.Uint32(extra[16:])), body)
	if err != nil {
		return nil, fmt.Errorf("page: %w: %w", errkind.Corrupt, err)
	}
	return chunkMentions(chunks), nil
}

func chunkMentions(chunks []*Chunk) (list []Mention) {
	for _, c := range chunks {
		add := func(what string, keys ...[]byte) {
			for _, k := range keys {
				list = append(list, Mention{c.Collection, k, what})
			}
		}
		add("bound of a chunk", c.Range.Min, c.Range.Max)
		for i := range c.Refs {
			r := &c.Refs[i]
			add("key of a reference", r.MinKey, r.MaxKey)
			add("clip of a reference", r.Clip.Min, r.Clip.Max)
		}
	}
	return list
}

// told are the keys of the bounds that an entry of the history shows.
func (s *State) told(h HistoryEntry) (list []Mention) {
	var c *Collection
	for _, x := range s.collections {
		if x.Namespace() == h.NS {
			c = x
		}
	}
	if c == nil || len(h.Detail) == 0 {
		return nil
	}
	for _, path := range [][]string{{"min"}, {"max"}, {"at"}, {"before", "min"}, {"before", "max"}} {
		v, err := h.Detail.LookupErr(path...)
		if err != nil || v.Type != bson.TypeEmbeddedDocument {
			continue
		}
		if key, _, err := c.Key.Bound(v.Document()); err == nil {
			list = append(list, Mention{c.ID, key, "bound in the history: " + h.What})
		}
	}
	return list
}
