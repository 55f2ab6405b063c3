package manifest

import (
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// settingHistory is the cluster's setting of for how long it remembers what it was.
const settingHistory = "history"

// Bounds of the setting history, and the time between two moments where it does not say.
const (
	HistoryKeepMin  = time.Minute
	MomentEveryMin  = 10 * time.Second
	MomentEvery     = 10 * time.Minute
	MomentsMax      = 500
	momentSeparator = " "
)

// HistoryKept is for how long moments are kept, and the time between two, by the setting
// history {keepSeconds, everySeconds}; 0: none is kept. They are never so many that the root
// grows by more than a few kilobytes: with a long keep they are further apart.
func (s *State) HistoryKept() (keep, every time.Duration) {
	n, ok := asInt64(s.setting(settingHistory, "keepSeconds"))
	if !ok || n <= 0 {
		return 0, 0
	}
	keep, every = max(time.Duration(n)*time.Second, HistoryKeepMin), MomentEvery
	if n, ok := asInt64(s.setting(settingHistory, "everySeconds")); ok && n > 0 {
		every = time.Duration(n) * time.Second
	}
	return keep, max(every, MomentEveryMin, keep/MomentsMax)
}

// HistorySetting is the record of the setting history; keep 0: none is kept.
func HistorySetting(keep, every time.Duration) Record {
	body := bsoncore.NewDocumentBuilder().AppendInt64("keepSeconds", int64(keep/time.Second)).AppendInt64("everySeconds", int64(every/time.Second))
	return Record{Kind: RecordSetting, ID: settingHistory, Body: bson.Raw(body.Build())}
}

// momentPrefix begins the name of a pin that says its time.
const momentPrefix = "at "

// MomentName is the name of a pin that is made at a time. why may be "".
func MomentName(t time.Time, why string) string {
	name := momentPrefix + t.UTC().Format(time.RFC3339Nano)
	if why != "" {
		name += momentSeparator + why
	}
	return name
}

// Moment is the time at which the pin was made, on the clock of who made it: all that was
// acknowledged before is in it. False: its name does not say.
func (p Pin) Moment() (time.Time, bool) {
	text, ok := strings.CutPrefix(p.Name, momentPrefix)
	if !ok {
		return time.Time{}, false
	}
	text, _, _ = strings.Cut(text, momentSeparator)
	t, err := time.Parse(time.RFC3339Nano, text)
	return t, err == nil
}

// Moments are the pins that say their time, the oldest first.
func (s *State) Moments() []Pin {
	list := slices.Clone(s.pins)
	list = slices.DeleteFunc(list, func(p Pin) bool { _, ok := p.Moment(); return !ok })
	slices.SortStableFunc(list, func(a, b Pin) int {
		x, _ := a.Moment()
		y, _ := b.Moment()
		return x.Compare(y)
	})
	return list
}

// MomentAt is the newest pin that says its time and is not younger than t.
func (s *State) MomentAt(t time.Time) (found Pin, ok bool) {
	for _, p := range s.Moments() {
		if at, _ := p.Moment(); !at.After(t) {
			found, ok = p, true
		}
	}
	return found, ok
}
