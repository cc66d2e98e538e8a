package memory_test

import (
	"testing"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/storebench"
)

// BenchmarkStore measures the engine without a disk.
func BenchmarkStore(b *testing.B) {
	storebench.Run(b, func(*testing.B) store.Store { return memory.Open() })
}
