package segment

import (
	"encoding/binary"
	"hash/crc32"
)

// A frame is the unit of compression and of checksums: 16 bytes of header, and a payload.
//
//	u8 type | u8 codec | u16 flags | u32 clen | u32 ulen | u32 crc32c
//
// The checksum covers the segment's name, the frame's offset in the object, the first 12
// bytes and the payload. Name and offset are not stored: a frame of another object, or of
// another place in this one, does not pass.
type frame struct {
	kind  byte
	codec Codec
	clen  int
	ulen  int
	crc   uint32
}

// size is the number of bytes of the frame in the object.
func (f frame) size() int { return frameHead + f.clen }

func frameCRC(n name, off uint64, head12, payload []byte) uint32 {
	var seed [24]byte
	copy(seed[:], n[:])
	binary.LittleEndian.PutUint64(seed[16:], off)
	crc := crc32.Checksum(seed[:], castagnoli)
	crc = crc32.Update(crc, castagnoli, head12)
	return crc32.Update(crc, castagnoli, payload)
}

// appendFrame appends a frame to an object that dst holds from its first byte.
func appendFrame(dst []byte, n name, kind byte, c Codec, payload []byte) ([]byte, section) {
	start := len(dst)
	dst = append(dst, make([]byte, frameHead)...)
	dst, c = Compress(dst, c, payload)
	h := dst[start:]
	h[0], h[1] = kind, byte(c)
	binary.LittleEndian.PutUint32(h[4:], uint32(len(h)-frameHead))
	binary.LittleEndian.PutUint32(h[8:], uint32(len(payload)))
	crc := frameCRC(n, uint64(start), h[:12], h[frameHead:])
	binary.LittleEndian.PutUint32(h[12:], crc)
	return dst, section{off: uint64(start), len: uint32(len(h)), crc: crc}
}

// parseFrame reads the header of the frame at the start of b, which begins at offset off of
// the object, and verifies its checksum; limit bounds ulen. Errors: Corrupt.
func parseFrame(b []byte, n name, off uint64, limit int) (frame, error) {
	if len(b) < frameHead {
		return frame{}, corruptf("frame at %d: cut short", off)
	}
	f := frame{kind: b[0], codec: Codec(b[1]), crc: binary.LittleEndian.Uint32(b[12:])}
	clen, ulen := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	if uint64(clen) > uint64(len(b)-frameHead) {
		return frame{}, corruptf("frame at %d: %d bytes, of which %d are there", off, clen, len(b)-frameHead)
	}
	f.clen, f.ulen = int(clen), int(ulen)
	if frameCRC(n, off, b[:12], b[frameHead:f.size()]) != f.crc {
		return frame{}, corruptf("frame at %d: checksum", off)
	}
	if uint64(ulen) > uint64(limit) {
		return frame{}, corruptf("frame at %d: claims %d bytes, above the limit of %d", off, ulen, limit)
	}
	return f, nil
}

// openFrame is parseFrame, the check that it is of the wanted type, and the payload
// decompressed. The payload of a raw frame aliases b. Errors: Corrupt; Invalid for a codec
// that this program does not know.
func openFrame(b []byte, n name, off uint64, limit int, kind byte) ([]byte, frame, error) {
	f, err := parseFrame(b, n, off, limit)
	if err != nil {
		return nil, f, err
	}
	if f.kind != kind {
		return nil, f, invalidf("frame at %d: type %d where this program can read only type %d", off, f.kind, kind)
	}
	payload, err := Decompress(f.codec, b[frameHead:f.size()], f.ulen)
	return payload, f, err
}
