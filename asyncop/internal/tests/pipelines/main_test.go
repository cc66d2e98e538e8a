// Package pipelines_test tests operators and flows in pipelines of go-streams: how they
// are wired, how failures travel, and how To ends.
package pipelines_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Law F1: no goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
