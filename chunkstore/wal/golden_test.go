package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

var update = flag.Bool("update", false, "rewrite testdata")

// emptyIsNil makes an empty byte string equal to a nil one.
var emptyIsNil = cmp.Transformer("bytes", func(b []byte) string { return string(b) })

func sampleHeader(kind Kind) Header {
	h := place{manifest.ClusterID{0xC1, 15: 0x1C}, "shard01", 3}.header(kind, 42)
	h.Nonce, h.Millis = [16]byte{1, 2, 3, 15: 16}, 1_800_000_000_123
	if kind == KindSeal {
		h.Sealer = 5
	}
	return h
}

// sampleObject is the object in testdata with all of samples, or a seal.
func sampleObject(t testing.TB, kind Kind) []byte {
	h := sampleHeader(kind)
	if kind == KindSeal {
		return appendObject(nil, &h, nil)
	}
	b := batchOf(t, samples()...)
	h.Records = b.Len()
	return appendObject(nil, &h, b.buf)
}

// Files that a released version wrote are read for ever, and what is written today is what
// was written then.
func TestGoldenObjects(t *testing.T) {
	t.Parallel()
	for kind, name := range map[Kind]string{KindData: "data.v1.wal", KindSeal: "seal.v1.wal"} {
		path := filepath.Join("testdata", name)
		body := sampleObject(t, kind)
		if *update {
			check(t, os.WriteFile(path, body, 0o644))
		}
		golden, err := os.ReadFile(path)
		check(t, err)
		h, records, err := Decode(golden)
		check(t, err)
		want := sampleHeader(kind)
		var wantRecords []Record
		if kind == KindData {
			wantRecords = samples()
			want.Records = len(wantRecords)
		}
		diff(t, h, want)
		if d := cmp.Diff(wantRecords, records, emptyIsNil); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		// The compressor has other code, with other output, on other machines.
		if runtime.GOARCH == "amd64" && !bytes.Equal(body, golden) {
			t.Errorf("%s differs from what is written today:\n%x\n%x", name, golden, body)
		}
	}
}

// Every flipped bit, every truncation and every appended byte is Corrupt.
func TestEveryDamageIsCorrupt(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{KindData, KindSeal} {
		body := sampleObject(t, kind)
		for bit := range 8 * len(body) {
			bad := bytes.Clone(body)
			bad[bit/8] ^= 1 << (bit % 8)
			if _, _, err := Decode(bad); !errors.Is(err, errkind.Corrupt) {
				t.Fatalf("kind %d, bit %d of byte %d flipped: %v", kind, bit%8, bit/8, err)
			}
		}
		for n := range body {
			if _, _, err := Decode(body[:n]); !errors.Is(err, errkind.Corrupt) {
				t.Fatalf("kind %d, cut to %d bytes: %v", kind, n, err)
			}
		}
		_, _, err := Decode(append(bytes.Clone(body), 0))
		wantKind(t, err, errkind.Corrupt)
	}
}

// What a newer program writes is refused with its version named, not called corrupt.
func TestNewerFormatsAreRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(b []byte){
		"version 2.0": func(b []byte) { b[8] = 2 },
		"kind 9":      func(b []byte) { b[10] = 9 },
		"codec 7":     func(b []byte) { b[11] = 7 },
	} {
		b := sampleObject(t, KindData)
		spoil(b)
		repair(b)
		_, _, err := Decode(b)
		if !errors.Is(err, errkind.Invalid) || errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := sampleObject(t, KindData)
	b[9], b[12] = 7, 1 // a higher minor version and flags add, and are read
	repair(b)
	_, _, err := Decode(b)
	check(t, err)
}

// repair makes the checksum right.
func repair(b []byte) {
	if len(b) >= headerSize {
		binary.LittleEndian.PutUint32(b[124:], checksum(b))
	}
}

// Two objects of one log that were swapped, or an older one in a newer one's place, are
// Corrupt where they are read.
func TestSwappedObjectsAreCorrupt(t *testing.T) {
	t.Parallel()
	mem := membucket.New()
	l := newLog(mem, testHost(1), 0)
	for i := range 3 {
		_, err := l.Append(t.Context(), insert(t, i))
		check(t, err)
	}
	older, err := mem.Get(t.Context(), l.place.key(0), bucket.GetOptions{})
	check(t, err)
	_, err = mem.Put(t.Context(), l.place.key(2), older.Body, bucket.Condition{})
	check(t, err)
	err = Replay(t.Context(), mem, cluster, shard, epoch, 1, 3, func(manifest.Position, Record) error { return nil })
	wantKind(t, err, errkind.Corrupt)
}

// Bytes with right checksums and wrong contents never panic, never take much memory, and
// what decodes encodes to records that decode the same.
func FuzzDecode(f *testing.F) {
	f.Add(sampleObject(f, KindData), true)
	f.Add(sampleObject(f, KindSeal), true)
	f.Add(batchOf(f, samples()...).buf, false)
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		var records []Record
		var err error
		if whole { // the header's counts and lengths
			b = bytes.Clone(b)
			repair(b)
			_, records, err = Decode(b)
		} else { // below the compression
			records, err = parseRecords(b, 1+len(b)%7)
		}
		if err != nil {
			if !errors.Is(err, errkind.Corrupt) && !errors.Is(err, errkind.Invalid) {
				t.Fatalf("error without a kind: %v", err)
			}
			return
		}
		if len(records) == 0 {
			return // a seal
		}
		again := batchOf(t, records...)
		back, err := parseRecords(again.buf, again.n)
		check(t, err)
		if d := cmp.Diff(records, back, emptyIsNil); d != "" {
			t.Fatal(d)
		}
	})
}

// Lengths that lie do not make the decoder allocate.
func TestLyingLengthsAllocateLittle(t *testing.T) {
	body := sampleObject(t, KindData)
	for _, at := range []int{112, 116, 120} { // records, ulen, clen
		for _, lie := range []uint32{0, 1, 1 << 16, MaxPayload, MaxPayload + 1, 1<<31 - 1, 1<<32 - 1} {
			b := bytes.Clone(body)
			binary.LittleEndian.PutUint32(b[at:], lie)
			repair(b)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := Decode(b)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 || !errors.Is(err, errkind.Corrupt) {
				t.Errorf("field %d says %d: %d bytes allocated, %v", at, lie, got, err)
			}
		}
	}
}

func BenchmarkObject(b *testing.B) {
	batch := &Batch{}
	for i := range 3000 {
		check(b, batch.Add(Record{
			Collection: 1, Key: fmt.Appendf(nil, "key%08d", i), Op: Insert, Seq: manifest.Seq(i),
			Doc: doc(i, strings.Repeat(fmt.Sprint("order ", i*7919, " city "), 14)),
		}))
	}
	b.Run("raw s2", func(b *testing.B) {
		var dst []byte
		b.SetBytes(int64(batch.Size()))
		for b.Loop() {
			dst, _ = segment.Compress(dst[:0], segment.S2, batch.buf)
		}
	})
	h := sampleHeader(KindData)
	h.Records = batch.Len()
	var body []byte
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(batch.Size()))
		b.ReportAllocs()
		for b.Loop() {
			body = appendObject(body[:0], &h, batch.buf)
		}
	})
	b.Run("add", func(b *testing.B) {
		_, records, err := Decode(body)
		check(b, err)
		var again Batch
		b.SetBytes(int64(batch.Size()))
		b.ReportAllocs()
		for b.Loop() {
			again.Reset()
			for i := range records {
				check(b, again.Add(records[i]))
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(batch.Size()))
		b.ReportAllocs()
		for b.Loop() {
			_, _, err := Decode(body)
			check(b, err)
		}
	})
}
