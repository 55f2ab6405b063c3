package segment

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// A retry frame's payload:
//
//	u32 entries | per entry: u32 collection | uvarint, key | 32 B session | i64 txn | i32 stmt | i32 attempt
//	                         | i64 expires at | u8 flags (1 span) | uvarint, reply | [uvarint, min | uvarint, max: the span]
//
// Entries ascend by (collection, key); a frame holds up to 1 MiB of them, of one collection,
// or a single one that is larger (a reply can carry a document: MaxDocBytes). Entries with a
// span have no key, and frames of their own, which the index marks: every reader of the
// collection looks at them. Up to retryInTailBytes of
// frames lie in the tail and come with the Open; more lie before it, and their index in
// the tail tells which one to read.
const (
	retryFrameBytes  = 1 << 20
	retryInTailBytes = 16 << 10
	retryFixed       = 4 + 32 + 8 + 4 + 4 + 8 + 1
	flagSpan         = 1
	noSpan           = 0
)

func appendRetry(dst []byte, e *RetryEntry) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Collection))
	dst = binary.AppendUvarint(dst, uint64(len(e.Key)))
	dst = append(dst, e.Key...)
	dst = append(dst, e.Op.Session[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Op.Txn))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Op.Stmt))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Op.Attempt))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.ExpiresAt))
	flags := byte(noSpan)
	if e.spans() {
		flags = flagSpan
	}
	dst = append(dst, flags)
	dst = append(binary.AppendUvarint(dst, uint64(len(e.Reply))), e.Reply...)
	if e.spans() {
		dst = append(binary.AppendUvarint(dst, uint64(len(e.Span.Min))), e.Span.Min...)
		dst = append(binary.AppendUvarint(dst, uint64(len(e.Span.Max))), e.Span.Max...)
	}
	return dst
}

func (e *RetryEntry) spans() bool { return len(e.Key) == 0 }

// in reports whether the entry belongs to a chunk of this range.
func (e *RetryEntry) in(r shardkey.Range) bool {
	if e.spans() {
		return e.Span.Overlaps(r)
	}
	return within(r, e.Key)
}

// parseRetries decodes a payload; the entries alias it. Errors: Corrupt.
func parseRetries(p []byte) ([]RetryEntry, error) {
	if len(p) < 4 {
		return nil, corruptf("retry frame of %d bytes", len(p))
	}
	n := int(binary.LittleEndian.Uint32(p))
	if n > len(p)/retryFixed {
		return nil, corruptf("retry frame of %d bytes claims %d entries", len(p), n)
	}
	entries := make([]RetryEntry, n)
	at := 4
	for i := range entries {
		var ok bool
		if at, ok = entries[i].parse(p, at); !ok || i > 0 && compareRetry(&entries[i-1], &entries[i]) > 0 {
			return nil, corruptf("retry entry %d at %d", i, at)
		}
	}
	if at != len(p) {
		return nil, corruptf("retry frame: %d bytes after the last entry", len(p)-at)
	}
	return entries, nil
}

func (e *RetryEntry) parse(p []byte, at int) (int, bool) {
	if len(p)-at < 4 {
		return at, false
	}
	e.Collection = manifest.CollectionID(binary.LittleEndian.Uint32(p[at:]))
	key, at, ok := lengthPrefixed(p, at+4, MaxKeyBytes)
	if !ok || len(p)-at < retryFixed-4 {
		return at, false
	}
	e.Key = key
	e.Op.Session = [32]byte(p[at:])
	e.Op.Txn = int64(binary.LittleEndian.Uint64(p[at+32:]))
	e.Op.Stmt = int32(binary.LittleEndian.Uint32(p[at+40:]))
	e.Op.Attempt = int32(binary.LittleEndian.Uint32(p[at+44:]))
	e.ExpiresAt = int64(binary.LittleEndian.Uint64(p[at+48:]))
	flags := p[at+56]
	if e.Reply, at, ok = lengthPrefixed(p, at+57, MaxDocBytes); !ok || flags == noSpan {
		return at, ok && !e.spans()
	}
	if e.Span.Min, at, ok = lengthPrefixed(p, at, MaxKeyBytes+1); !ok {
		return at, false
	}
	e.Span.Max, at, ok = lengthPrefixed(p, at, MaxKeyBytes+1)
	return at, ok && flags == flagSpan && e.spans()
}

// lengthPrefixed reads a uvarint and that many bytes at offset at.
func lengthPrefixed(p []byte, at, limit int) ([]byte, int, bool) {
	n, at := uvarint(p, at)
	if at > len(p) || n > uint64(len(p)-at) || n > uint64(limit) {
		return nil, at, false
	}
	end := at + int(n)
	return p[at:end:end], end, true
}

func compareRetry(a, b *RetryEntry) int {
	if c := cmp.Compare(a.Collection, b.Collection); c != 0 {
		return c
	}
	return bytes.Compare(a.Key, b.Key)
}

// retryFrames cuts sorted entries into payloads and calls frame for each.
func retryFrames(entries []RetryEntry, frame func(payload []byte, entries []RetryEntry)) {
	var buf []byte
	first := 0
	flush := func(next int) {
		binary.LittleEndian.PutUint32(buf, uint32(next-first))
		frame(buf, entries[first:next])
		first = next
	}
	for i := range entries {
		size := retryFixed + 2*binary.MaxVarintLen32 + len(entries[i].Key) + len(entries[i].Reply)
		size += len(entries[i].Span.Min) + len(entries[i].Span.Max)
		if i > first && (entries[i].Collection != entries[first].Collection || entries[i].spans() != entries[first].spans() ||
			len(buf)+size > retryFrameBytes) {
			flush(i)
		}
		if i == first {
			buf = append(buf[:0], 0, 0, 0, 0)
		}
		buf = appendRetry(buf, &entries[i])
	}
	if first < len(entries) {
		flush(len(entries))
	}
}

func sortRetries(entries []RetryEntry) {
	slices.SortStableFunc(entries, func(a, b RetryEntry) int { return compareRetry(&a, &b) })
}

// within reports whether key is inside the range.
func within(r shardkey.Range, key []byte) bool {
	return bytes.Compare(r.Min, key) <= 0 && (len(r.Max) == 0 || bytes.Compare(key, r.Max) < 0)
}
