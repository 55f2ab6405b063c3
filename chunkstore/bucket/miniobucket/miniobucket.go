// Package miniobucket is a bucket on a MinIO server, or on another store that speaks S3,
// through MinIO's own client.
//
//	minio://HOST:PORT/BUCKET/PREFIX?tls=true&region=eu-central-1
//
// It does what package s3bucket does, with another client: two that agree on what a store
// says are a check on both. It knows no AWS: one host, path-style requests, keys from the
// environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else
// MINIO_ROOT_USER, MINIO_ROOT_PASSWORD) or from the shared AWS credentials file.
//
// # Requests
//
// Each verb is one request, and no request is sent twice: the client's retries are off. (It
// still waits up to 200 ms after an answer that it would have tried again.) A Put is one PUT,
// however large: in parts, this client leaves If-Match and If-None-Match away without a word.
// Its body goes out as it is, signed by its SHA-256: in the client's usual signed chunks, a
// server that refuses a condition early may take what is left of the body for a request.
// The region is never looked up, which would be a request more. A ranged Get of an empty
// object is two requests, since S3 answers the first with 416.
//
// A crash leaves nothing here: an object is there whole or not at all.
package miniobucket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3wire"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/minio/minio-go/v7"
)

// Bucket is a bucket on a MinIO server.
type Bucket struct {
	core      minio.Core
	transport *http.Transport
	place     s3wire.Place
	url       string
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
	var in minio.GetObjectOptions
	if span != "" {
		in.Set("Range", span)
	}
	if o.IfNoneMatch != "" {
		in.Set("If-None-Match", s3wire.ETag(o.IfNoneMatch))
	}
	body, _, header, err := b.core.GetObject(ctx, b.place.Bucket, at, in)
	if err != nil {
		f := b.failure("get", key, err)
		if f.EmptyRange(o) {
			obj, err := b.Get(ctx, key, bucket.GetOptions{IfNoneMatch: o.IfNoneMatch})
			return s3wire.Cut(obj, o), err
		}
		return bucket.Object{}, f.OfRead(ctx)
	}
	defer body.Close()
	reply := s3wire.Reply{Body: body, Length: -1, ContentRange: header.Get("Content-Range"), Tag: s3wire.Tag(header.Get("ETag"))}
	if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		reply.Length = n
	}
	reply.Modified, _ = http.ParseTime(header.Get("Last-Modified"))
	return reply.Object(ctx, key, o)
}

// Head implements bucket.Bucket.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	at, err := b.place.Key(key)
	if err != nil {
		return bucket.Attrs{}, err
	}
	out, err := b.core.StatObject(ctx, b.place.Bucket, at, minio.StatObjectOptions{})
	if err != nil {
		return bucket.Attrs{}, b.failure("head", key, err).OfRead(ctx)
	}
	return b.attrs(key, out), nil
}

func (b *Bucket) attrs(key string, o minio.ObjectInfo) bucket.Attrs {
	return bucket.Attrs{Key: key, Size: o.Size, Tag: s3wire.Tag(o.ETag), ModifiedMillis: s3wire.Millis(o.LastModified)}
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
	sum := sha256.Sum256(body)
	in := minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true}
	if c.Absent() {
		in.SetMatchETagExcept("*")
	} else if c.Match() != "" {
		in.SetMatchETag(string(c.Match()))
	}
	watched, sent := s3wire.Watch(ctx)
	out, err := b.core.PutObject(watched, b.place.Bucket, at, upload, int64(len(body)), "", hex.EncodeToString(sum[:]), in)
	if err != nil {
		return "", b.failure("put", key, err).OfWrite(ctx, c, sent.Load())
	}
	return s3wire.PutTag(key, out.ETag)
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
	if err := b.core.RemoveObject(watched, b.place.Bucket, at, minio.RemoveObjectOptions{}); err != nil {
		return b.failure("delete", key, err).OfWrite(ctx, bucket.Condition{}, sent.Load())
	}
	return nil
}

// List implements bucket.Bucket. A page has at most 999 keys: the client does not tell
// whether more follow, so one key more than the page is asked for.
func (b *Bucket) List(ctx context.Context, prefix, after string, max int) (page []bucket.Attrs, more bool, err error) {
	if max <= 0 || max >= s3wire.PageMax {
		max = s3wire.PageMax - 1
	}
	under, start := b.place.Start(prefix, after)
	in := minio.ListObjectsOptions{Prefix: under, StartAfter: start, MaxKeys: max + 1, Recursive: true, FetchOwner: new(bool)}
	for o := range b.core.ListObjectsIter(ctx, b.place.Bucket, in) {
		if o.Err != nil {
			return nil, false, b.failure("list", prefix, o.Err).OfRead(ctx)
		}
		if len(page) == max {
			return page, true, nil
		}
		page = append(page, b.attrs(b.place.Own(o.Key), o))
	}
	if ctx.Err() != nil { // the client ends without a word
		return nil, false, fmt.Errorf("list %s: %w", prefix, context.Cause(ctx))
	}
	return page, false, nil
}

// failure takes the client's error apart.
func (b *Bucket) failure(verb, key string, err error) s3wire.Failure {
	f := s3wire.Failure{Verb: verb, Key: key, Bucket: b.place.Bucket, Cause: err}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		return f
	}
	f.Status, f.Region = answer.StatusCode, answer.Region
	// Without an error body the client makes up a code from the status; but MinIO sends a
	// Head's code in a header.
	if answer.XMLName.Local != "" || verb == "head" && answer.Code == "NoSuchBucket" {
		f.Code, f.Message = answer.Code, answer.Message
	}
	return f
}

// String implements bucket.Bucket: the URL that opens it.
func (b *Bucket) String() string { return b.url }

// Close implements bucket.Bucket: it lets go of the idle connections.
func (b *Bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// Options say more of the store. The zero value is a whole bucket, in the region us-east-1,
// over TLS. There are no secrets among them.
type Options struct {
	Prefix string // keys are below it; no '/' at its ends
	Region string // "": us-east-1, which servers of one's own take
	Plain  bool   // HTTP without TLS
}

// Open makes a bucket of a host ("host" or "host:port") and a bucket's name. It sends nothing
// to the store. Errors: Invalid, with what to type: a bad name, no keys.
func Open(host, name string, o *Options) (*Bucket, error) {
	if o == nil {
		o = &Options{}
	}
	place, err := s3wire.NewPlace(name, o.Prefix)
	if err != nil {
		return nil, err
	}
	keys, err := findKeys()
	if err != nil {
		return nil, err
	}
	region := o.Region
	if region == "" {
		region = "us-east-1"
	}
	b := &Bucket{place: place, transport: s3wire.NewTransport(), url: address(host, place, o)}
	core, err := minio.NewCore(host, &minio.Options{
		Creds: keys, Secure: !o.Plain, Transport: b.transport, Region: region,
		BucketLookup: minio.BucketLookupPath, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("host %q: %w: %w", host, errkind.Invalid, err)
	}
	b.core = *core
	return b, nil
}

func address(host string, p s3wire.Place, o *Options) string {
	q := url.Values{"tls": {strconv.FormatBool(!o.Plain)}}
	if o.Region != "" {
		q.Set("region", o.Region)
	}
	return "minio://" + host + "/" + p.String() + "?" + q.Encode()
}
