package s3wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// PutBytesMax is the largest body of one PUT, in bytes: 5 GiB, S3's limit. Larger objects
// need parts, whose last step several stores do not make conditional.
const PutBytesMax = 5 << 30

// CheckPut is what a Put asks before it sends anything. Errors: Throttled with the context's
// cause when that has ended; Invalid for a body beyond PutBytesMax.
func CheckPut(ctx context.Context, key string, body []byte) error {
	if ctx.Err() != nil {
		return fmt.Errorf("put %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	if int64(len(body)) > PutBytesMax {
		return fmt.Errorf("put %s: %d bytes, S3 takes at most %d in one PUT: %w", key, len(body), int64(PutBytesMax), errkind.Invalid)
	}
	return nil
}

// PutTag is the tag of a Put that succeeded. Errors: UnknownOutcome when the answer has none,
// as one that hides an error behind its 200.
func PutTag(key, etag string) (bucket.Tag, error) {
	if tag := Tag(etag); tag != "" {
		return tag, nil
	}
	return "", fmt.Errorf("put %s: the store answered 200 without an ETag: %w", key, errkind.UnknownOutcome)
}

// Upload is a Put's body as its SDK reads it. net/http may go on reading a body after the
// request has failed, in a goroutine of its own, while the caller of Put is free to use the
// bytes for something else: the store would get a mixture, and a checksum computed on the
// way would vouch for it. So the driver ends the Upload before Put returns, and a read that
// comes later fails, which breaks that upload off.
//
// It has no WriteTo and no ReadAt on purpose: through these a reader could hold the bytes
// themselves.
type Upload struct {
	mu    sync.Mutex // held while bytes are copied, never while a connection waits
	body  []byte
	at    int64
	ended bool
}

// NewUpload makes a body. The caller must call End before it gives the bytes away.
func NewUpload(body []byte) *Upload { return &Upload{body: body} }

var errEnded = errors.New("the put has returned")

// Read implements io.Reader.
func (u *Upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.ended:
		return 0, errEnded
	case u.at == int64(len(u.body)):
		return 0, io.EOF
	}
	n := copy(p, u.body[u.at:])
	u.at += int64(n)
	return n, nil
}

// Seek implements io.Seeker: a signature reads the body once before it is sent.
func (u *Upload) Seek(offset int64, whence int) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += u.at
	case io.SeekEnd:
		offset += int64(len(u.body))
	}
	if offset < 0 || offset > int64(len(u.body)) {
		return 0, errors.New("seek outside the body")
	}
	u.at = offset
	return offset, nil
}

// End lets go of the bytes.
func (u *Upload) End() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.body, u.at, u.ended = nil, 0, true
}
