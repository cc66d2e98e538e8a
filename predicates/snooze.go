package predicates

import (
	"errors"
	"fmt"
	"time"
)

// snoozeUnit is the least delay, so that a message does not spin. All delays are
// multiples of it, so that a queue releases many messages in one write.
const snoozeUnit = time.Second

const longestSnooze = 25 * 365 * 24 * time.Hour

// WithSnooze makes err the error of a call that asks to be made again after a delay, for
// instance when a shop opens. It returns nil if err is nil. The delay is rounded up to
// whole seconds, from a second to 25 years. For a time t, use time.Until(t).
//
//	return "", predicates.WithSnooze(errClosed, time.Until(opening))
//
// The call is for a message, such as a message of a delivery.Queue. The operator releases
// the message (message.Released): it waits in its queue or layer, and is redelivered
// after the delay, to any worker. That is not a failure:
//
//   - Its visit does not count, and neither do the attempts of the visit. Key, headers
//     and provider are kept. With delivery.WithOrdered later messages of its key wait for
//     it.
//   - Strategies, fallbacks and failure sinks are not asked. The call is not evidence
//     about its backend, but backend.Adaptive measures its duration. The flood guard of
//     delivery.Run does not count it. If it is the probe of a backend or a tenant, the
//     next call is the probe.
//   - Summaries count the message as released, and statistics its element as abandoned.
//     Observers get an attempt without results and without an error.
//
// The number of snoozes is not limited: a message that must end needs a deadline
// (delivery.Deadline), after which it is a dead letter.
//
// WithSnooze has no effect, and err is judged as without it, in these two cases:
//
//   - The element is not a message, as in a pipeline without a source of messages.
//   - An earlier attempt of the visit is in doubt, and the call is not idempotent.
//
// An error that wraps an error of WithSnooze, also beside others ([errors.Join]), snoozes
// its message, too.
func WithSnooze(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &snoozeError{delay: inUnits(delay), err: err}
}

// inUnits rounds a delay up to snoozeUnits (law D3), and limits it.
func inUnits(delay time.Duration) time.Duration {
	if delay >= longestSnooze {
		return longestSnooze
	}
	delay = max(delay, snoozeUnit)
	rest := delay % snoozeUnit
	if rest > 0 {
		delay += snoozeUnit - rest
	}
	return delay
}

// SnoozeOf returns the delay of an error of [WithSnooze], even if it is wrapped.
func SnoozeOf(err error) (delay time.Duration, ok bool) {
	e, ok := errors.AsType[*snoozeError](err)
	if !ok {
		return 0, false
	}
	return e.delay, true
}

type snoozeError struct {
	delay time.Duration
	err   error
}

// Error returns the message of the error with the delay.
func (e *snoozeError) Error() string { return fmt.Sprintf("%v (again in %v)", e.err, e.delay) }

func (e *snoozeError) Unwrap() error { return e.err }
