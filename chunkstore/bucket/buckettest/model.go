package buckettest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// model runs random verbs one after another against a map that says what must come out.
func model(s *s) {
	type version struct {
		body string
		tag  bucket.Tag
	}
	r := rand.New(rand.NewPCG(1, 2))
	now, oldTags := map[string]version{}, []bucket.Tag{"none"}
	keys := []string{"a", "b/a", "b/b", "b/c/a", "b-", "meta/root"}
	for step := range rounds(400) {
		key := keys[r.IntN(len(keys))]
		have, exists := now[key]
		fail := func(format string, args ...any) {
			s.Helper()
			s.Fatalf("step %d, %s (exists=%v %.20q): %s", step, key, exists, have.body, fmt.Sprintf(format, args...))
		}
		switch r.IntN(8) {
		case 0, 1:
			o, err := s.b.Get(s.ctx, key, bucket.GetOptions{})
			if exists && (err != nil || string(o.Body) != have.body || o.Tag != have.tag) || !exists && !errors.Is(err, errkind.NotFound) {
				fail("get: %.20q %s %v", o.Body, o.Tag, err)
			}
		case 2:
			if err := s.b.Delete(s.ctx, key); err != nil {
				fail("delete: %v", err)
			}
			delete(now, key)
		case 3:
			want := []string{}
			for k := range now {
				want = append(want, k)
			}
			slices.Sort(want)
			if got := s.keys("", 1+r.IntN(3)); !slices.Equal(got, want) {
				fail("list: %v, want %v", got, want)
			}
		default:
			cond, passes := bucket.Condition{}, true
			switch r.IntN(4) {
			case 0:
				cond, passes = bucket.IfAbsent, !exists
			case 1:
				cond, passes = bucket.IfMatch(oldTags[r.IntN(len(oldTags))]), false
				passes = exists && cond.Match() == have.tag
			case 2:
				if exists {
					cond = bucket.IfMatch(have.tag)
				}
			}
			body := fmt.Sprintf("step %d", step)
			tag, err := s.b.Put(s.ctx, key, []byte(body), cond)
			if (err == nil) != passes {
				fail("put under %+v: %v", cond, err)
			}
			if err == nil {
				now[key] = version{body, tag}
				oldTags = append(oldTags, tag)
			}
		}
	}
}
