package manifest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// sample is a state that has something of everything.
func sample(t testing.TB) *manifest.State {
	s := manifesttest.New(t, "a", "b", "c", "gone")
	for _, text := range []string{
		"create db.c chunks=a,g,a,p,b\ncreate db.unsharded unsharded chunks=b\nput database db\nput setting lease v=5s",
		"claim a epoch=0 holder=p1 lease=5000 address=h:1\nclaim b epoch=0 holder=p2 lease=5000\nremove-shard gone\nregister 05",
		"claim a epoch=1 holder=p3 lease=3000\nzones b eu us\nalter db.c balance=off zone=eu:a..m",
		"flush a epoch=2 snap=1,2 complete",
		"flush a epoch=2 snap=1,3 c1{seg=01 keys=a..c seq=1..3 rows=3 size=30 retry=500 delta=3 bytes=30 seg=02 keys=b..b seq=4..4 rows=1} c2{seg=01 keys=h..k seq=1..2 rows=2 delta=2}",
		"batch app/b1 c2{shard=a epoch=2 seq=9 seg=11 by=j.05 keys=i..j rows=2} c3{shard=b epoch=1 seq=2 seg=11 by=j.05 keys=q..q rows=1}\nabort app/b2\npin 01",
		"compact 05 c1 in=01,02 oldest rows=2 out={seg=12 keys=a..c seq=1..4 rows=2 size=20 retry=500}",
		"split c2 at=j manual=99\ndraining b on",
		"expel 05\nregister 06",
	} {
		s = manifesttest.Apply(t, s, text)
	}
	if err := manifest.Validate(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestValidateFindsEveryBrokenInvariant breaks a good state in every way, and finds each
// named.
func TestValidateFindsEveryBrokenInvariant(t *testing.T) {
	t.Parallel()
	for want, broken := range manifest.Broken(sample(t)) {
		if err := manifest.Validate(broken); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

// TestValidateStepFindsWhatGoesBack does the same for two versions.
func TestValidateStepFindsWhatGoesBack(t *testing.T) {
	t.Parallel()
	s := sample(t)
	for want, broken := range manifest.BrokenSteps(s) {
		if err := manifest.ValidateStep(s, broken); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}
