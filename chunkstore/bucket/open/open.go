// Package open makes a bucket from the URL that a user typed (`--store URL`). It is the one
// place that knows all drivers; everything else takes a bucket.Bucket.
//
//	dir:PATH   a directory on this machine; several processes may share it
//	mem:       memory of this process, gone when it ends
//
// A URL names a store and never creates anything but the directory of dir:. Whether the
// store keeps its promises is for bucket.Probe to say.
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
const schemes = "dir:./granary-data (a directory), mem: (memory, for tries); s3://BUCKET/PREFIX comes with a later version"

// URL opens the store that a URL names. Every call with mem: is a new, empty bucket. Errors:
// Invalid, with what to type instead, and those of opening the directory.
func URL(_ context.Context, url string, h host.Host) (bucket.Bucket, error) {
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
	case "s3", "s3a", "http", "https", "minio", "gs":
		return nil, refuse(url, "this version has no driver for it")
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
	return fmt.Errorf("store %q: %s. Stores are: %s: %w", url, why, schemes, errkind.Invalid)
}
