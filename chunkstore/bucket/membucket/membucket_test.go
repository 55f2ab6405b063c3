package membucket_test

import (
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/buckettest"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
)

func TestConforms(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return membucket.New() })
}
