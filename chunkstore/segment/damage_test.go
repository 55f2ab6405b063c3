package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/klauspost/compress/s2"
)

// smallSegment has every kind of frame: blocks of two collections, compressed and not, and
// retry entries, in the tail or with many before it.
func smallSegment(t testing.TB, c Codec, many bool) ([]byte, []manifest.SegmentRef, []Row) {
	t.Helper()
	rows := goldenRows()
	entries := goldenRetries()
	if many {
		for i := range 60 {
			e := entries[i%len(entries)]
			e.Reply = noise(i, 400)
			entries = append(entries, e)
		}
	}
	body, refs := build(t, &WriterOptions{Codec: c, BlockSize: 600}, rows, entries)
	return body, refs, rows
}

// readAll reads everything in every way. It fails the test when it meets a row that is not
// the right one; damage must end in an error instead.
func readAll(t testing.TB, obj *object, ref manifest.SegmentRef, rows []Row) error {
	t.Helper()
	r, err := Open(t.Context(), obj.fetch, ref, nil)
	if err != nil {
		return err
	}
	n := 0
	for _, c := range []manifest.CollectionID{1, 2, 3} {
		it := r.Scan(c, shardkey.Range{}, false)
		for it.Next(t.Context()) {
			if !equalRow(it.Row(), rows[n]) {
				t.Fatalf("row %d is %v", n, it.Row())
			}
			n++
		}
		if it.Err() != nil {
			return it.Err()
		}
	}
	if n != len(rows) {
		t.Fatalf("%d rows of %d", n, len(rows))
	}
	for _, c := range []manifest.CollectionID{1, 2, 3} {
		if _, err := r.Retries(t.Context(), c, shardkey.Range{}); err != nil {
			return err
		}
	}
	return nil
}

// Every flipped bit of an object is found when the part with it is read. Of an object with
// many retry entries a sample of the bits will do.
func TestEveryFlippedBitIsCorrupt(t *testing.T) {
	t.Parallel()
	for _, c := range []Codec{S2, Zstd} {
		for _, many := range []bool{false, true} {
			body, refs, rows := smallSegment(t, c, many)
			check(t, readAll(t, &object{body: body}, refs[0], rows))
			step := 1
			if many || c == Zstd {
				step = 61
			}
			for bit := 0; bit < 8*len(body); bit += step {
				body[bit/8] ^= 1 << (bit % 8)
				if err := readAll(t, &object{body: body}, refs[0], rows); !errors.Is(err, errkind.Corrupt) {
					t.Fatalf("codec %d: bit %d of byte %d of %d: %v", c, bit%8, bit/8, len(body), err)
				}
				body[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

// So are truncations; a tail that is still whole does not help.
func TestTruncationsAreCorrupt(t *testing.T) {
	t.Parallel()
	body, refs, rows := smallSegment(t, S2, true)
	for n := 0; n < len(body); n += 3 {
		if err := readAll(t, &object{body: body[:n]}, refs[0], rows); !errors.Is(err, errkind.Corrupt) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(body), err)
		}
	}
}

// Verify finds them as well, Get where it reads the block.
func TestVerifyAndGetFindDamage(t *testing.T) {
	t.Parallel()
	body, refs, rows := smallSegment(t, S2, true)
	for i := 0; i < len(body); i += 11 {
		bad := bytes.Clone(body)
		bad[i] ^= 0x10
		obj := &object{body: bad}
		if err := Verify(t.Context(), obj.fetch, refs[0], nil); !errors.Is(err, errkind.Corrupt) {
			t.Fatalf("byte %d of %d: %v", i, len(body), err)
		}
		r, err := Open(t.Context(), obj.fetch, refs[0], NewCache(1<<20))
		if err != nil {
			continue
		}
		damaged := false
		for n, row := range rows {
			got, ok, err := r.Get(t.Context(), row.Collection, row.Key)
			if errors.Is(err, errkind.Corrupt) {
				damaged = true
			} else if first := slices.IndexFunc(rows, func(x Row) bool { return x.Collection == row.Collection && bytes.Equal(x.Key, row.Key) }); err != nil || !ok || !equalRow(got, rows[first]) {
				t.Fatalf("byte %d: row %d: %v %v %v", i, n, got, ok, err)
			}
		}
		if blocks := r.tail.blocks; !damaged && uint64(i) < blocks.offs[blocks.frames()] {
			t.Fatalf("byte %d of a block: no Get found it", i)
		}
	}
}

// noise is n bytes that do not compress.
func noise(seed, n int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*0x9E3779B97F4A7C15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	return b
}

// Another segment's bytes in this one's place are found out, whether at the Open or later;
// so are two blocks that changed places.
func TestSwappedBytesAreCorrupt(t *testing.T) {
	t.Parallel()
	rows := make([]Row, 40)
	for i := range rows {
		rows[i] = put(1, i, 1, string(bytes.ReplaceAll(noise(i, 300), []byte{0}, []byte{1})))
	}
	write := func(n byte) ([]byte, manifest.SegmentRef) {
		w := NewWriter(segmentID(n), &WriterOptions{BlockSize: 1})
		for _, r := range rows {
			check(t, w.Add(r))
		}
		check(t, w.Cut(Part{Collection: 1}))
		body, _, err := w.Finish()
		check(t, err)
		return body, w.Refs()[0]
	}
	body, ref := write(1)
	other, otherRef := write(2)
	if len(body) != len(other) || ref.TailOffset != otherRef.TailOffset {
		t.Fatal("the segments are not alike")
	}
	_, err := Open(t.Context(), (&object{body: other}).fetch, ref, nil)
	wantKind(t, err, errkind.Corrupt)

	mixed := append(bytes.Clone(other[:ref.TailOffset]), body[ref.TailOffset:]...)
	wantKind(t, readAll(t, &object{body: mixed}, ref, rows), errkind.Corrupt)
	r, err := Open(t.Context(), (&object{body: mixed}).fetch, ref, nil)
	check(t, err)
	_, _, err = r.Get(t.Context(), 1, key(20))
	wantKind(t, err, errkind.Corrupt)

	x := r.tail.blocks.offs
	if x[6]-x[5] != x[8]-x[7] {
		t.Fatal("the blocks are not alike")
	}
	swapped := bytes.Clone(body)
	copy(swapped[x[5]:], body[x[7]:x[8]])
	copy(swapped[x[7]:], body[x[5]:x[6]])
	r, err = Open(t.Context(), (&object{body: swapped}).fetch, ref, nil)
	check(t, err)
	_, _, err = r.Get(t.Context(), 1, key(5))
	wantKind(t, err, errkind.Corrupt)
}

// edit changes bytes of a segment and makes all checksums right again.
func edit(t testing.TB, body []byte, change func(b []byte)) []byte {
	t.Helper()
	b := bytes.Clone(body)
	change(b)
	repair(b, segmentID(1).Random)
	return b
}

// repair recomputes the checksum of every frame that can be walked to, and the footer's.
func repair(b []byte, n name) {
	if len(b) < headerSize+footerSize {
		return
	}
	foot := b[len(b)-footerSize:]
	for at := headerSize; at+frameHead <= len(b)-footerSize; {
		f := b[at:]
		clen := uint64(binary.LittleEndian.Uint32(f[4:]))
		if clen > uint64(len(b)-footerSize-at-frameHead) {
			break
		}
		crc := frameCRC(n, uint64(at), f[:12], f[frameHead:frameHead+clen])
		binary.LittleEndian.PutUint32(f[12:], crc)
		for s := 0; s < 64; s += 16 {
			if binary.LittleEndian.Uint64(foot[s:]) == uint64(at) {
				binary.LittleEndian.PutUint32(foot[s+12:], crc)
			}
		}
		at += frameHead + int(clen)
	}
	binary.LittleEndian.PutUint32(foot[68:], crc32.Checksum(foot[:68], castagnoli))
}

// What a newer program wrote is refused and named, not called corrupt; what it added in a
// minor version is passed over.
func TestNewerFormatsAreRefused(t *testing.T) {
	t.Parallel()
	body, refs, rows := smallSegment(t, S2, false)
	r, _ := open(t, body, refs, nil)
	header := bytes.Index(body[refs[0].TailOffset:], r.tail.meta.header) + int(refs[0].TailOffset)
	index := int(binary.LittleEndian.Uint64(body[len(body)-footerSize:]))
	both := func(at int, v byte) func(b []byte) {
		return func(b []byte) { b[at], b[header+at] = v, v }
	}
	for want, change := range map[string]func(b []byte){
		"version 2.0":     both(8, 2),
		"key 1":           both(28, 1),
		"footer version":  func(b []byte) { b[len(b)-footerSize+64] = 9 },
		"codec 7":         func(b []byte) { b[headerSize+1] = 7 },
		"type 2":          func(b []byte) { b[headerSize] = typeShred },
		"is compressed":   func(b []byte) { b[index+1] = byte(Zstd) },
		"only type 7":     func(b []byte) { b[int(r.tail.retries.offs[0])] = 99 },
		"codec 9 is not ": func(b []byte) { b[int(r.tail.retries.offs[0])+1] = 9 },
	} {
		bad := edit(t, body, change)
		err := readAll(t, &object{body: bad}, refs[0], rows)
		if !errors.Is(err, errkind.Invalid) || errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for name, change := range map[string]func(b []byte){
		"minor version": both(9, 3), "flags": both(10, 1), "frame flags": func(b []byte) { b[headerSize+2] = 1 },
	} {
		if err := readAll(t, &object{body: edit(t, body, change)}, refs[0], rows); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Frames of unknown types between the blocks and in the tail are passed over; a row block
// or retry frame that no index names is not.
func TestUnknownFramesArePassedOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind byte
		want error
	}{{200, nil}, {typeStrip, nil}, {typeRows, errkind.Corrupt}, {typeRetry, errkind.Corrupt}} {
		w := NewWriter(segmentID(1), nil)
		rows := []Row{put(1, 1, 1, "a"), put(1, 2, 1, "b")}
		for _, r := range rows {
			check(t, w.Add(r))
		}
		check(t, w.AddRetry(RetryEntry{Collection: 1, Key: key(1)}))
		check(t, w.Cut(Part{Collection: 1}))
		w.flushBlock()
		w.appendFrame(c.kind, []byte("between"))
		body, _, err := w.Finish()
		check(t, err)
		obj := &object{body: body}
		check(t, readAll(t, obj, w.Refs()[0], rows))
		if err := Verify(t.Context(), obj.fetch, w.Refs()[0], nil); !errors.Is(err, c.want) {
			t.Errorf("type %d: %v", c.kind, err)
		}
	}
}

// A frame whose lengths lie, about the payload or inside it, costs no memory.
func TestLyingLengthsAllocateLittle(t *testing.T) {
	src := bytes.Repeat([]byte("abcdefgh"), 1000)
	for _, c := range []Codec{Raw, S2, Zstd} {
		good, section := appendFrame(nil, name{}, typeRows, c, src)
		for _, lie := range []uint32{0, 1, uint32(len(src)) - 1, uint32(len(src)) + 1, maxBlockBytes + 1, 1<<31 - 1, 1<<32 - 1} {
			for _, field := range []int{4, 8} { // clen, ulen
				bad := bytes.Clone(good)
				binary.LittleEndian.PutUint32(bad[field:], lie)
				if n := int64(frameHead) + int64(lie); field == 4 && n <= int64(len(bad)) {
					bad = bad[:n]
				}
				binary.LittleEndian.PutUint32(bad[12:], frameCRC(name{}, 0, bad[:12], bad[frameHead:]))
				if got, err := allocated(func() error { _, _, err := openFrame(bad, name{}, 0, maxBlockBytes, typeRows); return err }); got > 1<<20 || !errors.Is(err, errkind.Corrupt) {
					t.Errorf("codec %d, field %d says %d: %d bytes allocated, %v", c, field, lie, got, err)
				}
			}
		}
		if section.len != uint32(len(good)) {
			t.Error(section)
		}
	}
	bomb := []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0} // snappy and s2: "4 GiB follow"
	if n, err := s2.DecodedLen(bomb); n < 1<<31 || err != nil {
		t.Fatal(n, err)
	}
	zeros, _ := Compress(nil, Zstd, make([]byte, 1<<20))
	for c, payload := range map[Codec][]byte{S2: bomb, Zstd: zeros} {
		got, err := allocated(func() error { _, err := Decompress(c, payload, 100); return err })
		if got > 1<<20 || !errors.Is(err, errkind.Corrupt) {
			t.Errorf("codec %d: %d bytes allocated, %v", c, got, err)
		}
	}
}

// allocated is how many bytes f allocated in all.
func allocated(f func() error) (uint64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

// Structures that are wrong under a right checksum are Corrupt: what the parts say of one
// another is compared.
func TestPartsThatDisagreeAreCorrupt(t *testing.T) {
	t.Parallel()
	body, refs, rows := smallSegment(t, S2, false)
	r, _ := open(t, body, refs, nil)
	tailStart := int(refs[0].TailOffset)
	field := func(key string) int { // offset of a number of the meta section
		return bytes.Index(body[tailStart:], append([]byte(key), 0)) + tailStart + len(key) + 1
	}
	set := func(at int, v uint64) func(b []byte) {
		return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], v) }
	}
	footer := len(body) - footerSize
	index := int(binary.LittleEndian.Uint64(body[footer:]))
	for name, change := range map[string]func(b []byte){
		"another name in the header copy": func(b []byte) { b[field("header")+4+1+12] ^= 1 },
		"rows":                            set(field("rows"), 3),
		"no rows":                         set(field("rows"), 0),
		"deletes":                         set(field("deletes"), 3),
		"bytes":                           set(field("bytes"), 3),
		"minSeq":                          set(field("minSeq"), 3),
		"maxSeq":                          set(field("maxSeq"), 3),
		"retryOff":                        set(field("retryOff"), 3),
		"retryOff beyond":                 set(field("retryOff"), 1<<40),
		"retryLen":                        set(field("retryLen"), 3),
		"retryIndexOff":                   set(field("retryIndexOff"), 3),
		"retryIndexLen":                   set(field("retryIndexLen"), 3),
		"retryEntries":                    set(field("retryEntries"), 99),
		"a field's name":                  func(b []byte) { b[field("bytes")-2] = 'x' },
		"meta's length":                   func(b []byte) { b[bytes.Index(b[tailStart:], []byte("\x05header"))+tailStart-4]++ },
		"index offset":                    set(footer, 77),
		"index is the filter":             func(b []byte) { copy(b[footer:], b[footer+16:footer+32]) },
		"frames in the index":             func(b []byte) { b[index+frameHead]++ },
		"fewer frames in the index":       func(b []byte) { b[index+frameHead]-- },
		"first separator":                 func(b []byte) { b[index+frameHead+indexHead+6]++ },
		"clen in the index":               func(b []byte) { b[index+frameHead+indexHead+2]++ },
	} {
		bad := edit(t, body, change)
		obj := &object{body: bad}
		if err := Verify(t.Context(), obj.fetch, refs[0], nil); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range r.tail.filter {
		bad := edit(t, body, func(b []byte) { b[int(binary.LittleEndian.Uint64(b[footer+16:]))+frameHead+i] = 0 })
		if r.tail.filter[i] != 0 && !errors.Is(Verify(t.Context(), (&object{body: bad}).fetch, refs[0], nil), errkind.Corrupt) {
			t.Errorf("filter byte %d: not found", i)
		}
	}
	check(t, readAll(t, &object{body: body}, refs[0], rows))
}
