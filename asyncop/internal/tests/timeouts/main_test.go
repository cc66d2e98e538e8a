// Package timeouts_test shows timeouts of elements and attempts, timers, handlers and
// fallbacks, and calls that come too late.
package timeouts_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
