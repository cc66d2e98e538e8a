package asyncop_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended, in the whole package.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
