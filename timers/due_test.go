package timers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/timers"
)

func TestDue(t *testing.T) {
	var h timers.Heap[int]
	armed := make([]timers.Timer[int], 100)
	for i := range armed {
		h.Arm(&armed[i], time.Duration(7*i%100))
	}
	h.Cancel(&armed[50])
	for i := range armed {
		due, ok := h.Due(&armed[i])
		assert.Equal(t, i != 50, ok)
		if ok {
			assert.Equal(t, time.Duration(7*i%100), due)
		}
	}
}
