// Package order_test shows in which order results leave an operator, with keys and watermarks, and how many elements have a slot.
package order_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: no goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
