package balancing

import (
	"fmt"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
)

// Window is the part of each day in which chunks may be moved: from Start to Stop (minutes
// since midnight), in a time zone; past midnight when Stop is the earlier one.
type Window struct {
	Start, Stop int
	Zone        *time.Location
}

// NewWindow reads "HH:MM" twice and the IANA name of a time zone; "": UTC. Errors: Invalid.
func NewWindow(start, stop, zone string) (*Window, error) {
	var w Window
	var err error
	if w.Start, err = minutes("start", start); err == nil {
		w.Stop, err = minutes("stop", stop)
	}
	if err != nil {
		return nil, err
	}
	if w.Start == w.Stop {
		return nil, fmt.Errorf("activeWindow: %w: start and stop are both %s: leave activeWindow out for the whole day", errkind.Invalid, start)
	}
	if w.Zone, err = time.LoadLocation(zone); err != nil || zone == "Local" {
		return nil, fmt.Errorf("timeZone: %w: %q is no time zone: write an IANA name such as \"Europe/Berlin\", or \"UTC\"", errkind.Invalid, zone)
	}
	return &w, nil
}

func minutes(field, text string) (int, error) {
	t, err := time.Parse("15:04", text)
	if err != nil {
		return 0, fmt.Errorf("activeWindow.%s: %w: %q: write hours and minutes of the day, such as \"23:00\"", field, errkind.Invalid, text)
	}
	return t.Hour()*60 + t.Minute(), nil
}

// Open reports whether chunks may be moved at a time (ms since 1970). No window is always
// open.
func (w *Window) Open(nowMillis int64) bool {
	if w == nil {
		return true
	}
	t := time.UnixMilli(nowMillis).In(w.Zone)
	m := t.Hour()*60 + t.Minute()
	if w.Start < w.Stop {
		return w.Start <= m && m < w.Stop
	}
	return m >= w.Start || m < w.Stop
}

// Next is when the window opens next.
func (w *Window) Next(nowMillis int64) time.Time {
	now := time.UnixMilli(nowMillis)
	t := now.In(w.Zone)
	for day := t.Day(); ; day++ {
		open := time.Date(t.Year(), t.Month(), day, w.Start/60, w.Start%60, 0, 0, w.Zone)
		if open.After(now) {
			return open
		}
	}
}

// Until is how people are told about Next: "23:00 Europe/Berlin".
func (w *Window) Until(nowMillis int64) string {
	return w.Next(nowMillis).Format("15:04 ") + w.Zone.String()
}

// String is "from 23:00 to 06:00 Europe/Berlin".
func (w *Window) String() string {
	return fmt.Sprintf("from %02d:%02d to %02d:%02d %s", w.Start/60, w.Start%60, w.Stop/60, w.Stop%60, w.Zone)
}
