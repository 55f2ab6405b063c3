package open

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/miniobucket"
	"github.com/granarydb/granary/chunkstore/bucket/s3bucket"
)

// openS3 opens s3://BUCKET/PREFIX?region=&endpoint=&class=&sse=&kmsKeyId=&profile=.
func openS3(ctx context.Context, text string) (bucket.Bucket, error) {
	u, q, err := parse(text, "s3://BUCKET/PREFIX", "region", "endpoint", "class", "sse", "kmsKeyId", "profile")
	if err != nil {
		return nil, err
	}
	if u.Port() != "" {
		return nil, refuse(text, "a bucket has no port; type s3://BUCKET/PREFIX?endpoint=http://"+u.Host+" or minio://"+u.Host+"/BUCKET/PREFIX")
	}
	b, err := s3bucket.Open(ctx, u.Host, &s3bucket.Options{
		Prefix: strings.Trim(u.Path, "/"), Region: q.Get("region"), Endpoint: q.Get("endpoint"),
		Class: q.Get("class"), SSE: q.Get("sse"), KMSKeyID: q.Get("kmsKeyId"), Profile: q.Get("profile"),
	})
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", redact(text), err)
	}
	return b, nil
}

// openMinio opens minio://HOST:PORT/BUCKET/PREFIX?tls=&region=. TLS is the default except on
// this machine itself.
func openMinio(text string) (bucket.Bucket, error) {
	u, q, err := parse(text, "minio://HOST:PORT/BUCKET/PREFIX", "tls", "region")
	if err != nil {
		return nil, err
	}
	name, prefix, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if u.Host == "" || name == "" {
		return nil, refuse(text, "it names no host or no bucket; type minio://HOST:9000/BUCKET/PREFIX")
	}
	o := &miniobucket.Options{Prefix: prefix, Region: q.Get("region"), Plain: loopback(u.Hostname())}
	if tls := q.Get("tls"); tls != "" {
		secure, err := strconv.ParseBool(tls)
		if err != nil {
			return nil, refuse(text, fmt.Sprintf("tls=%q; type tls=true or tls=false", tls))
		}
		o.Plain = !secure
	}
	b, err := miniobucket.Open(u.Host, name, o)
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", redact(text), err)
	}
	return b, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// parse takes a URL apart and refuses what form does not have: user names and passwords, a
// fragment, parameters that are not known or come twice.
func parse(text, form string, known ...string) (*url.URL, url.Values, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	authority, _, _ := strings.Cut(rest, "?")
	if strings.Contains(authority, "@") {
		return nil, nil, refuse(text, "keys in a URL end up in shell histories, process lists and logs; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and type "+form)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Fragment != "" || !strings.HasPrefix(rest, "//") {
		return nil, nil, refuse(text, "it is no "+scheme+" URL; type "+form)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, refuse(text, "its parameters cannot be read; type "+form+"?"+known[0]+"=VALUE")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(known, name) {
			return nil, nil, refuse(text, fmt.Sprintf("unknown parameter %q; known are %s", name, strings.Join(known, ", ")))
		}
		if len(q[name]) > 1 {
			return nil, nil, refuse(text, fmt.Sprintf("parameter %q comes %d times", name, len(q[name])))
		}
	}
	return u, q, nil
}

// redact takes out what may be a key: all between "//" and the last '@', which may be in an
// endpoint's URL.
func redact(text string) string {
	from, to := strings.Index(text, "//"), strings.LastIndexByte(text, '@')
	switch {
	case from >= 0 && strings.Contains(text, "%40"): // an '@' too, and who knows what else is written so
		return text[:from+2] + "..."
	case from < 0 || to < from:
		return text
	}
	return text[:from+2] + "..." + text[to:]
}
