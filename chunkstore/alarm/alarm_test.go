package alarm_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// A Bell counts what is Corrupt and nothing else, remembers the last, and writes one line a
// minute however often it rings.
func TestABellRingsForCorruptOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := alarm.New(host.System().Clock, slog.New(slog.NewTextHandler(&out, nil)))
		for _, err := range []error{nil, errors.New("x"), errkind.Throttled, fmt.Errorf("read: %w", errkind.NotFound)} {
			b.Hear(err)
		}
		if f := b.Found(); f != (alarm.Found{}) || out.Len() > 0 {
			t.Errorf("%+v, %s", f, &out)
		}
		for i := range 90 {
			b.Hear(fmt.Errorf("segment %d: %w", i, errkind.Corrupt))
			time.Sleep(time.Second)
		}
		if f := b.Found(); f != (alarm.Found{Count: 90, Last: "segment 89: corrupt", Ago: time.Second}) {
			t.Errorf("%+v", f)
		}
		if n := strings.Count(out.String(), "run granary fsck"); n != 2 || !strings.Contains(out.String(), "times=61 last=\"segment 60: corrupt\"") {
			t.Errorf("%d lines in 90 s:\n%s", n, &out)
		}
		b.Hear(fmt.Errorf("%s%w", strings.Repeat("x", 1<<20), errkind.Corrupt))
		if n := len(b.Found().Last); n != 1<<10 {
			t.Errorf("%d bytes are remembered", n)
		}
		var none *alarm.Bell
		if none.Hear(errkind.Corrupt); none.Found() != (alarm.Found{}) {
			t.Error("a nil bell rang")
		}
	})
}
