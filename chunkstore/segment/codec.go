package segment

import (
	"runtime"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Codec is how the payload of a frame is compressed, as stored.
type Codec byte

const (
	// Raw is not compressed.
	Raw Codec = 0
	// S2 is fast: fresh segments, the WAL.
	S2 Codec = 1
	// Zstd is small: compacted segments.
	Zstd Codec = 2
)

// The zstd coders are shared by the process: EncodeAll and DecodeAll are safe for
// concurrent use. They are made and warmed at start, not on first use, because they hold
// channels: made inside a testing/synctest bubble they could not be used outside it.
// coders bounds how many goroutines compress or decompress zstd at the same time; more wait.
var (
	coders      = min(runtime.GOMAXPROCS(0), 8)
	zstdEncoder = newZstdEncoder()
	zstdDecoder = newZstdDecoder()
)

func newZstdEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithEncoderConcurrency(coders), zstd.WithWindowSize(1<<20))
	if err != nil {
		panic(err) // the options are constants
	}
	e.EncodeAll([]byte{0}, nil)
	return e
}

// newZstdDecoder caps memory three times: by the window, by the largest frame of this
// format, and by the capacity of the destination, which is the frame's own ulen.
func newZstdDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(coders), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(32<<20), zstd.WithDecoderMaxMemory(maxTailBytes), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err)
	}
	return d
}

// Compress appends src to dst, compressed, and returns the codec that it used: c, or Raw
// when c does not make src at least a thirty-second smaller.
func Compress(dst []byte, c Codec, src []byte) ([]byte, Codec) {
	start := len(dst)
	switch c {
	case S2:
		dst = grow(dst, s2.MaxEncodedLen(len(src)))
		dst = dst[:start+len(s2.Encode(dst[start:cap(dst)], src))]
	case Zstd:
		dst = zstdEncoder.EncodeAll(src, dst)
	}
	if c == Raw || len(dst)-start > len(src)-len(src)/32 {
		return append(dst[:start], src...), Raw
	}
	return dst, c
}

// Decompress returns the ulen bytes that src holds. The caller has bounded ulen and
// verified a checksum over src; the result aliases src when c is Raw. Whatever src is, no
// more than ulen bytes (and a little) and the decoder's own bounded state are allocated, and a panic of
// the decoder is an error. Errors: Corrupt; Invalid for a codec that this program does not
// know.
func Decompress(c Codec, src []byte, ulen int) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, corruptf("decoder: %v", p)
		}
	}()
	switch c {
	case Raw:
		out = src
	case S2:
		if n, err := s2.DecodedLen(src); err != nil || n != ulen {
			return nil, corruptf("s2 payload of %d bytes, %d expected", n, ulen)
		}
		out, err = s2.Decode(make([]byte, ulen), src)
	case Zstd:
		out, err = zstdDecoder.DecodeAll(src, make([]byte, 0, ulen+decodeSlack))
	default:
		return nil, invalidf("codec %d is not known to this program", c)
	}
	if err != nil {
		return nil, corruptf("decoder: %v", err)
	}
	if len(out) != ulen {
		return nil, corruptf("%d bytes decompressed, %d expected", len(out), ulen)
	}
	return out, nil
}

// decodeSlack is spare room behind the output, with which zstd takes its faster path.
const decodeSlack = 32

// grow makes room for n more bytes, at least doubling, so that appends stay linear.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	bigger := make([]byte, len(b), max(2*cap(b), len(b)+n))
	copy(bigger, b)
	return bigger
}
