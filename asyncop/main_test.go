package asyncop_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: no goroutine is left, in the whole package.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
