package segment

import (
	"bytes"
	"errors"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// wantDecodeError fails unless err is nil or says what kind of damage it is.
func wantDecodeError(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, errkind.Corrupt) && !errors.Is(err, errkind.Invalid) {
		t.Fatalf("error without a kind: %v", err)
	}
}

// sectionParsers decode the payloads of frames, below compression and checksums.
var sectionParsers = []func(p []byte) (again []byte, err error){
	func(p []byte) ([]byte, error) {
		b, err := parseBlock(p)
		if err != nil {
			return nil, err
		}
		return reencode(b), nil
	},
	func(p []byte) ([]byte, error) { _, err := parseIndex(p, headerSize, 1<<40); return nil, err },
	func(p []byte) ([]byte, error) { _, err := parseRetries(p); return nil, err },
	func(p []byte) ([]byte, error) { _, err := parseMeta(p); return nil, err },
	func(p []byte) ([]byte, error) {
		f, err := parseFilter(p)
		if err == nil {
			f.mayContain(keyHash(1, p))
		}
		return nil, err
	},
}

// reencode writes a block's rows anew.
func reencode(b *block) []byte {
	var again blockBuilder
	var rows [restartEvery]Row
	var keys arena
	var last []byte
	for g := range b.groups {
		for _, r := range rows[:b.group(g, &rows, &keys)] {
			again.add(&r, last)
			last = r.Key
		}
	}
	return again.finish()
}

// sectionSeeds are good payloads of every kind.
func sectionSeeds(t testing.TB) (seeds [5][][]byte) {
	body, refs, _ := smallSegment(t, S2, true)
	r, _ := open(t, body, refs, nil)
	x := r.tail.blocks
	var again indexBuilder
	for i := range x.frames() {
		b, err := r.block(t.Context(), i)
		check(t, err)
		seeds[0] = append(seeds[0], b.data)
		again.add(x.sep(i), i, int(x.rows[i]), x.flags[i])
	}
	seeds[1] = [][]byte{again.finish()}
	retryFrames(goldenRetries(), func(p []byte, _ []RetryEntry) { seeds[2] = append(seeds[2], bytes.Clone(p)) })
	seeds[3] = [][]byte{r.tail.meta.encode()}
	seeds[4] = [][]byte{r.tail.filter}
	return seeds
}

// Every single changed or missing byte of a payload, under a right checksum, gives a value
// or an error of a kind.
func TestMutatedSectionsHaveAKind(t *testing.T) {
	t.Parallel()
	for kind, seeds := range sectionSeeds(t) {
		for _, seed := range seeds {
			for i := range seed {
				for _, v := range []byte{0, 1, seed[i] + 1, seed[i] - 1, 0x7F, 0x80, 0xFF} {
					p := bytes.Clone(seed)
					p[i] = v
					_, err := sectionParsers[kind](p)
					wantDecodeError(t, err)
				}
				_, err := sectionParsers[kind](seed[:i])
				wantDecodeError(t, err)
			}
		}
	}
}

// A payload that decodes is complete: it never panics, takes memory in proportion, and a
// block's rows, written anew, decode to the same rows.
func FuzzSection(f *testing.F) {
	for kind, seeds := range sectionSeeds(f) {
		for _, seed := range seeds {
			f.Add(byte(kind), seed)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, p []byte) {
		var again []byte
		n, err := allocated(func() (err error) {
			again, err = sectionParsers[int(kind)%len(sectionParsers)](p)
			return err
		})
		wantDecodeError(t, err)
		if n > uint64(16*len(p))+1<<20 {
			t.Fatalf("%d bytes allocated for %d", n, len(p))
		}
		if again == nil {
			return
		}
		old, err := parseBlock(p)
		check(t, err)
		b, err := parseBlock(again)
		check(t, err)
		sameBlock(t, old, b)
	})
}

func sameBlock(t *testing.T, a, b *block) {
	if a.rows != b.rows || a.groups != b.groups || a.collection != b.collection {
		t.Fatalf("%+v and %+v", a, b)
	}
	var x, y [restartEvery]Row
	var keys arena
	for g := range a.groups {
		n := a.group(g, &x, &keys)
		b.group(g, &y, &keys)
		sameRows(t, y[:n], x[:n])
		for _, r := range x[:n] {
			if got, ok := b.get(r.Key); !ok || got.Seq < r.Seq {
				t.Fatalf("get %x: %v %v", r.Key, got, ok)
			}
		}
	}
}

// A whole object with right checksums and anything inside is read to the end without a
// panic, and what is wrong with it has a kind.
func FuzzObject(f *testing.F) {
	for _, c := range []Codec{S2, Zstd} {
		body, refs, _ := smallSegment(f, c, false)
		f.Add(body, refs[0].TailLength)
	}
	f.Fuzz(func(t *testing.T, body []byte, tailLength uint32) {
		body = bytes.Clone(body)
		repair(body, segmentID(1).Random)
		size := uint64(len(body))
		ref := manifest.SegmentRef{Segment: segmentID(1), TailOffset: size - uint64(tailLength), TailLength: tailLength, Size: size}
		obj := &object{body: body}
		wantDecodeError(t, Verify(t.Context(), obj.fetch, ref, nil))
		r, err := Open(t.Context(), obj.fetch, ref, NewCache(1<<20))
		if err != nil {
			wantDecodeError(t, err)
			return
		}
		for c := range manifest.CollectionID(4) {
			for _, reverse := range []bool{false, true} {
				it := r.Scan(c, shardkey.Range{Min: key(2)}, reverse)
				for it.Next(t.Context()) {
					_, _, err := r.Get(t.Context(), c, it.Row().Key)
					wantDecodeError(t, err)
				}
				wantDecodeError(t, it.Err())
			}
			_, err := r.Retries(t.Context(), c, shardkey.Range{})
			wantDecodeError(t, err)
		}
	})
}
