package manifesttest_test

import (
	"errors"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
	"pgregory.net/rapid"
)

// TestRandomEditsKeepEveryInvariant applies random edits, most of which fit, and checks
// after each that the state and the step are valid and that the codec gives it back; and
// that an edit that is refused says so as Conflict or Invalid.
func TestRandomEditsKeepEveryInvariant(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(r, "choice") }
		s := manifesttest.New(t, "a", "b", "c")
		s = manifesttest.Apply(t, s, "create db.c chunks=a,g,b,p,c\nregister 01")
		landed := 0
		for range 40 {
			e := manifesttest.RandomEdit(draw, s, manifest.OpID(manifesttest.Nonce(s.Version()+1)))
			next, err := manifest.Apply(s, e, manifesttest.Nonce(s.Version()+1))
			if err != nil {
				if !errors.Is(err, errkind.Conflict) && !errors.Is(err, errkind.Invalid) {
					r.Fatalf("apply %#v: %v", e.Changes, err)
				}
				continue
			}
			manifesttest.Check(&failer{T: t, r: r}, s, next)
			s = next
			landed++
		}
		if landed == 0 {
			r.Fatalf("no edit landed")
		}
	})
}

// failer is a testing.TB whose failures are rapid's, so that it shrinks them.
type failer struct {
	*testing.T
	r *rapid.T
}

func (f *failer) Errorf(format string, args ...any) { f.r.Fatalf(format, args...) }
func (f *failer) Fatalf(format string, args ...any) { f.r.Fatalf(format, args...) }
