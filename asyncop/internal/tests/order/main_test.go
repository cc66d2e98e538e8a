// Package order_test shows the order in which results leave an operator, with keys and
// watermarks, and how many elements have a slot.
package order_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
