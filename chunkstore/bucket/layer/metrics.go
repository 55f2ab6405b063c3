package layer

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/bucket"
)

// Verb is one of the bucket's verbs.
type Verb uint8

// The verbs that cost a request.
const (
	Get Verb = iota
	Head
	Put
	Delete
	List
	numVerbs
)

// String is the word used in metrics: get, head, put, delete, list.
func (v Verb) String() string {
	if v >= numVerbs {
		return "invalid"
	}
	return [numVerbs]string{"get", "head", "put", "delete", "list"}[v]
}

// Count is what was spent on one verb and class.
type Count struct {
	Requests int64 // sent, whatever the answer
	Failed   int64 // answered with an error of any kind; NotModified is one
	Bytes    int64 // of bodies: received by Get, sent by Put (also when it failed)
}

// Snapshot is the counts at one moment, by verb and class.
type Snapshot [numVerbs][numClasses]Count

// Of is the count of one verb and class.
func (s Snapshot) Of(v Verb, c Class) Count { return s[v][c] }

// Total is the count of one verb over all classes.
func (s Snapshot) Total(v Verb) Count {
	var sum Count
	for _, c := range s[v] {
		sum.add(c, 1)
	}
	return sum
}

// Add is the requests of two.
func (s Snapshot) Add(o Snapshot) Snapshot {
	for v := range s {
		for c := range s[v] {
			s[v][c].add(o[v][c], 1)
		}
	}
	return s
}

// Sub is what was spent between an earlier snapshot and s.
func (s Snapshot) Sub(earlier Snapshot) Snapshot {
	for v := range s {
		for c := range s[v] {
			s[v][c].add(earlier[v][c], -1)
		}
	}
	return s
}

// String lists what is not zero, in a fixed order, as "put wal=1 put root=2": short enough
// to compare with a string in a test.
func (s Snapshot) String() string {
	var out []string
	for v := range s {
		for c := range s[v] {
			if n := s[v][c].Requests; n != 0 {
				out = append(out, fmt.Sprintf("%s %s=%d", Verb(v), Class(c), n))
			}
		}
	}
	return strings.Join(out, " ")
}

func (c *Count) add(d Count, sign int64) {
	c.Requests += sign * d.Requests
	c.Failed += sign * d.Failed
	c.Bytes += sign * d.Bytes
}

// Metered is a bucket that counts.
type Metered struct {
	b      bucket.Bucket
	counts [numVerbs][numClasses]struct{ requests, failed, bytes atomic.Int64 }
	fresh  atomic.Int64
}

var _ bucket.Bucket = (*Metered)(nil)

// Metrics counts the requests that reach b.
func Metrics(b bucket.Bucket) *Metered { return &Metered{b: b} }

// Snapshot reads the counts. Requests under way are counted, their failures and received
// bytes not yet.
func (m *Metered) Snapshot() (s Snapshot) {
	for v := range m.counts {
		for c := range m.counts[v] {
			n := &m.counts[v][c]
			s[v][c] = Count{Requests: n.requests.Load(), Failed: n.failed.Load(), Bytes: n.bytes.Load()}
		}
	}
	return s
}

// Fresh counts the Gets that ask for what was found to be wrong.
func (m *Metered) Fresh() int64 { return m.fresh.Load() }

// Get implements bucket.Bucket.
func (m *Metered) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	m.sent(Get, key, 0)
	if o.Fresh {
		m.fresh.Add(1)
	}
	obj, err := m.b.Get(ctx, key, o)
	m.answered(Get, key, len(obj.Body), err)
	return obj, err
}

// Head implements bucket.Bucket.
func (m *Metered) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	m.sent(Head, key, 0)
	a, err := m.b.Head(ctx, key)
	m.answered(Head, key, 0, err)
	return a, err
}

// Put implements bucket.Bucket.
func (m *Metered) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	m.sent(Put, key, len(body))
	tag, err := m.b.Put(ctx, key, body, c)
	m.answered(Put, key, 0, err)
	return tag, err
}

// Delete implements bucket.Bucket.
func (m *Metered) Delete(ctx context.Context, key string) error {
	m.sent(Delete, key, 0)
	err := m.b.Delete(ctx, key)
	m.answered(Delete, key, 0, err)
	return err
}

// List implements bucket.Bucket.
func (m *Metered) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	m.sent(List, prefix, 0)
	page, more, err := m.b.List(ctx, prefix, after, max)
	m.answered(List, prefix, 0, err)
	return page, more, err
}

// String implements bucket.Bucket.
func (m *Metered) String() string { return m.b.String() }

// Close implements bucket.Bucket.
func (m *Metered) Close() error { return m.b.Close() }

func (m *Metered) sent(v Verb, key string, bytes int) {
	n := &m.counts[v][ClassOf(key)]
	n.requests.Add(1)
	n.bytes.Add(int64(bytes))
}

func (m *Metered) answered(v Verb, key string, bytes int, err error) {
	n := &m.counts[v][ClassOf(key)]
	n.bytes.Add(int64(bytes))
	if err != nil {
		n.failed.Add(1)
	}
}
