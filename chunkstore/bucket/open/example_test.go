package open_test

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/manifest/host"
)

// A URL that cannot work says what to type.
func ExampleURL() {
	_, err := open.URL(context.Background(), "minio://127.0.0.1:9000/data?ssl=false", host.System())
	fmt.Println(err)
	// Output:
	// store "minio://127.0.0.1:9000/data?ssl=false": unknown parameter "ssl"; known are tls, region. Stores are: dir:./granary-data (a directory), mem: (memory, for tries), s3://BUCKET/PREFIX?region=eu-central-1, minio://HOST:9000/BUCKET/PREFIX: invalid
}
