package segment

import (
	"bytes"

	"github.com/granarydb/granary/manifest"
)

// tail is everything that an Open reads, decoded and checked. Immutable; shared through
// the Cache.
type tail struct {
	offset uint64 // where it begins in the object
	meta   *meta
	filter filter
	blocks *index
	// retries indexes the retry frames; nil when there are none. Those that lie in the tail
	// are kept in retryBytes; it is nil when they lie before it.
	retries    *index
	retryBytes []byte
}

func (t *tail) sizeBytes() int64 {
	n := int64(len(t.filter)+len(t.retryBytes)) + t.blocks.sizeBytes() + 512
	if t.retries != nil {
		n += t.retries.sizeBytes()
	}
	return n
}

// parseTail decodes the last bytes of the object that ref names. Every byte of them is
// covered by a checksum that is verified here, whether a section uses it or not. What is
// kept is copied, so b can go. Errors: Corrupt; Invalid for a newer format.
func parseTail(b []byte, ref *manifest.SegmentRef) (*tail, error) {
	if len(b) < footerSize || uint64(len(b)) != uint64(ref.TailLength) {
		return nil, corruptf("tail of %d bytes, the reference says %d", len(b), ref.TailLength)
	}
	f, err := parseFooter(b[len(b)-footerSize:])
	if err != nil {
		return nil, err
	}
	s := sections{b: b[:len(b)-footerSize], base: ref.TailOffset}
	if err := s.walk(ref.Segment.Random); err != nil {
		return nil, err
	}
	t := &tail{offset: ref.TailOffset}
	if t.meta, err = s.meta(f.meta, ref.Segment.Random); err != nil {
		return nil, err
	}
	if t.blocks, t.filter, err = s.rows(&f, t.meta); err != nil {
		return nil, err
	}
	t.retries, t.retryBytes, err = s.retries(t.meta)
	return t, err
}

// sections are the frames of a tail: never compressed, except retry frames.
type sections struct {
	b      []byte // the tail without its footer
	base   uint64 // offset of b in the object
	frames []placed
}

// placed is a frame at a known offset of the object.
type placed struct {
	frame
	off uint64
}

// walk verifies the checksums of all frames. Frames of unknown types are passed over.
func (s *sections) walk(n name) error {
	for at := 0; at < len(s.b); {
		f, err := parseFrame(s.b[at:], n, s.base+uint64(at), maxTailBytes)
		if err != nil {
			return err
		}
		s.frames = append(s.frames, placed{f, s.base + uint64(at)})
		at += f.size()
	}
	return nil
}

// payload is the payload of a section. Errors: Corrupt when no frame of the kind is
// exactly there.
func (s *sections) payload(want section, kind byte) ([]byte, error) {
	for _, f := range s.frames {
		if f.off != want.off {
			continue
		}
		if f.kind != kind || f.size() != int(want.len) || f.crc != want.crc {
			break
		}
		if f.codec != Raw || f.ulen != f.clen {
			return nil, invalidf("section of type %d is compressed (codec %d), which this program cannot read", kind, f.codec)
		}
		at := f.off - s.base + frameHead
		return s.b[at : at+uint64(f.clen)], nil
	}
	return nil, corruptf("no section of type %d at %d", kind, want.off)
}

func (s *sections) meta(at section, n name) (*meta, error) {
	p, err := s.payload(at, typeMeta)
	if err != nil {
		return nil, err
	}
	m, err := parseMeta(p)
	if err != nil {
		return nil, err
	}
	m.header = bytes.Clone(m.header)
	return m, checkHeader(m.header, n)
}

// rows decodes what finds rows: both sections are there unless the segment has none.
func (s *sections) rows(f *footer, m *meta) (*index, filter, error) {
	if m.rows == 0 {
		return &index{offs: []uint64{headerSize}}, nil, nil
	}
	p, err := s.payload(f.index, typeIndex)
	if err != nil {
		return nil, nil, err
	}
	x, err := parseIndex(p, headerSize, s.base)
	if err != nil {
		return nil, nil, err
	}
	if p, err = s.payload(f.filter, typeFilter); err != nil {
		return nil, nil, err
	}
	filter, err := parseFilter(bytes.Clone(p))
	return x, filter, err
}

// retries decodes the index of retry frames, and keeps those that lie in the tail.
func (s *sections) retries(m *meta) (*index, []byte, error) {
	if m.retryEntries == 0 {
		return nil, nil, nil
	}
	end := s.base + uint64(len(s.b))
	off, length := uint64(m.retryOff), uint64(m.retryLen)
	if off < headerSize || off > end || length > end-off {
		return nil, nil, corruptf("retry frames at %d of %d bytes are outside the object", off, length)
	}
	p, err := s.retryIndex(m)
	if err != nil {
		return nil, nil, err
	}
	x, err := parseIndex(p, off, off+length)
	if err != nil {
		return nil, nil, err
	}
	if x.frames() == 0 || x.offs[x.frames()] != off+length {
		return nil, nil, corruptf("retry frames at %d of %d bytes, their index says otherwise", off, length)
	}
	if off < s.base {
		return x, nil, nil
	}
	return x, bytes.Clone(s.b[off-s.base:][:length]), nil
}

func (s *sections) retryIndex(m *meta) ([]byte, error) {
	for _, f := range s.frames {
		if f.off == uint64(m.retryIndexOff) {
			return s.payload(section{off: f.off, len: uint32(m.retryIndexLen), crc: f.crc}, typeRetryIndex)
		}
	}
	return nil, corruptf("no retry index at %d", m.retryIndexOff)
}
