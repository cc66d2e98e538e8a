// Package checkpoints_test shows what is in a checkpoint of an operator, and how the next
// run resumes from it.
package checkpoints_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: all goroutines have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
