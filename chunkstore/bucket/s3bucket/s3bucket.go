// Package s3bucket is a bucket on Amazon S3, or on a store that speaks its protocol, through
// the AWS SDK.
//
//	s3://BUCKET/PREFIX?region=eu-central-1&class=INTELLIGENT_TIERING&sse=aws:kms&kmsKeyId=ID
//	s3://BUCKET/PREFIX?endpoint=https://store.example:9000
//
// # Requests
//
// Each verb is one request, and no request is sent twice: the SDK's retries are off, and so
// are redirects. A conditional Put that was sent again would meet its own first effect and
// report Conflict for a write that happened. What may be sent again is sent again by
// layer.Retry, above this package. (net/http repeats a request on a kept connection that
// turns out to be closed: a Get or Head, or one of which nothing had been written.) The one
// exception is a ranged Get of an empty object, which S3 answers with 416: it is asked for
// again without the range.
//
// A Put is one PUT of at most 5 GiB, never an upload in parts: the last step of those is not
// conditional everywhere.
//
// # Settings
//
// Region and keys come from where all AWS programs have them: the environment, the shared
// configuration files, the role of the function, task or machine. profile= names a profile of
// these files for one store, before anything in the environment. With an endpoint of its
// own, a store gets path-style requests (http://host/bucket/key), the region us-east-1 unless
// one is given, and no checksums that only Amazon's knows.
//
// The storage class is for segments (seg/), the bytes that stay: a log object or a root that
// is replaced twice a second would pay for a month in most of the cheaper classes.
//
// A crash leaves nothing here: an object is there whole or not at all.
package s3bucket

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3wire"
	"github.com/granarydb/granary/manifest/errkind"
)

// Bucket is a bucket on S3.
type Bucket struct {
	client *s3.Client
	conns  *http.Client
	place  s3wire.Place
	o      Options
}

var _ bucket.Bucket = (*Bucket)(nil)

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	at, err := b.place.Key(key)
	if err != nil {
		return bucket.Object{}, err
	}
	span, err := s3wire.Range(key, o)
	if err != nil {
		return bucket.Object{}, err
	}
	in := &s3.GetObjectInput{Bucket: &b.place.Bucket, Key: &at}
	if span != "" {
		in.Range = &span
	}
	if o.IfNoneMatch != "" {
		in.IfNoneMatch = aws.String(s3wire.ETag(o.IfNoneMatch))
	}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		f := b.failure("get", key, err)
		if f.EmptyRange(o) {
			obj, err := b.Get(ctx, key, bucket.GetOptions{IfNoneMatch: o.IfNoneMatch})
			return s3wire.Cut(obj, o), err
		}
		return bucket.Object{}, f.OfRead(ctx)
	}
	defer out.Body.Close()
	reply := s3wire.Reply{
		Body: out.Body, Length: -1, ContentRange: aws.ToString(out.ContentRange),
		Tag: s3wire.Tag(aws.ToString(out.ETag)), Modified: aws.ToTime(out.LastModified),
	}
	if out.ContentLength != nil {
		reply.Length = *out.ContentLength
	}
	return reply.Object(ctx, key, o)
}

// Head implements bucket.Bucket.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	at, err := b.place.Key(key)
	if err != nil {
		return bucket.Attrs{}, err
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.place.Bucket, Key: &at})
	if err != nil {
		return bucket.Attrs{}, b.failure("head", key, err).OfRead(ctx)
	}
	return bucket.Attrs{
		Key: key, Size: aws.ToInt64(out.ContentLength),
		Tag: s3wire.Tag(aws.ToString(out.ETag)), ModifiedMillis: s3wire.Millis(aws.ToTime(out.LastModified)),
	}, nil
}

// Put implements bucket.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	at, err := b.place.Key(key)
	if err == nil {
		err = s3wire.CheckPut(ctx, key, body)
	}
	if err != nil {
		return "", err
	}
	upload := s3wire.NewUpload(body)
	defer upload.End()
	in := &s3.PutObjectInput{Bucket: &b.place.Bucket, Key: &at, Body: upload, ContentLength: aws.Int64(int64(len(body)))}
	b.o.apply(in, key)
	if c.Absent() {
		in.IfNoneMatch = aws.String("*")
	} else if c.Match() != "" {
		in.IfMatch = aws.String(s3wire.ETag(c.Match()))
	}
	watched, sent := s3wire.Watch(ctx)
	out, err := b.client.PutObject(watched, in)
	if err != nil {
		return "", b.failure("put", key, err).OfWrite(ctx, c, sent.Load())
	}
	return s3wire.PutTag(key, aws.ToString(out.ETag))
}

// apply sets what the options ask of an object.
func (o *Options) apply(in *s3.PutObjectInput, key string) {
	if strings.HasPrefix(key, "seg/") {
		in.StorageClass = types.StorageClass(o.Class)
	}
	in.ServerSideEncryption = types.ServerSideEncryption(o.SSE)
	if o.KMSKeyID != "" {
		in.SSEKMSKeyId = &o.KMSKeyID
	}
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	at, err := b.place.Key(key)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("delete %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	watched, sent := s3wire.Watch(ctx)
	if _, err := b.client.DeleteObject(watched, &s3.DeleteObjectInput{Bucket: &b.place.Bucket, Key: &at}); err != nil {
		return b.failure("delete", key, err).OfWrite(ctx, bucket.Condition{}, sent.Load())
	}
	return nil
}

// List implements bucket.Bucket. A page has at most 1000 keys.
func (b *Bucket) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	under, start := b.place.Start(prefix, after)
	in := &s3.ListObjectsV2Input{Bucket: &b.place.Bucket, Prefix: &under, EncodingType: types.EncodingTypeUrl}
	if start != "" {
		in.StartAfter = &start
	}
	if max > 0 {
		in.MaxKeys = aws.Int32(int32(min(max, s3wire.PageMax)))
	}
	out, err := b.client.ListObjectsV2(ctx, in)
	if err != nil {
		return nil, false, b.failure("list", prefix, err).OfRead(ctx)
	}
	more := aws.ToBool(out.IsTruncated)
	if more && len(out.Contents) == 0 {
		return nil, false, fmt.Errorf("list %s: the store sent an empty page and says that more follows", prefix)
	}
	page := make([]bucket.Attrs, 0, len(out.Contents))
	for _, o := range out.Contents {
		name := aws.ToString(o.Key)
		if out.EncodingType == types.EncodingTypeUrl {
			if name, err = url.QueryUnescape(name); err != nil {
				return nil, false, fmt.Errorf("list %s: %w: key %w", prefix, errkind.Corrupt, err)
			}
		}
		page = append(page, bucket.Attrs{
			Key: b.place.Own(name), Size: aws.ToInt64(o.Size),
			Tag: s3wire.Tag(aws.ToString(o.ETag)), ModifiedMillis: s3wire.Millis(aws.ToTime(o.LastModified)),
		})
	}
	return page, more, nil
}

// String implements bucket.Bucket: the URL that opens it.
func (b *Bucket) String() string { return b.o.url(b.place) }

// Close implements bucket.Bucket: it lets go of the idle connections.
func (b *Bucket) Close() error {
	b.conns.CloseIdleConnections()
	return nil
}
