// Package endings_test shows how elements and operators end: completions, failures, code
// that breaks, Stop, a cancel and the end of the input.
package endings_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
