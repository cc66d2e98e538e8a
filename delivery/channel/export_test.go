package channel

import (
	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery"
)

// NewSourceBy is NewSource with a clock for delays.
func NewSourceBy[T any](c <-chan T, timer clock.Clock) delivery.Source[T] {
	return newSource(c, nil, timer)
}
