// Package calls_test shows what a call needs before it starts: permits, a backend, the
// others of its batch.
package calls_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: no goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
