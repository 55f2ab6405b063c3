package s3wire

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// Failure is a request that did not succeed, as an SDK reports it.
type Failure struct {
	Verb, Key string // of the request, for the text
	Bucket    string
	Status    int    // HTTP's; 0 when no answer came
	Code      string // S3's, "" when the answer had no error body, whatever an SDK makes of that
	Message   string
	Region    string // where the bucket is, when the answer says so
	Cause     error  // the SDK's error; for the text when no answer came
}

// OfRead is the error of a Get, Head or List. Errors: NotFound, NotModified; Invalid for a
// range beyond the end and for what only a person can put right (names, keys, region, with
// what to type); no kind when another attempt may succeed.
func (f Failure) OfRead(ctx context.Context) error {
	switch {
	case f.Status == http.StatusNotModified:
		return fmt.Errorf("%s %s: %w", f.Verb, f.Key, errkind.NotModified)
	case f.missing():
		return fmt.Errorf("%s %s: %w", f.Verb, f.Key, errkind.NotFound)
	case f.Status == http.StatusRequestedRangeNotSatisfiable, f.misconfigured():
		return f.wrap(ctx, errkind.Invalid)
	}
	return f.wrap(ctx)
}

// OfWrite is the error of a Put or Delete; sent tells whether it got a connection. It is nil
// for the Delete of what is not there. Errors: Conflict, Throttled, UnknownOutcome, by the
// table of the package doc; a refusal that only a person can put right is Invalid as well as
// Throttled.
func (f Failure) OfWrite(ctx context.Context, c bucket.Condition, sent bool) error {
	switch {
	case f.missing() && f.Verb == "delete":
		return nil
	case f.Status == http.StatusPreconditionFailed && c != bucket.Condition{}, f.missing() && c.Match() != "":
		return fmt.Errorf("%s %s: %w", f.Verb, f.Key, errkind.Conflict)
	case !sent:
		return f.wrap(ctx, errkind.Throttled)
	case f.refused() && f.misconfigured():
		return f.wrap(ctx, errkind.Throttled, errkind.Invalid)
	case f.refused():
		return f.wrap(ctx, errkind.Throttled)
	}
	return f.wrap(ctx, errkind.UnknownOutcome)
}

// EmptyRange reports whether the store refused a range from the first byte on: the object is
// empty, and its empty whole is the answer.
func (f Failure) EmptyRange(o bucket.GetOptions) bool {
	return f.Status == http.StatusRequestedRangeNotSatisfiable && o.Offset == 0 && o.Length > 0
}

// missing reports whether the store said that there is no such object. A Head has no error
// body to say so in.
func (f Failure) missing() bool {
	return f.Status == http.StatusNotFound && (f.Code == "NoSuchKey" || f.Verb == "head" && f.Code == "")
}

// refusals are the codes with which a store says that it has not begun.
var refusals = []string{"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequests"}

// refused reports whether the write has had no effect and will have none.
func (f Failure) refused() bool {
	switch f.Status {
	case http.StatusTooManyRequests, http.StatusNotImplemented, http.StatusMovedPermanently, http.StatusTemporaryRedirect:
		return true
	case http.StatusServiceUnavailable:
		return slices.Contains(refusals, f.Code)
	case http.StatusConflict:
		return f.Code == "ConditionalRequestConflict"
	case http.StatusRequestTimeout, http.StatusPreconditionFailed:
		return false
	}
	return f.Status >= 300 && f.Status < 500 && f.Code != "" && f.Code != "RequestTimeout"
}

// hints say what to type when S3 says a code. Codes with a hint that begins with '!' may pass
// by themselves: a new token, a new right.
var hints = map[string]string{
	"NoSuchBucket":                       "there is no such bucket; make it with: aws s3 mb s3://{bucket} (with --endpoint-url for a store of your own), or name another one",
	"InvalidBucketName":                  "name another bucket",
	"InvalidAccessKeyId":                 "the store does not know this access key; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a pair of this store",
	"SignatureDoesNotMatch":              "the secret does not belong to the access key; set AWS_SECRET_ACCESS_KEY again",
	"AuthorizationHeaderMalformed":       "the bucket is in another region; add region={region} to the URL",
	"PermanentRedirect":                  "the bucket is in another region; add region={region} to the URL",
	"IllegalLocationConstraintException": "the bucket is in another region; add region={region} to the URL",
	"InvalidStorageClass":                "the store has no such storage class; leave class= out of the URL",
	"NotImplemented":                     "the store lacks something that Granary needs; use one with conditional writes (If-Match, If-None-Match)",
	"AccessDenied":                       "!the key needs s3:GetObject, s3:PutObject and s3:DeleteObject on {bucket}/*, and s3:ListBucket on {bucket} (without it the store does not tell a missing object from a forbidden one)",
	"ExpiredToken":                       "!the session has ended; log in again or set a new AWS_SESSION_TOKEN",
	"RequestTimeTooSkewed":               "!set the clock of this machine",
}

// code is S3's code, or the one that a status without a body stands for.
func (f Failure) code() string {
	switch {
	case f.Code != "":
		return f.Code
	case f.Status == http.StatusMovedPermanently:
		return "PermanentRedirect"
	case f.Status == http.StatusForbidden:
		return "AccessDenied"
	case f.Status == http.StatusNotImplemented:
		return "NotImplemented"
	}
	return ""
}

func (f Failure) misconfigured() bool {
	hint := hints[f.code()]
	return hint != "" && hint[0] != '!'
}

// wrap makes the text: verb, key, kinds, what the store said, what to type.
func (f Failure) wrap(ctx context.Context, kinds ...error) error {
	err := fmt.Errorf("%s %s: %w", f.Verb, f.Key, f.said())
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	for _, k := range slices.Backward(kinds) {
		err = kinded{k, err}
	}
	return err
}

// kinded is an error of a kind, whose text begins with the verb all the same.
type kinded struct{ kind, err error }

func (k kinded) Error() string   { return k.err.Error() + " (" + k.kind.Error() + ")" }
func (k kinded) Unwrap() []error { return []error{k.kind, k.err} }

func (f Failure) said() error {
	if f.Status == 0 {
		return f.silent()
	}
	text := strings.TrimSpace(fmt.Sprintf("the store answered %d %s", f.Status, f.Code))
	if f.Message != "" {
		text += ": " + strings.TrimRight(f.Message, ". \n")
	}
	if hint := strings.TrimPrefix(hints[f.code()], "!"); hint != "" {
		region := f.Region
		if region == "" {
			region = "THE-BUCKET'S-REGION"
		}
		text += ". " + strings.NewReplacer("{bucket}", f.Bucket, "{region}", region).Replace(hint)
	}
	return errors.New(text)
}

// silent is the cause of a missing answer without what the SDKs put around it.
func (f Failure) silent() error {
	cause := f.Cause
	if u := (*url.Error)(nil); errors.As(cause, &u) {
		cause = u.Err
	}
	if cause == nil {
		return errors.New("the store did not answer as S3 does")
	}
	if strings.Contains(cause.Error(), "HTTP response to HTTPS client") {
		return fmt.Errorf("%w. The store speaks plain HTTP: use an endpoint=http://... or tls=false", cause)
	}
	return cause
}
