package s3bucket

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/granarydb/granary/chunkstore/bucket/s3wire"
	"github.com/granarydb/granary/manifest/errkind"
)

// Options say which bucket of which store, beside its name. The zero value is the whole of a
// bucket on Amazon's S3, in the region of the environment. There are no secrets among them.
type Options struct {
	Prefix   string // keys are below it; no '/' at its ends
	Region   string // "": from the environment or the AWS files
	Endpoint string // "http://host:port", for a store that is not Amazon's
	Class    string // storage class of segments; "": the bucket's
	SSE      string // encryption at rest: "", "AES256", "aws:kms", "aws:kms:dsse"
	KMSKeyID string // the key for aws:kms; "": the account's
	Profile  string // of the AWS files, for keys and region; "": as all AWS programs choose it
}

// asleep are the classes from which an object cannot be read at once.
var asleep = []types.StorageClass{types.StorageClassGlacier, types.StorageClassDeepArchive}

// check finds what no store could take.
func (o *Options) check() error {
	class, sse := types.StorageClass(o.Class), types.ServerSideEncryption(o.SSE)
	switch {
	case o.Class != "" && !slices.Contains(class.Values(), class):
		return fmt.Errorf("class %q: S3 has %s: %w", o.Class, words(class.Values()), errkind.Invalid)
	case slices.Contains(asleep, class):
		return fmt.Errorf("class %s: objects in it cannot be read at once; use GLACIER_IR: %w", o.Class, errkind.Invalid)
	case o.SSE != "" && !slices.Contains(sse.Values(), sse):
		return fmt.Errorf("sse %q: S3 has %s: %w", o.SSE, words(sse.Values()), errkind.Invalid)
	case o.KMSKeyID != "" && !strings.HasPrefix(o.SSE, "aws:kms"):
		return fmt.Errorf("kmsKeyId without sse=aws:kms: %w", errkind.Invalid)
	case o.Endpoint == "":
		return nil
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("endpoint: type http://HOST:PORT or https://HOST:PORT, without a path and without keys: %w", errkind.Invalid)
	}
	return nil
}

func words[T ~string](list []T) string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = string(w)
	}
	return strings.Join(out, ", ")
}

// url is s3://bucket/prefix with the options that are set.
func (o *Options) url(p s3wire.Place) string {
	q := url.Values{}
	for name, value := range map[string]string{"region": o.Region, "endpoint": o.Endpoint, "class": o.Class, "sse": o.SSE, "kmsKeyId": o.KMSKeyID, "profile": o.Profile} {
		if value != "" {
			q.Set(name, value)
		}
	}
	text := "s3://" + p.String()
	if len(q) > 0 {
		// Readable in a log, and still what url.Parse takes.
		text += "?" + strings.NewReplacer("%3A", ":", "%2F", "/").Replace(q.Encode())
	}
	return text
}

// Open finds keys and region and makes a bucket of it. It sends nothing to the store. Errors:
// Invalid, with what to type: bad options, no keys, no region.
func Open(ctx context.Context, name string, o *Options) (*Bucket, error) {
	b := &Bucket{}
	if o != nil {
		b.o = *o
	}
	if err := b.o.check(); err != nil {
		return nil, err
	}
	place, err := s3wire.NewPlace(name, b.o.Prefix)
	if err != nil {
		return nil, err
	}
	b.place = place
	var load []func(*config.LoadOptions) error
	if b.o.Region != "" {
		load = append(load, config.WithRegion(b.o.Region))
	}
	if b.o.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(b.o.Profile))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("AWS configuration: %w: %w", errkind.Invalid, err)
	}
	b.conns = connections(cfg)
	b.client = s3.NewFromConfig(cfg, b.configure)
	if err := b.o.check(); err != nil { // of an endpoint in the environment
		return nil, fmt.Errorf("AWS configuration: %w", err)
	}
	if b.o.Region == "" {
		return nil, fmt.Errorf("no region: add region=eu-central-1 (or whichever the bucket is in) to the URL, or set AWS_REGION: %w", errkind.Invalid)
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, fmt.Errorf("no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run with a role: %w: %w", errkind.Invalid, err)
	}
	return b, nil
}

// configure is what this package asks of the SDK. The endpoint may have come from the
// environment (AWS_ENDPOINT_URL): it counts the same.
func (b *Bucket) configure(o *s3.Options) {
	o.HTTPClient = b.conns
	o.Retryer = aws.NopRetryer{}
	o.RetryMaxAttempts = 1
	o.ContinueHeaderThresholdBytes = -1 // a round trip for each larger Put
	o.DisableLogOutputChecksumValidationSkipped = true
	if b.o.Endpoint != "" {
		o.BaseEndpoint = &b.o.Endpoint
	}
	if o.BaseEndpoint != nil {
		b.o.Endpoint = *o.BaseEndpoint
		o.UsePathStyle = true
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		if o.Region == "" {
			o.Region = "us-east-1"
		}
	}
	b.o.Region = o.Region
}

// connections makes the way to the store: with the certificates that AWS_CA_BUNDLE names, and
// without redirects.
func connections(cfg aws.Config) *http.Client {
	t := s3wire.NewTransport()
	if own, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		t = s3wire.Tune(own.GetTransport())
	}
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
