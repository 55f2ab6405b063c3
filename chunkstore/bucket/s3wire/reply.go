package s3wire

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// Range is the value of a Range header for a Get: "bytes=5-9", "bytes=5-", or "" for the
// whole object. Errors: Invalid for a negative number.
func Range(key string, o bucket.GetOptions) (string, error) {
	switch {
	case o.Offset < 0 || o.Length < 0:
		_, _, err := bucket.Slice(key, math.MaxInt64, o.Offset, o.Length)
		return "", err
	case o.Offset == 0 && o.Length == 0:
		return "", nil
	case o.Length == 0 || o.Length-1 > math.MaxInt64-o.Offset:
		return fmt.Sprintf("bytes=%d-", o.Offset), nil
	}
	return fmt.Sprintf("bytes=%d-%d", o.Offset, o.Offset+o.Length-1), nil
}

// Reply is the answer to a Get that succeeded, before its body is read.
type Reply struct {
	Body         io.Reader
	Length       int64  // of the body, bytes; -1 when the answer does not say
	ContentRange string // the header, "" when the answer is the whole object
	Tag          bucket.Tag
	Modified     time.Time
}

// Object reads the body and checks that it is what was asked for. Errors: Corrupt when the
// store sent another range; of reading, when the connection broke, which may be tried again.
func (r Reply) Object(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if r.Tag == "" {
		return bucket.Object{}, fmt.Errorf("get %s: the store answered without an ETag: is it an S3 endpoint?", key)
	}
	from, size, err := r.extent(key)
	if err != nil {
		return bucket.Object{}, err
	}
	body, err := readAll(r.Body, r.Length)
	if err != nil {
		return bucket.Object{}, Failure{Verb: "get", Key: key, Cause: err}.OfRead(ctx)
	}
	if size < 0 {
		size = int64(len(body))
	}
	wantFrom, wantTo, err := bucket.Slice(key, size, o.Offset, o.Length)
	if err != nil {
		return bucket.Object{}, err
	}
	if to := from + int64(len(body)); from != wantFrom || to != wantTo {
		return bucket.Object{}, fmt.Errorf("get %s: the store sent bytes [%d,%d) of %d, asked for [%d,%d): %w",
			key, from, to, size, wantFrom, wantTo, errkind.Corrupt)
	}
	return bucket.Object{Body: body, Attrs: bucket.Attrs{Key: key, Size: size, Tag: r.Tag, ModifiedMillis: Millis(r.Modified)}}, nil
}

// Cut cuts a whole object to a range that begins with its first byte: one that was empty
// when the range was asked for may not be any more.
func Cut(obj bucket.Object, o bucket.GetOptions) bucket.Object {
	obj.Body = obj.Body[:min(int64(len(obj.Body)), o.Length)]
	return obj
}

// extent is where the body begins in the object and the object's size, -1 when that is the
// body's. The header is "bytes 5-9/10".
func (r Reply) extent(key string) (from, size int64, err error) {
	if r.ContentRange == "" {
		return 0, r.Length, nil
	}
	span, total, _ := strings.Cut(strings.TrimPrefix(r.ContentRange, "bytes "), "/")
	first, _, _ := strings.Cut(span, "-")
	if from, err = strconv.ParseInt(first, 10, 64); err == nil {
		size, err = strconv.ParseInt(total, 10, 64)
	}
	if err != nil || from < 0 || size < 0 {
		return 0, 0, fmt.Errorf("get %s: Content-Range %q: %w", key, r.ContentRange, errkind.Corrupt)
	}
	return from, size, nil
}

// readAll reads a body of a known length into a slice of that length.
func readAll(r io.Reader, length int64) ([]byte, error) {
	switch {
	case length > PutBytesMax:
		return nil, fmt.Errorf("%w: %d bytes announced, at most %d", errkind.Corrupt, length, int64(PutBytesMax))
	case length < 0:
		return io.ReadAll(r)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, fmt.Errorf("body of %d bytes: %w", length, err)
	}
	return body, nil
}
