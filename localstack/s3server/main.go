// Command s3server is a real S3 server on one directory, for the tests of the S3 drivers: the
// versitygw gateway, with nothing around it. It is a module of its own, so that what it
// depends on stays out of Granary.
//
//	go build -o /tmp/s3server . && export GRANARY_S3SERVER=/tmp/s3server
//	ROOT_ACCESS_KEY=k ROOT_SECRET_KEY=s /tmp/s3server --listen 127.0.0.1:7070 --dir DIR --bucket NAME
//
// It makes the bucket if it is missing, answers /health once it serves, and ends with a
// signal. It survives kill -9, not a loss of power: it does not sync files.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7070", "address to serve on")
	dir := flag.String("dir", "", "directory that holds the buckets; its file system needs extended attributes")
	bucket := flag.String("bucket", "", "bucket to make, if it is missing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *dir, *bucket); err != nil {
		fmt.Fprintln(os.Stderr, "s3server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, dir, bucket string) error {
	owner := auth.Account{Access: os.Getenv("ROOT_ACCESS_KEY"), Secret: os.Getenv("ROOT_SECRET_KEY"), Role: auth.RoleAdmin}
	if owner.Access == "" || owner.Secret == "" || dir == "" {
		return errors.New("set ROOT_ACCESS_KEY, ROOT_SECRET_KEY and --dir")
	}
	// Attributes beside the files lose updates; without them there are no ETags.
	if err := (meta.XattrMeta{}).Test(dir); err != nil {
		return fmt.Errorf("%s: extended attributes: %w", dir, err)
	}
	files, err := posix.New(dir, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 256, CopyObjectThreshold: 5 << 30})
	if err != nil {
		return err
	}
	if bucket != "" {
		if err := makeBucket(ctx, files, owner, dir, bucket); err != nil {
			return fmt.Errorf("bucket %s: %w", bucket, err)
		}
	}
	return embedgw.RunVersityGW(ctx, files, &embedgw.Config{
		RootUserAccess: owner.Access, RootUserSecret: owner.Secret, Ports: []string{listen},
		MaxConnections: 4096, MaxRequests: 2048, MultipartMaxParts: 10000,
		Quiet: true, KeepAlive: true, HealthPath: "/health",
	})
}

func makeBucket(ctx context.Context, files *posix.Posix, owner auth.Account, dir, name string) error {
	if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	acl, err := json.Marshal(auth.ACL{Owner: owner.Access})
	if err != nil {
		return err
	}
	//lint:ignore SA1029 the gateway looks for the owner under this key
	ctx = context.WithValue(ctx, "bucket-owner", owner)
	return files.CreateBucket(ctx, &s3.CreateBucketInput{
		Bucket: &name, ObjectOwnership: types.ObjectOwnershipBucketOwnerEnforced,
		CreateBucketConfiguration: &types.CreateBucketConfiguration{},
	}, acl)
}
