// Package observing_test shows what observers, statistics and log lines report of an operator.
package observing_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: no goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
