package memory

import (
	"fmt"

	"github.com/benbjohnson/clock"
)

// Option is a setting of [Open].
type Option func(*settings)

type settings struct {
	clock clock.Clock // nil means the machine's clock
	limit int         // 0 means no limit
}

// Limit bounds the number of messages in all queues together: a Put beyond it fails with
// store.ErrFull. The default is no limit. It panics if n is less than 1.
func Limit(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memory: Limit: %d is less than 1", n))
	}
	return func(s *settings) { s.limit = n }
}

// WithClock sets the clock for delays and leases. The default is the machine's. It panics
// if c is nil.
func WithClock(c clock.Clock) Option {
	if c == nil {
		panic("memory: WithClock: nil clock")
	}
	return func(s *settings) { s.clock = c }
}
