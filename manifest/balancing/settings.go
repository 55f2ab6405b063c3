package balancing

import (
	"fmt"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// SettingsID is the id of the record of the settings.
const SettingsID = "balancer"

// Policy is the rule by which the chunks of a collection are evened out.
type Policy string

const (
	// BySize: no shard has three times the chunk size more than another.
	BySize Policy = "size"
	// ByCount is the rule of old: no shard has more than 8 chunks above the average, and the
	// chunk that changed last goes.
	ByCount Policy = "chunks"
)

// Settings are the balancer's, as recorded.
type Settings struct {
	Stopped bool
	// By and At (ms) tell who stopped or started it, and when; "", 0: nobody ever did.
	By     string
	At     int64
	Window *Window // nil: at any time
	Policy Policy
}

// settingsBody is Settings in MongoDB's words.
type settingsBody struct {
	Stopped      bool           `bson:"stopped"`
	Mode         string         `bson:"mode,omitempty"`
	ActiveWindow *windowBody    `bson:"activeWindow,omitempty"`
	TimeZone     string         `bson:"timeZone,omitempty"`
	Policy       string         `bson:"policy,omitempty"`
	By           string         `bson:"by,omitempty"`
	At           bson.DateTime  `bson:"at,omitempty"`
	Rest         map[string]any `bson:",inline"`
}

type windowBody struct {
	Start string `bson:"start"`
	Stop  string `bson:"stop"`
}

// Of reads the settings of a root. What nobody could have recorded reads as the default.
func Of(st *manifest.State) Settings {
	r, ok := st.Record(manifest.RecordBalancer, SettingsID)
	if !ok {
		return Settings{Policy: BySize}
	}
	s, err := ParseSettings(r.Body)
	if err != nil {
		return Settings{Policy: BySize}
	}
	return s
}

// ParseSettings reads a document of config.settings with the _id "balancer". Errors: Invalid,
// with what to write instead.
func ParseSettings(doc bson.Raw) (Settings, error) {
	var b settingsBody
	if err := bson.Unmarshal(doc, &b); err != nil {
		return Settings{}, fmt.Errorf("balancer settings: %w: %v", errkind.Invalid, err)
	}
	s := Settings{Stopped: b.Stopped || b.Mode == "off", By: b.By, At: int64(b.At), Policy: BySize}
	switch b.Policy {
	case "", string(BySize):
	case string(ByCount):
		s.Policy = ByCount
	default:
		return s, fmt.Errorf("balancer settings: %w: policy is %q: write \"size\" (the default) or \"chunks\" (more than 8 chunks above the average)", errkind.Invalid, b.Policy)
	}
	if b.ActiveWindow != nil {
		var err error
		if s.Window, err = NewWindow(b.ActiveWindow.Start, b.ActiveWindow.Stop, b.TimeZone); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Switched is the settings document of a root with the balancer started or stopped.
func Switched(st *manifest.State, stopped bool, by string, atMillis int64) bson.Raw {
	var b settingsBody
	if r, ok := st.Record(manifest.RecordBalancer, SettingsID); ok {
		_ = bson.Unmarshal(r.Body, &b) // a body that cannot be read is written anew
	}
	b.Stopped, b.Mode, b.By, b.At = stopped, "full", by, bson.DateTime(atMillis)
	if stopped {
		b.Mode = "off"
	}
	doc, err := bson.Marshal(b)
	if err != nil {
		panic(fmt.Sprintf("balancing: settings %+v: %v", b, err))
	}
	return doc
}

// Who says who stopped the balancer, and when.
func (s Settings) Who() string {
	if s.By == "" {
		return "in config.settings"
	}
	return fmt.Sprintf("by %s at %s", s.By, time.UnixMilli(s.At).UTC().Format("2006-01-02 15:04:05 UTC"))
}
