package diskcache

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// A file is a range of one object. Integers are little-endian.
//
//	 0  8  "GRNDISK\n"
//	 8  4  size of the header: these 64 bytes, names, checksums
//	12  4  crc32c of the header from here on
//	16  8  offset of the range in the object
//	24  8  length of the range
//	32  8  size of the object
//	40  8  the store's time of the object, ms
//	48  4  size of a piece, 32 KiB
//	52  2  size of the store's URL
//	54  2  size of the object's key
//	56  2  size of the object's tag
//	58  6  0
//	64     URL | key | tag | crc32c of each piece of the range
//	       the range
//
// The checksums of the pieces are under that of the header, so that a piece in another's
// place is found, and a part of the range is verified without reading all of it.
const (
	fileMagic = "GRNDISK\n"
	fileHead  = 64
	pieceSize = 32 << 10
	// tagBytesMax bounds tags, so that a header has a bound before it is read.
	tagBytesMax = 255
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// names says which object a file is about.
type names struct{ store, key string }

func pieces(length int64) int64 { return (length + pieceSize - 1) / pieceSize }

// headerMax is the most that the header of a range of so many bytes takes.
func (n names) headerMax(length int64) int64 {
	return fileHead + int64(len(n.store)+len(n.key)) + tagBytesMax + 4*pieces(length)
}

// encodeHeader is the header of a file that holds obj.Body at offset off of the object.
func (n names) encodeHeader(off int64, obj *bucket.Object) []byte {
	length := int64(len(obj.Body))
	h := make([]byte, fileHead, n.headerMax(length))
	copy(h, fileMagic)
	for i, v := range []int64{off, length, obj.Size, obj.ModifiedMillis} {
		binary.LittleEndian.PutUint64(h[16+8*i:], uint64(v))
	}
	binary.LittleEndian.PutUint32(h[48:], pieceSize)
	for i, s := range []string{n.store, n.key, string(obj.Tag)} {
		binary.LittleEndian.PutUint16(h[52+2*i:], uint16(len(s)))
		h = append(h, s...)
	}
	for at := int64(0); at < length; at += pieceSize {
		piece := obj.Body[at:min(at+pieceSize, length)]
		h = binary.LittleEndian.AppendUint32(h, crc32.Checksum(piece, castagnoli))
	}
	binary.LittleEndian.PutUint32(h[8:], uint32(len(h)))
	binary.LittleEndian.PutUint32(h[12:], crc32.Checksum(h[16:], castagnoli))
	return h
}

// header is what a file says about itself.
type header struct {
	attrs bucket.Attrs
	data  int64  // where the range begins in the file
	crcs  []byte // of the pieces
}

// parseHeader verifies the header at the beginning of b, which must be about this object and
// the range of e. Errors: Corrupt.
func (n names) parseHeader(b []byte, e *extent) (h header, err error) {
	bad := func(what string) (header, error) {
		return header{}, fmt.Errorf("cache file of %s at %d: %w: %s", n.key, e.off, errkind.Corrupt, what)
	}
	if len(b) < fileHead || string(b[:8]) != fileMagic {
		return bad("no header")
	}
	size := int64(binary.LittleEndian.Uint32(b[8:]))
	var part [3]int64 // sizes of URL, key, tag
	names := int64(0)
	for i := range part {
		part[i] = int64(binary.LittleEndian.Uint16(b[52+2*i:]))
		names += part[i]
	}
	if size != fileHead+names+4*pieces(e.length) || size > int64(len(b)) {
		return bad("size of the header")
	}
	if crc32.Checksum(b[16:size], castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return bad("checksum of the header")
	}
	num := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	text := b[fileHead : fileHead+names]
	if string(text[:part[0]]) != n.store || string(text[part[0]:part[0]+part[1]]) != n.key ||
		num(16) != e.off || num(24) != e.length || binary.LittleEndian.Uint32(b[48:]) != pieceSize {
		return bad("it is about something else")
	}
	h.attrs = bucket.Attrs{Key: n.key, Size: num(32), Tag: bucket.Tag(text[part[0]+part[1]:]), ModifiedMillis: num(40)}
	if e.off+e.length > h.attrs.Size || e.whole != (e.off == 0 && e.length == h.attrs.Size) {
		return bad("its range is not one of the object")
	}
	h.data, h.crcs = size, b[fileHead+names:size]
	return h, nil
}

// readSmall is up to which size a file is read with one call.
const readSmall = 128 << 10

// readRange reads [from, to) of the object out of the file of e, and verifies what it reads.
// Errors: Corrupt, and those of reading.
func (n names) readRange(f io.ReaderAt, e *extent, from, to int64) ([]byte, bucket.Attrs, error) {
	first := n.headerMax(e.length)
	if first+e.length <= readSmall {
		first += e.length
	}
	b := make([]byte, first)
	got, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, bucket.Attrs{}, err
	}
	b = b[:got]
	h, err := n.parseHeader(b, e)
	if err != nil {
		return nil, bucket.Attrs{}, err
	}
	low := (from - e.off) / pieceSize * pieceSize
	high := min((to-e.off+pieceSize-1)/pieceSize*pieceSize, e.length)
	var data []byte
	if h.data+high <= int64(len(b)) {
		data = b[h.data+low : h.data+high]
	} else {
		data = make([]byte, high-low)
		switch got, err := f.ReadAt(data, h.data+low); {
		case int64(got) == high-low:
		case err == io.EOF:
			return nil, bucket.Attrs{}, fmt.Errorf("cache file of %s at %d: %w: cut short", n.key, e.off, errkind.Corrupt)
		default:
			return nil, bucket.Attrs{}, err
		}
	}
	for at := low; at < high; at += pieceSize {
		piece := data[at-low : min(at+pieceSize, high)-low]
		if crc32.Checksum(piece, castagnoli) != binary.LittleEndian.Uint32(h.crcs[at/pieceSize*4:]) {
			return nil, bucket.Attrs{}, fmt.Errorf("cache file of %s at %d: %w: checksum of the piece at %d", n.key, e.off, errkind.Corrupt, at)
		}
	}
	from, to = from-e.off-low, to-e.off-low
	return data[from:to:to], h.attrs, nil
}
