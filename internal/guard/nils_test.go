package guard_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/guard"
)

func TestIsNil(t *testing.T) {
	for _, v := range []any{
		nil, (*int)(nil), (func())(nil), map[string]int(nil), (chan int)(nil), []int(nil), error(nil), unsafe.Pointer(nil),
	} {
		assert.True(t, guard.IsNil(v), "%T", v)
	}
	for _, v := range []any{new(int), func() {}, map[string]int{}, make(chan int), []int{}, 0, "", struct{}{}} {
		assert.False(t, guard.IsNil(v), "%T", v)
	}
}
