// Package open makes a bucket from the URL that a user typed (`--store URL`). It is the one
// place that knows all drivers; everything else takes a bucket.Bucket.
//
//	dir:PATH                        a directory on this machine; several processes may share it
//	mem:                            memory of this process, gone when it ends
//	s3://BUCKET/PREFIX?...          Amazon S3, or what speaks its protocol:
//	                                region, endpoint, class, sse, kmsKeyId, profile
//	minio://HOST:PORT/BUCKET/PREFIX?...  MinIO and the like, by MinIO's client: tls, region
//
// A URL names a store and never creates anything but the directory of dir:. Whether the
// store keeps its promises is for bucket.Probe to say. A URL holds no secret: it ends up in
// shell histories, process lists and logs. Keys come from the environment or the AWS files.
package open

import (
	"context"
	"fmt"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/dirbucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// schemes is what an error lists: each with an example to copy.
const schemes = "dir:./granary-data (a directory), mem: (memory, for tries), s3://BUCKET/PREFIX?region=eu-central-1, minio://HOST:9000/BUCKET/PREFIX"

// URL opens the store that a URL names. Every call with mem: is a new, empty bucket. Errors:
// Invalid, with what to type instead, and those of opening the directory. Nothing is asked of
// a store over the network yet: a wrong bucket or region shows at the first request.
func URL(ctx context.Context, url string, h host.Host) (bucket.Bucket, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	if !ok {
		return nil, refuse(url, fmt.Sprintf("it has no scheme; for a directory type dir:%s", url))
	}
	switch scheme {
	case "dir":
		return openDir(url, rest, h)
	case "mem":
		if rest != "" {
			return nil, refuse(url, "memory has no name; type mem:")
		}
		return membucket.New(), nil
	case "s3":
		return openS3(ctx, url)
	case "minio":
		return openMinio(url)
	case "http", "https":
		return nil, refuse(url, "for a store of your own type s3://BUCKET/PREFIX?endpoint="+scheme+"://HOST:PORT")
	case "s3a", "s3n", "gs":
		return nil, refuse(url, "for Amazon S3 and stores that speak its protocol type s3://BUCKET/PREFIX")
	}
	return nil, refuse(url, fmt.Sprintf("unknown scheme %q", scheme))
}

// openDir accepts dir:PATH, and dir:///PATH as people write it from habit.
func openDir(url, path string, h host.Host) (bucket.Bucket, error) {
	if after, ok := strings.CutPrefix(path, "//"); ok {
		if !strings.HasPrefix(after, "/") {
			return nil, refuse(url, "a directory has no host name; type dir:"+after+" for a relative path or dir:/"+after)
		}
		path = after
	}
	if path == "" {
		return nil, refuse(url, "it names no directory; type dir:./granary-data")
	}
	return dirbucket.Open(path, h, nil)
}

func refuse(url, why string) error {
	return fmt.Errorf("store %q: %s. Stores are: %s: %w", redact(url), why, schemes, errkind.Invalid)
}
