// Package observing_test shows the reports of an operator in observers, statistics and
// log lines.
package observing_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
