package asyncop

import (
	"time"

	"github.com/weirflow/weir/internal/guard"
)

// Pacer says when attempts may start: so many a second, or none while a backend is down. ratepace of ext/rate
// makes one of a rate.Limiter, failsafecall of ext/failsafe one of a circuit breaker.
type Pacer interface {
	// Take asks for one attempt at the time now, of the operator's clock. 0: it may start, and is counted. Otherwise it may
	// not, is not counted, and Take is called again after wait, or later.
	//
	// It is called on the operator's loop and must not block. A panic is the outcome of the element (law A6). It must be safe
	// for concurrent use if it belongs to several operators.
	Take(now time.Time) (wait time.Duration)
}

// WithPace lets attempts start, retries included, as fast as p says. Elements that wait for the pace hold a slot, and neither a
// permit nor a goroutine; they have begun no attempt. Their timeout stands, and so does the order: retries before first
// attempts, oldest first. The pace also holds for what is left when the input has ended. By default an attempt starts as soon
// as it has its permits. It panics if p is nil.
func WithPace(p Pacer) Option {
	if guard.IsNil(p) {
		panic("asyncop: WithPace: nil pacer")
	}
	return func(cfg *config) { cfg.pace = p }
}
