package hbase

import (
	"testing"
	"time"
)

// SetWriteGrace changes writeGrace for a test.
func SetWriteGrace(t *testing.T, d time.Duration) {
	before := writeGrace
	writeGrace = d
	t.Cleanup(func() { writeGrace = before })
}
