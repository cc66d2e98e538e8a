package engine

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/queue"
)

// What a waiting element and a call cost is what the size classes of the allocator make of these. Entries are allocated
// many at a time, so they cost what they measure.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("sizes are those of 64 bits")
	}
	entry := unsafe.Sizeof(queue.Entry[Slot[*int, *int]]{})
	plain := unsafe.Sizeof(Slot[*int, *int]{})
	t.Logf("slot %d, entry %d, attempt %d, extra %d", plain, entry,
		unsafe.Sizeof(call.Attempt[*queue.Entry[Slot[*int, *int]], *int]{}), unsafe.Sizeof(extra[*int, *int]{}))
	assert.LessOrEqual(t, plain, uintptr(88))
	assert.LessOrEqual(t, entry, uintptr(120))
	assert.LessOrEqual(t, unsafe.Sizeof(call.Attempt[*queue.Entry[Slot[*int, *int]], *int]{}), uintptr(96))
	assert.LessOrEqual(t, unsafe.Sizeof(extra[*int, *int]{}), uintptr(64))
}
