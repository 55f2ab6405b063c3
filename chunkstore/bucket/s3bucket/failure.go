package s3bucket

import (
	"errors"
	"net/http"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/granarydb/granary/chunkstore/bucket/s3wire"
)

// coded is what the SDK's errors with an S3 code are (smithy.APIError).
type coded interface {
	ErrorCode() string
	ErrorMessage() string
}

// failure takes the SDK's error apart.
func (b *Bucket) failure(verb, key string, err error) s3wire.Failure {
	f := s3wire.Failure{Verb: verb, Key: key, Bucket: b.place.Bucket, Cause: err}
	if answer := (*awshttp.ResponseError)(nil); errors.As(err, &answer) && answer.Response != nil {
		f.Status = answer.HTTPStatusCode()
		f.Region = answer.Response.Header.Get("x-amz-bucket-region")
	}
	if api := coded(nil); errors.As(err, &api) && f.Status != 0 && !invented(f.Status, api.ErrorCode()) {
		f.Code, f.Message = api.ErrorCode(), api.ErrorMessage()
	}
	return f
}

// invented reports whether a code is the SDK's own, for an answer without an error body: a
// proxy's, or a Head's.
func invented(status int, code string) bool {
	return code == "UnknownError" || code == strings.ReplaceAll(http.StatusText(status), " ", "")
}
