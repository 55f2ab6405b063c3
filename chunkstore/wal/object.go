package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

const (
	headerSize = 128
	magic      = "GRNWAL\r\n"
	major      = 1 // a reader refuses another major version
	minor      = 0
	shardBytes = 32 // a shard's name, padded with zeros

	// SealBytes is the size of a seal. One with records is larger.
	SealBytes = headerSize

	// MaxPayload bounds the records of one object before compression, in bytes. It leaves
	// room for one record at its limits: a document, its key, and a reply with a document.
	MaxPayload = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kind tells a batch of records from a seal.
type Kind uint8

// The kinds, as stored.
const (
	KindData Kind = 1
	KindSeal Kind = 2
)

// Header is what an object says about itself. Cluster, shard, epoch and index repeat its
// key, under the checksum: an object that was swapped or renamed is found out.
type Header struct {
	Kind    Kind
	Cluster manifest.ClusterID
	Shard   manifest.ShardID
	Epoch   manifest.Epoch
	Index   uint64
	// Nonce is fresh for every object, so that a writer recognises its own.
	Nonce [16]byte
	// Millis is the writer's wall clock: for people and for point-in-time restore, never
	// for safety.
	Millis int64
	// Sealer is the epoch whose claimant made the seal; 0 in data.
	Sealer manifest.Epoch
	// Records counts the records of a data object.
	Records int
}

// key is the object's key in the bucket.
func (h *Header) key() string { return manifest.WALKey(h.Shard, h.Epoch, h.Index) }

// appendObject appends a whole object with this payload.
func appendObject(dst []byte, h *Header, payload []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	dst, codec := segment.Compress(dst, segment.S2, payload)
	b := dst[start:]
	copy(b, magic)
	b[8], b[9], b[10], b[11] = major, minor, byte(h.Kind), byte(codec)
	copy(b[16:], h.Cluster[:])
	copy(b[32:32+shardBytes], h.Shard)
	binary.LittleEndian.PutUint64(b[64:], uint64(h.Epoch))
	binary.LittleEndian.PutUint64(b[72:], h.Index)
	copy(b[80:], h.Nonce[:])
	binary.LittleEndian.PutUint64(b[96:], uint64(h.Millis))
	binary.LittleEndian.PutUint64(b[104:], uint64(h.Sealer))
	binary.LittleEndian.PutUint32(b[112:], uint32(h.Records))
	binary.LittleEndian.PutUint32(b[116:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[120:], uint32(len(b)-headerSize))
	binary.LittleEndian.PutUint32(b[124:], checksum(b))
	return dst
}

// checksum covers the whole object but its own four bytes.
func checksum(b []byte) uint32 {
	crc := crc32.Checksum(b[:124], castagnoli)
	return crc32.Update(crc, castagnoli, b[headerSize:])
}

// Decode checks a whole object and returns its records, which alias memory of their own:
// they stay valid for ever. A seal has none. Errors: Corrupt; Invalid for a format newer
// than this program.
func Decode(body []byte) (Header, []Record, error) {
	h, err := decodeHeader(body)
	if err != nil || h.Kind == KindSeal {
		return h, nil, err
	}
	ulen := binary.LittleEndian.Uint32(body[116:])
	if ulen > MaxPayload {
		return h, nil, corruptf("payload claims %d bytes, above the limit of %d", ulen, MaxPayload)
	}
	payload, err := segment.Decompress(segment.Codec(body[11]), body[headerSize:], int(ulen))
	if err != nil {
		return h, nil, err
	}
	records, err := parseRecords(payload, h.Records)
	return h, records, err
}

// decodeHeader verifies the checksum of the whole object, then reads its header.
func decodeHeader(b []byte) (Header, error) {
	if len(b) < headerSize || string(b[:8]) != magic {
		return Header{}, corruptf("no WAL object")
	}
	if checksum(b) != binary.LittleEndian.Uint32(b[124:]) {
		return Header{}, corruptf("checksum")
	}
	if b[8] != major {
		return Header{}, invalidf("format version %d.%d is not readable by this program, which reads %d.x", b[8], b[9], major)
	}
	h := Header{
		Kind:    Kind(b[10]),
		Cluster: manifest.ClusterID(b[16:32]),
		Shard:   manifest.ShardID(bytes.TrimRight(b[32:32+shardBytes], "\x00")),
		Epoch:   manifest.Epoch(binary.LittleEndian.Uint64(b[64:])),
		Index:   binary.LittleEndian.Uint64(b[72:]),
		Nonce:   [16]byte(b[80:96]),
		Millis:  int64(binary.LittleEndian.Uint64(b[96:])),
		Sealer:  manifest.Epoch(binary.LittleEndian.Uint64(b[104:])),
		Records: int(binary.LittleEndian.Uint32(b[112:])),
	}
	if h.Kind != KindData && h.Kind != KindSeal {
		return h, invalidf("an object of kind %d, which this program does not know", h.Kind)
	}
	if clen := binary.LittleEndian.Uint32(b[120:]); uint64(clen) != uint64(len(b)-headerSize) {
		return h, corruptf("payload of %d bytes, the header says %d", len(b)-headerSize, clen)
	}
	return h, nil
}

// place is where an object belongs.
type place struct {
	cluster manifest.ClusterID
	shard   manifest.ShardID
	epoch   manifest.Epoch
}

func (p place) key(index uint64) string { return manifest.WALKey(p.shard, p.epoch, index) }

// header starts the header of the object at index.
func (p place) header(kind Kind, index uint64) Header {
	return Header{Kind: kind, Cluster: p.cluster, Shard: p.shard, Epoch: p.epoch, Index: index}
}

// check refuses an object that says it belongs elsewhere.
func (p place) check(h *Header, index uint64) error {
	if h.Cluster != p.cluster || h.Shard != p.shard || h.Epoch != p.epoch || h.Index != index {
		return corruptf("the object says it is %s of cluster %x, not of %x", h.key(), h.Cluster, p.cluster)
	}
	return nil
}

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errkind.Corrupt}, args...)...)
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errkind.Invalid}, args...)...)
}
