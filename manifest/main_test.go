package manifest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when a goroutine is left: a Root has none when nobody waits for it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
