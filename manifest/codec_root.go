package manifest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest/errkind"
)

// Tags of the sections in the body of a root, in which order they stand. A section without
// entries is left out.
const (
	tagCore uint64 = iota + 1
	tagRecent
	tagShards
	tagRetired
	tagCollections
	tagRecords
	tagJobs
	tagDropped
	tagTokens
	tagPins
	tagHistory
	tagPages
)

// section is a part of the body that this release does not know; it is written back as it
// came.
type section struct {
	tag     uint64
	payload []byte
}

// rootExtra are the fields of a root between header and body: minReader and minWriter.
const rootExtra = 4

// EncodeRoot is the root object of s: the same state gives the same bytes. Errors: Invalid
// when the state is larger than a root may be.
func EncodeRoot(s *State) ([]byte, error) {
	if err := checkTold(s); err != nil {
		return nil, fmt.Errorf("encode root: %w", err)
	}
	extra := binary.LittleEndian.AppendUint16(nil, s.format.MinReader)
	extra = binary.LittleEndian.AppendUint16(extra, s.format.MinWriter)
	return pack(rootMagic, extra, encodeBody(s))
}

// checkTold makes sure that no page with keys of another location rides in the root.
func checkTold(s *State) error {
	if !s.Spread() {
		return nil
	}
	for _, p := range s.inlinePages() {
		if at := s.LocationOf(p.page.chunks[0].Shard); at != 0 {
			return invalid("check page", p.page.id, "it lists chunks in location %d, and belongs there", at)
		}
	}
	return nil
}

func encodeBody(s *State) []byte {
	w := &writer{b: make([]byte, 0, 64<<10)}
	for tag := tagCore; tag <= tagPages; tag++ {
		w.section(tag, encodeSection(s, tag))
	}
	for _, u := range s.unknown {
		w.section(u.tag, u.payload)
	}
	return w.b
}

func (w *writer) section(tag uint64, payload []byte) {
	if len(payload) > 0 {
		w.uint(tag)
		w.bytes(payload)
	}
}

// encodeSection is the payload of one section of s; empty when there is nothing to say.
func encodeSection(s *State, tag uint64) []byte {
	w := &writer{}
	switch tag {
	case tagCore:
		w.core(s)
	case tagRecent:
		putList(w, s.recent, (*writer).recent)
	case tagShards:
		putList(w, s.shards, (*writer).shard)
	case tagRetired:
		putList(w, s.retired, (*writer).retired)
	case tagCollections:
		putList(w, s.collections, (*writer).collection)
	case tagRecords:
		putList(w, s.records, (*writer).record)
	case tagJobs:
		putList(w, s.jobs, (*writer).job)
	case tagDropped:
		putList(w, s.dropped, (*writer).dropped)
	case tagTokens:
		putList(w, s.tokens, (*writer).token)
	case tagPins:
		putList(w, s.pins, (*writer).pin)
	case tagHistory:
		putList(w, s.history, (*writer).history)
	case tagPages:
		putList(w, s.tables, (*writer).table)
	}
	return w.b
}

func putList[T any](w *writer, list []T, entry func(*writer, T)) {
	if len(list) == 0 {
		return
	}
	w.uint(uint64(len(list)))
	for _, v := range list {
		entry(w, v)
	}
}

// Image is a decoded root whose pages are not all there yet.
type Image struct {
	s      *State // without tables
	tables []imageTable
}

type imageTable struct {
	collection CollectionID
	pages      []imagePage
}

// imagePage is a page in the root, or a reference to one.
type imagePage struct {
	id     pageID
	inline []byte
	ref    PageRef
	stored bool
}

// DecodeRoot reads a root object, or a copy of one (a pin, a history entry). Errors: Corrupt
// when the bytes are damaged, Invalid when they are of a newer format.
func DecodeRoot(object []byte) (*Image, error) {
	extra, body, err := unpack(rootMagic, rootExtra, object)
	if err != nil {
		return nil, err
	}
	s := &State{format: Format{
		MinReader: binary.LittleEndian.Uint16(extra), MinWriter: binary.LittleEndian.Uint16(extra[2:]),
	}}
	if s.format.MinReader > FormatVersion {
		return nil, fmt.Errorf("decode root: %w: it asks for format %s, this release reads up to %s: install a newer granary",
			errkind.Invalid, s.format, formatName(FormatVersion))
	}
	m := &Image{s: s}
	if err := m.decodeBody(body); err != nil {
		return nil, fmt.Errorf("decode root: %w", err)
	}
	s.byID = indexByID(s.collections)
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("decode root version %d: %w: %v", s.version, errkind.Corrupt, err)
	}
	return m, nil
}

func (m *Image) decodeBody(body []byte) error {
	r := &reader{b: body}
	last := uint64(0)
	for r.err == nil && len(r.b) > 0 {
		tag := r.uint()
		payload := r.bytes()
		if r.err != nil {
			break
		}
		if tag <= last || len(payload) == 0 || last == 0 && tag != tagCore {
			r.fail("section %d after section %d, with %d bytes", tag, last, len(payload))
			break
		}
		last = tag
		if tag > tagPages {
			m.s.unknown = append(m.s.unknown, section{tag, payload})
		} else if err := m.decodeSection(tag, payload); err != nil {
			return fmt.Errorf("section %d: %w", tag, err)
		}
	}
	if r.err == nil && last == 0 {
		r.fail("empty body")
	}
	return r.err
}

func (m *Image) decodeSection(tag uint64, payload []byte) error {
	r, s := &reader{b: payload}, m.s
	switch tag {
	case tagCore:
		r.core(s)
	case tagRecent:
		s.recent = list(r, r.count(17), (*reader).recent)
	case tagShards:
		s.shards = list(r, r.count(12), (*reader).shard)
	case tagRetired:
		s.retired = list(r, r.count(4), (*reader).retired)
	case tagCollections:
		s.collections = list(r, r.count(26), (*reader).collection)
	case tagRecords:
		s.records = list(r, r.count(3), (*reader).record)
	case tagJobs:
		s.jobs = list(r, r.count(20), (*reader).job)
	case tagDropped:
		s.dropped = list(r, r.count(22), (*reader).dropped)
	case tagTokens:
		s.tokens = list(r, r.count(6), (*reader).token)
	case tagPins:
		s.pins = list(r, r.count(19), (*reader).pin)
	case tagHistory:
		s.history = list(r, r.count(5), (*reader).history)
	case tagPages:
		m.tables = list(r, r.count(2), (*reader).table)
	}
	return r.end()
}

// check looks at what lookups and the assembly of pages rest on.
func (m *Image) check() error {
	if err := checkOrder(m.s); err != nil {
		return err
	}
	if len(m.tables) != len(m.s.byID) {
		return invalid("check", "pages", "chunk lists of %d collections, expected %d", len(m.tables), len(m.s.byID))
	}
	for i, t := range m.tables {
		if t.collection != m.s.byID[i].ID || len(t.pages) == 0 {
			return invalid("check", "pages", "chunk list of collection %d with %d pages, expected collection %d", t.collection, len(t.pages), m.s.byID[i].ID)
		}
	}
	return checkBounded(m.s)
}

// Version is the version of the root.
func (m *Image) Version() Version { return m.s.version }

// CopiedMillis is that of the root. A copy has its own time: it tells of itself.
func (m *Image) CopiedMillis() int64 { return m.s.copiedMillis }

// Missing are the pages that must be fetched to make a State, when the pages of have (which
// may be nil) are at hand.
func (m *Image) Missing(have *State) []PageRef {
	known := m.known(have)
	var refs []PageRef
	for _, t := range m.tables {
		for _, p := range t.pages {
			if p.stored && known[p.id] == nil {
				refs = append(refs, p.ref)
			}
		}
	}
	return refs
}

// known are the pages of an earlier or later state of the same cluster, by id.
func (m *Image) known(have *State) map[pageID]*page {
	known := map[pageID]*page{}
	if have == nil || have.cluster != m.s.cluster {
		return known
	}
	for _, t := range have.tables {
		for _, p := range t.pages {
			known[p.id] = p
		}
	}
	return known
}

// State puts the pages in: those of have where they are the same, and the fetched ones, in
// the order of Missing(have). Errors: Corrupt.
func (m *Image) State(have *State, fetched [][]*Chunk) (*State, error) {
	s := *m.s
	known := m.known(have)
	for _, t := range m.tables {
		n := &table{collection: t.collection, pages: make([]*page, 0, len(t.pages))}
		for i := range t.pages {
			p := &t.pages[i]
			var err error
			var q *page
			if old := known[p.id]; old != nil {
				q = p.moved(old)
			} else if !p.stored {
				q, err = p.decode(t.collection)
			} else if len(fetched) > 0 {
				q, fetched = p.page(fetched[0]), fetched[1:]
			} else {
				err = fmt.Errorf("page %s: %w: it was not fetched", p.ref.Key(), errkind.Corrupt)
			}
			if err != nil {
				return nil, fmt.Errorf("decode root version %d: %w", s.version, err)
			}
			n.pages = append(n.pages, q)
			n.count += len(q.chunks)
		}
		s.tables = append(s.tables, n)
	}
	base := have
	if len(known) == 0 {
		base = &State{}
	}
	err := checkTouched(base, &s)
	if err == nil {
		err = checkTold(&s)
	}
	if err != nil {
		return nil, fmt.Errorf("decode root version %d: %w: %v", s.version, errkind.Corrupt, err)
	}
	return &s, nil
}

// moved is a page that is at hand, at the place where this root has it.
func (p *imagePage) moved(old *page) *page {
	if p.stored == (old.stored != nil) {
		return old
	}
	return p.page(old.chunks)
}

// decode reads a page that rides in the root. Pages outlive the root that they came in, so
// they must not keep all of it in memory: their chunks alias a copy.
func (p *imagePage) decode(c CollectionID) (*page, error) {
	chunks, err := DecodeChunks(c, slices.Clone(p.inline))
	if err != nil {
		return nil, fmt.Errorf("page %v: %w", p.id, err)
	}
	return p.page(chunks), nil
}

func (p *imagePage) page(chunks []*Chunk) *page {
	q := &page{id: p.id, chunks: chunks}
	if p.stored {
		q.stored = &pageObject{base: p.ref.Base, nonce: p.ref.Nonce, location: p.ref.Location}
	}
	q.measure()
	return q
}
