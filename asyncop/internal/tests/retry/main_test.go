// Package retry_test shows which attempts are repeated, when, how often, and with which
// arguments a strategy is called.
package retry_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
