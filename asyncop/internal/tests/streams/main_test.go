// Package streams_test shows an operator among flows, and as an iterator, by hand and by
// random schedules.
package streams_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
