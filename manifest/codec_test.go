package manifest_test

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func encode(t testing.TB, s *manifest.State) []byte {
	t.Helper()
	object, err := manifest.EncodeRoot(s)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// decode reads a root with all its pages inline, or at hand in have.
func decode(object []byte, have *manifest.State) (*manifest.State, error) {
	m, err := manifest.DecodeRoot(object)
	if err != nil {
		return nil, err
	}
	return m.State(have, nil)
}

// spilled is the sample with its pages as objects.
func spilled(t testing.TB) (s *manifest.State, root []byte, pages map[string][]byte) {
	s, pages = manifest.Spill(sample(t), manifest.NewRoot(nil, manifesttest.Host(4), nil))
	return s, encode(t, s), pages
}

// TestFormatIsAsItWas compares with golden files: roots and pages that were written before
// must be read as they were meant, and the same state must give the same bytes. A newer
// zstd may pack differently, so what is compared is the body.
func TestFormatIsAsItWas(t *testing.T) {
	_, root, pages := spilled(t)
	objects := map[string][]byte{"root-inline": encode(t, sample(t)), "root-paged": root}
	for i, key := range slices.Sorted(maps.Keys(pages)) {
		objects["page-"+string(rune('0'+i))] = pages[key]
	}
	if len(objects) != 4 {
		t.Fatalf("%d objects", len(objects))
	}
	for name, now := range objects {
		file := filepath.Join("testdata", name+"-1.0.golden")
		if *update {
			if err := os.WriteFile(file, now, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		was, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a, errA := manifest.Unpacked(was)
		b, errB := manifest.Unpacked(now)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: the format changed (%v, %v); golden\n%x\nnow\n%x", name, errA, errB, a, b)
		}
	}
	s, err := decode(objects["root-inline"], nil)
	if err != nil || manifesttest.Format(s) != manifesttest.Format(sample(t)) {
		t.Errorf("golden root reads as another state: %v", err)
	}
}

// TestSameStateSameBytes: what was encoded in between makes no difference.
func TestSameStateSameBytes(t *testing.T) {
	t.Parallel()
	s := sample(t)
	once := encode(t, s)
	for n := range 10 {
		encode(t, big(t, &manifesttest.MemCell{}, 100+n*50, n%3).State())
		if !bytes.Equal(encode(t, s), once) {
			t.Fatalf("other bytes after %d others", n+1)
		}
	}
}

// TestPagedRootReadsTheSame decodes a root whose pages are objects, fetched and at hand.
func TestPagedRootReadsTheSame(t *testing.T) {
	want, root, pages := spilled(t)
	m, err := manifest.DecodeRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	var fetched [][]*manifest.Chunk
	refs := m.Missing(nil)
	if len(refs) != len(pages) || m.Version() != want.Version() {
		t.Fatalf("%d pages are missing, expected %d", len(refs), len(pages))
	}
	for _, ref := range refs {
		chunks, err := manifest.DecodePage(want.ClusterID(), ref, pages[ref.Key()])
		if err != nil {
			t.Fatal(err)
		}
		fetched = append(fetched, chunks)
	}
	got, err := m.State(nil, fetched)
	if err != nil {
		t.Fatal(err)
	}
	if manifesttest.Format(got) != manifesttest.Format(want) || !bytes.Equal(encode(t, got), root) {
		t.Errorf("reads as\n%s", manifesttest.Diff(manifesttest.Format(want), manifesttest.Format(got)))
	}
	if _, err := m.State(nil, fetched[:1]); !errors.Is(err, errkind.Corrupt) {
		t.Errorf("a page that was not fetched: %v", err)
	}
	if len(m.Missing(got)) != 0 || len(m.Missing(sample(t))) != 0 {
		t.Error("pages at hand are missing")
	}
	again, err := m.State(sample(t), nil)
	if err != nil || !bytes.Equal(encode(t, again), root) {
		t.Errorf("with pages that were inline: %v", err)
	}
	if err := manifest.Validate(again); err != nil {
		t.Error(err)
	}
}

// TestEveryBitCounts flips each bit of a root and of a page, and cuts each at every byte:
// all are found damaged.
func TestEveryBitCounts(t *testing.T) {
	t.Parallel()
	want, root, pages := spilled(t)
	m, err := manifest.DecodeRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	ref := m.Missing(nil)[0]
	objects := map[string][]byte{"inline": encode(t, sample(t)), "root": root, "page": pages[ref.Key()]}
	for name, object := range objects {
		read := func(b []byte) error {
			if name == "page" {
				_, err := manifest.DecodePage(want.ClusterID(), ref, b)
				return err
			}
			_, err := manifest.DecodeRoot(b)
			return err
		}
		if err := read(object); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range object {
			for bit := range 8 {
				bad := bytes.Clone(object)
				bad[i] ^= 1 << bit
				if err := read(bad); !errors.Is(err, errkind.Corrupt) {
					t.Fatalf("%s with bit %d of byte %d flipped: %v", name, bit, i, err)
				}
			}
			if err := read(object[:i]); !errors.Is(err, errkind.Corrupt) {
				t.Fatalf("%s cut to %d bytes: %v", name, i, err)
			}
		}
		if err := read(append(bytes.Clone(object), 0)); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s with a byte more: %v", name, err)
		}
	}
}

// TestUnknownSectionsAreKept: what a newer minor format adds comes back as it was, also
// after a change by this release.
func TestUnknownSectionsAreKept(t *testing.T) {
	body, err := manifest.Unpacked(encode(t, sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	body = manifest.WithSection(manifest.WithSection(body, 40, "from the future"), 1<<40, "and beyond")
	s, err := decode(manifest.RootOf(body), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := manifest.Unpacked(encode(t, s)); err != nil || !bytes.Equal(got, body) {
		t.Errorf("written back differently: %v", err)
	}
	next := manifesttest.Apply(t, s, "put setting other v=1")
	if got, err := manifest.Unpacked(encode(t, next)); err != nil || !bytes.Contains(got, []byte("from the future")) || !bytes.Contains(got, []byte("and beyond")) {
		t.Errorf("lost by a change: %v", err)
	}
}

// TestDamageBehindTheChecksum: bodies that are wrong although the checksum is right.
func TestDamageBehindTheChecksum(t *testing.T) {
	good := encode(t, sample(t))
	body, err := manifest.Unpacked(good)
	if err != nil {
		t.Fatal(err)
	}
	change := func(at int, to ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], to)
		return manifest.Repair(b)
	}
	for name, c := range map[string]struct {
		object []byte
		kind   error
	}{
		"major 2":               {change(8, 2), errkind.Invalid},
		"unknown flag":          {change(10, 0x81), errkind.Invalid},
		"stored length":         {change(12, 1), errkind.Corrupt},
		"unpacked length":       {change(16, 1, 0, 0, 0), errkind.Corrupt},
		"unpacked length large": {change(16, 0xFF, 0xFF, 0xFF, 0xFF), errkind.Corrupt},
		"not packed, says less": {func() []byte { b := manifest.RootOf(body); b[16]--; return manifest.Repair(b) }(), errkind.Corrupt},
		"no zstd":               {change(28, 1, 2, 3, 4), errkind.Corrupt},
		"packed too well":       {manifest.PackRoot(make([]byte, 1<<20)), errkind.Corrupt},
		"empty":                 {manifest.RootOf(nil), errkind.Corrupt},
		"section twice":         {manifest.RootOf(manifest.WithSection(body, 12, "x")), errkind.Corrupt},
		"half a section":        {manifest.RootOf(append(bytes.Clone(body), 60, 9, 1)), errkind.Corrupt},
		"no core":               {manifest.RootOf(manifest.WithSection(nil, 40, "x")), errkind.Corrupt},
		"core too short":        {manifest.RootOf(manifest.WithSection(nil, 1, "x")), errkind.Corrupt},
		"core of zeros":         {manifest.RootOf(manifest.WithSection(nil, 1, strings.Repeat("\x00", 37))), errkind.Corrupt},
	} {
		if _, err := manifest.DecodeRoot(c.object); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRepetitiveStateStaysReadable: a state that packs better than the decoder allows is
// stored as it is.
func TestRepetitiveStateStaysReadable(t *testing.T) {
	s := sample(t)
	e := manifest.Edit{Op: manifest.OpID{1}, Changes: []manifest.Change{put(strings.Repeat("x", 1000))}}
	for i := range 300 {
		e.Changes = append(e.Changes, put(strings.Repeat("y", 500+i)))
	}
	s, err := manifest.Apply(s, e, [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	manifesttest.CheckCodec(t, s, nil)
}

// TestPagesKeepTheirLimits: whatever is done to a chunk list, no page is beyond the limits,
// and the estimate of its size is from above and not far off.
func TestPagesKeepTheirLimits(t *testing.T) {
	t.Parallel()
	cell := &manifesttest.MemCell{}
	r := big(t, cell, 700, 3)
	s := r.State()
	for i := range 40 {
		split := splitOf(s, i, 40)
		for k := byte(1); k < 60; k++ {
			p := split.Points[0]
			p.Key = append(bytes.Clone(p.Key), k)
			split.Points = append(split.Points, p)
		}
		next, err := manifest.Apply(s, manifest.Edit{Op: manifest.OpID{byte(i), 1}, Changes: []manifest.Change{split}}, [16]byte{byte(i)})
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	check := func() (pages int) {
		estimated, encoded, chunks := manifest.PageSizes(s)
		for i := range encoded {
			if chunks[i] > 128 || encoded[i] > 96<<10 {
				t.Errorf("page %d has %d chunks, %d bytes", i, chunks[i], encoded[i])
			}
			if estimated[i] < encoded[i] || estimated[i] > 2*encoded[i]+4096 {
				t.Errorf("page %d is estimated at %d bytes, has %d", i, estimated[i], encoded[i])
			}
		}
		return len(encoded)
	}
	before := check()
	// Merge everything back, pair by pair: small pages are joined.
	for n := 0; s.NumChunks(1) > 50; n++ {
		e := manifest.Edit{Op: manifest.OpID{byte(n), 2}}
		var last *manifest.Chunk
		for c := range s.Chunks(1) {
			if last == nil {
				last = c
				continue
			}
			e.Changes = append(e.Changes, manifest.Merge{Left: last.At(), Right: c.At()})
			last = nil
		}
		next, err := manifest.Apply(s, e, [16]byte{byte(n), 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := manifest.ValidateStep(s, next); err != nil {
			t.Fatal(err)
		}
		s = next
	}
	if err := manifest.Validate(s); err != nil {
		t.Error(err)
	}
	if after := check(); after*2 > before {
		t.Errorf("%d pages before, %d after", before, after)
	}
}

// TestDecoderAllocatesLittle: lengths that lie make nothing large; what is allocated stays
// within 16 times the body.
func TestDecoderAllocatesLittle(t *testing.T) {
	body, err := manifest.Unpacked(encode(t, sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	for i := range body {
		bad := slices.Concat(body[:i], []byte{0xFF, 0xFF, 0xFF, 0x7F}, body[min(len(body), i+4):])
		object := manifest.RootOf(bad)
		runtime.ReadMemStats(&before)
		_, _ = decode(object, nil)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 16*uint64(len(body))+8192 {
			t.Fatalf("a lie at byte %d of %d made %d bytes", i, len(body), n)
		}
	}
}

// FuzzDecodeRoot puts any payload in the place of one section of a good root, behind a right
// checksum: an error, or a state that goes through the codec unchanged.
func FuzzDecodeRoot(f *testing.F) {
	_, paged, _ := spilled(f)
	var roots []map[uint64][]byte
	for i, object := range [][]byte{encode(f, sample(f)), paged} {
		body, err := manifest.Unpacked(object)
		if err != nil {
			f.Fatal(err)
		}
		roots = append(roots, manifest.Sections(body))
		for tag, payload := range roots[i] {
			f.Add(i == 1, uint8(tag), payload)
		}
	}
	have := sample(f)
	f.Fuzz(func(t *testing.T, paged bool, tag uint8, payload []byte) {
		sections := maps.Clone(roots[0])
		if paged {
			sections = maps.Clone(roots[1])
		}
		sections[uint64(tag%16)] = payload
		m, err := manifest.DecodeRoot(manifest.RootOf(manifest.JoinSections(sections)))
		if err != nil {
			if !errors.Is(err, errkind.Corrupt) {
				t.Fatalf("unexpected kind: %v", err)
			}
			return
		}
		for _, with := range []*manifest.State{nil, have} {
			s, err := m.State(with, nil)
			if err != nil {
				if !errors.Is(err, errkind.Corrupt) {
					t.Fatalf("unexpected kind: %v", err)
				}
				continue
			}
			_ = manifest.Validate(s)
			manifesttest.CheckCodec(t, s, s)
			for c := range s.AllChunks() {
				if s.ChunkAt(c.At()) != c {
					t.Fatalf("chunk %d is not found", c.ID)
				}
			}
		}
	})
}

// FuzzDecodePage reads any page body: an error, or chunks that come back from the codec.
func FuzzDecodePage(f *testing.F) {
	s := sample(f)
	for _, c := range s.Collections() {
		f.Add(manifest.EncodeChunks(slices.Collect(s.Chunks(c.ID))))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		chunks, err := manifest.DecodeChunks(1, body)
		if err != nil {
			if !errors.Is(err, errkind.Corrupt) {
				t.Fatalf("unexpected kind: %v", err)
			}
			return
		}
		once := manifest.EncodeChunks(chunks)
		back, err := manifest.DecodeChunks(1, once)
		if err != nil || !bytes.Equal(manifest.EncodeChunks(back), once) {
			t.Fatalf("chunks changed: %v", err)
		}
	})
}
