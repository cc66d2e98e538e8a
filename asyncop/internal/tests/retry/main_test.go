// Package retry_test shows which attempts are repeated, when, how often, and what a strategy is asked.
package retry_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: no goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
