package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/granarydb/granary/manifest/errkind"
)

const (
	headerSize = 32
	footerSize = 80
	frameHead  = 16

	headerMagic = "GRNSEG\r\n" // the line end is damaged by text-mode copies, visibly
	footerMagic = "GRNTAIL\n"

	major = 1 // a reader refuses another major version
	minor = 0 // a reader ignores what a higher minor version added

	footerVersion = 1
)

// Limits of the format. A writer refuses to pass them, and a reader refuses to allocate
// beyond them, whatever the bytes say.
const (
	// MaxKeyBytes bounds a row key.
	MaxKeyBytes = 1 << 20
	// MaxDocBytes bounds a document, and a reply in a RetryEntry: 16 MiB for the client's
	// document and 16 KiB for what a server may add, as in MongoDB.
	MaxDocBytes = 16<<20 + 16<<10
	// MaxRows bounds the rows of one segment, so that its tail stays within one request.
	MaxRows = 1 << 25

	maxBlockBytes = MaxDocBytes + MaxKeyBytes + 4096 // one row at its limits, or one retry entry
	maxTailBytes  = 128 << 20                        // filter, index, meta, footer
)

// The frame types. A type that a reader does not know is skipped, except where a reader
// needs the frame's contents: a row block, or retry entries.
const (
	typeRows       = 1
	typeShred      = 2 // reserved: each document shape once, one value stream per path
	typeStrip      = 3 // reserved: a column
	typeFilter     = 4
	typeIndex      = 5
	typeMeta       = 6
	typeRetry      = 7
	typeSecondary  = 8 // reserved: secondary index entries
	typeRetryIndex = 9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// name is the random part of a segment's id: it is in the header and in every checksum.
type name = [16]byte

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errkind.Corrupt}, args...)...)
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errkind.Invalid}, args...)...)
}

// appendHeader appends the 32 bytes that begin an object. The meta section holds a copy:
// that is how an Open, which reads the tail only, sees them, and how damage to them is found.
func appendHeader(dst []byte, n name) []byte {
	dst = append(dst, headerMagic...)
	dst = append(dst, major, minor, 0, 0)
	dst = append(dst, n[:]...)
	return append(dst, 0, 0, 0, 0) // encryption key id: 0, not encrypted
}

// checkHeader checks a header, or its copy, whose bytes a checksum or a comparison has
// already vouched for. Errors: Corrupt for another segment's header, Invalid for a format
// that this program is too old to read.
func checkHeader(h []byte, n name) error {
	if len(h) != headerSize || string(h[:8]) != headerMagic {
		return corruptf("no segment header")
	}
	if [16]byte(h[12:28]) != n {
		return corruptf("object is the segment named %x", h[12:28])
	}
	if h[8] != major {
		return invalidf("format version %d.%d is not readable by this program, which reads %d.x", h[8], h[9], major)
	}
	if key := binary.LittleEndian.Uint32(h[28:]); key != 0 {
		return invalidf("encrypted with key %d, which this program cannot read", key)
	}
	return nil
}

// section locates one frame of the tail, header included; the zero section is none.
type section struct {
	off uint64
	len uint32
	crc uint32 // the frame's own
}

// footer is the last 80 bytes: where the sections are.
type footer struct {
	index, filter, strips, meta section
}

func (f *footer) append(dst []byte) []byte {
	start := len(dst)
	for _, s := range []section{f.index, f.filter, f.strips, f.meta} {
		dst = binary.LittleEndian.AppendUint64(dst, s.off)
		dst = binary.LittleEndian.AppendUint32(dst, s.len)
		dst = binary.LittleEndian.AppendUint32(dst, s.crc)
	}
	dst = binary.LittleEndian.AppendUint32(dst, footerVersion)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
	return append(dst, footerMagic...)
}

// parseFooter checks the last 80 bytes of an object. Errors: Corrupt, Invalid.
func parseFooter(b []byte) (footer, error) {
	if len(b) != footerSize || string(b[72:]) != footerMagic {
		return footer{}, corruptf("no segment footer where the reference says it ends")
	}
	if crc32.Checksum(b[:68], castagnoli) != binary.LittleEndian.Uint32(b[68:]) {
		return footer{}, corruptf("footer checksum")
	}
	if v := binary.LittleEndian.Uint32(b[64:]); v != footerVersion {
		return footer{}, invalidf("footer version %d is not readable by this program, which reads %d", v, footerVersion)
	}
	var s [4]section
	for i := range s {
		s[i].off = binary.LittleEndian.Uint64(b[i*16:])
		s[i].len = binary.LittleEndian.Uint32(b[i*16+8:])
		s[i].crc = binary.LittleEndian.Uint32(b[i*16+12:])
	}
	return footer{index: s[0], filter: s[1], strips: s[2], meta: s[3]}, nil
}
