// Package calls_test shows the requirements of a call before it starts: permits, a
// backend, the other members of its batch.
package calls_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
