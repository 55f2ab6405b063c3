package admission

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var inf = math.Inf(1)

func TestAccountsShareAPot(t *testing.T) {
	t.Parallel()
	p := NewPot(1000)
	a, b := p.Account("messages", 75), p.Account("sorts", 50)
	if !a.Reserve(700) || a.Reserve(51) || !a.Reserve(50) {
		t.Error("an account may have its part, and no more")
	}
	if b.Reserve(251) || !b.Reserve(250) {
		t.Error("an account may have what the others left")
	}
	want := []Bound{
		{Name: "request_memory", Used: 1000, Limit: 1000, Refused: 2},
		{Name: "messages", Used: 750, Limit: 750, Refused: 1},
		{Name: "sorts", Used: 250, Limit: 500, Refused: 1},
	}
	if diff := cmp.Diff(want, p.Bounds()); diff != "" {
		t.Errorf("bounds, -want +got:\n%s", diff)
	}
	if err := a.Refusal(51); !errors.Is(err, Overloaded) || !strings.Contains(err.Error(), "messages have 750 of 750 bytes") {
		t.Error(err)
	}
	a.Add(-750)
	b.Add(-250)
	if p.Bounds()[0].Used != 0 {
		t.Errorf("%+v", p.Bounds())
	}
}

// A share is a quarter of what is left, so that the last one still gets some, and never less
// than the least.
func TestSharesBecomeSmaller(t *testing.T) {
	t.Parallel()
	a := NewPot(1600).Account("answers", 50)
	for _, want := range []int64{200, 150, 112, 84, 63, 50, 50, 50, 50, 50} {
		if got := a.Take(400, 50); got != want {
			t.Errorf("a share of %d, want %d", got, want)
		}
	}
	if got := a.Take(10, 50); got != 10 {
		t.Errorf("%d of 10 that were wanted", got)
	}
}

func TestNilAccountsHaveNoBound(t *testing.T) {
	t.Parallel()
	var p *Pot
	a := p.Account("x", 10)
	if a != nil || !a.Reserve(math.MaxInt64) || a.Take(7, 1) != 7 || a.Bound() != (Bound{}) || p.Bounds() != nil {
		t.Error("a nil pot is bounded")
	}
	a.Add(5)
}

func TestAccountsAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	p := NewPot(1 << 20)
	var all sync.WaitGroup
	for range 8 {
		a := p.Account("a", 100)
		all.Go(func() {
			for range 1000 {
				if a.Reserve(1000) {
					a.Add(-1000)
				}
				a.Add(-a.Take(500, 10))
			}
		})
	}
	all.Wait()
	if used := p.Bounds()[0].Used; used != 0 {
		t.Errorf("%d bytes are left", used)
	}
}
