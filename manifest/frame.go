package manifest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/klauspost/compress/zstd"
)

// A frame is what the root and a page have in common as objects:
//
//	 0  8  magic
//	 8  1  major of the frame's format    9  1  minor
//	10  2  flags: 1 the body is zstd
//	12  4  bytes of the body as stored
//	16  4  bytes of the body unpacked
//	20  4  crc32c of bytes 0..19, the extra fields, and the body as stored
//	24  n  extra fields, by magic
//	    .  body
//
// These 24 bytes and the checksum stay as they are in every major format.
const (
	frameHeader = 24
	flagZstd    = 1
	rootMagic   = "GRANROOT"
	pageMagic   = "GRANPAGE"

	// storedMax and unpackedMax bound a body, before anything is allocated for it.
	storedMax   = 64 << 20
	unpackedMax = 256 << 20
	// ratioMax bounds what a small object can unpack to. A body that packs better than
	// that is stored as it is.
	ratioMax = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The zstd coders are made here, when the program starts, and used once, because they make
// channels on first use: a channel that is made inside a testing/synctest bubble must not
// be used outside of it.
var (
	packer   = newPacker()
	unpacker = newUnpacker()
)

func newPacker() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are constants
	}
	e.EncodeAll([]byte("warm"), nil)
	return e
}

func newUnpacker() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(unpackedMax),
		zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err)
	}
	return d
}

// pack makes an object. The same input gives the same bytes.
func pack(magic string, extra, body []byte) ([]byte, error) {
	if len(body) > unpackedMax {
		return nil, fmt.Errorf("encode %s: %w: %d bytes, at most %d", magic, errkind.Invalid, len(body), unpackedMax)
	}
	head := make([]byte, frameHeader, frameHeader+len(extra)+len(body)/2)
	copy(head, magic)
	head[8], head[9] = byte(formatFirst>>8), byte(formatFirst&0xFF) // of the frame, which has not changed since
	out := append(head, extra...)
	start := len(out)
	out = packer.EncodeAll(body, out)
	flags := uint16(flagZstd)
	if packed := len(out) - start; packed >= len(body) || len(body) > ratioMax*packed {
		out, flags = append(out[:start], body...), 0
	}
	stored := len(out) - start
	if stored > storedMax {
		return nil, fmt.Errorf("encode %s: %w: %d bytes stored, at most %d", magic, errkind.Invalid, stored, storedMax)
	}
	binary.LittleEndian.PutUint16(out[10:], flags)
	binary.LittleEndian.PutUint32(out[12:], uint32(stored))
	binary.LittleEndian.PutUint32(out[16:], uint32(len(body)))
	binary.LittleEndian.PutUint32(out[20:], frameCRC(out))
	return out, nil
}

// frameCRC is the checksum of a whole object: everything but the checksum itself.
func frameCRC(object []byte) uint32 {
	return crc32.Update(crc32.Checksum(object[:20], castagnoli), castagnoli, object[frameHeader:])
}

// unpack checks an object and returns its extra fields and its body. Errors: Corrupt for
// damaged bytes, Invalid for a format that this release does not know.
func unpack(magic string, extra int, object []byte) (fields, body []byte, err error) {
	bad := func(format string, args ...any) ([]byte, []byte, error) {
		return nil, nil, fmt.Errorf("decode %s: %w: "+format, append([]any{magic, errkind.Corrupt}, args...)...)
	}
	if len(object) < frameHeader+extra {
		return bad("%d bytes, shorter than its header", len(object))
	}
	if !bytes.Equal(object[:8], []byte(magic)) {
		return bad("it begins with %q", object[:8])
	}
	if now, said := frameCRC(object), binary.LittleEndian.Uint32(object[20:]); now != said {
		return bad("checksum is %08x, header says %08x", now, said)
	}
	flags, stored := binary.LittleEndian.Uint16(object[10:]), object[frameHeader+extra:]
	if object[8] != byte(formatFirst>>8) || flags&^flagZstd != 0 {
		return nil, nil, fmt.Errorf("decode %s: %w: it has format %d.%d with flags %#x, this release reads %s: install a newer granary",
			magic, errkind.Invalid, object[8], object[9], flags, formatName(FormatVersion))
	}
	size := binary.LittleEndian.Uint32(object[16:])
	if n := binary.LittleEndian.Uint32(object[12:]); int(n) != len(stored) || n > storedMax || size > unpackedMax {
		return bad("body has %d bytes, header says %d that unpack to %d", len(stored), n, size)
	}
	body = stored
	if flags&flagZstd != 0 {
		body, err = inflate(stored, int(size))
	} else if int(size) != len(stored) {
		err = fmt.Errorf("body has %d bytes, header says %d", len(stored), size)
	}
	if err != nil {
		return bad("%v", err)
	}
	return object[frameHeader : frameHeader+extra], body, nil
}

// inflate unpacks zstd to exactly size bytes, and allocates no more.
func inflate(stored []byte, size int) (body []byte, err error) {
	defer func() {
		// The decoder has panicked on crafted input before; damaged bytes are an error.
		if p := recover(); p != nil {
			err = fmt.Errorf("zstd: %v", p)
		}
	}()
	if size > ratioMax*len(stored) {
		return nil, fmt.Errorf("%d bytes unpack to %d, more than %d times", len(stored), size, ratioMax)
	}
	body, err = unpacker.DecodeAll(stored, make([]byte, 0, size))
	if err == nil && len(body) != size {
		err = fmt.Errorf("unpacked %d bytes, header says %d", len(body), size)
	}
	return body, err
}
