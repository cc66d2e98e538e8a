package call

import (
	"time"

	"github.com/weirflow/weir/message"
)

// Snoozed is the failure of an attempt that has returned an error of message.Snooze.
type Snoozed struct {
	error
	Delay time.Duration
}

// Unwrap returns the error of the user's function.
func (s *Snoozed) Unwrap() error { return s.error }

// snoozed returns err as a Snoozed if it asks for that. It runs on the goroutine of the
// user's function, since it calls the methods of the user's error.
func snoozed(err error) (result error) {
	result = err
	defer func() {
		_ = recover() // an error whose methods panic is an ordinary failure
	}()
	delay, ok := message.SnoozeOf(err)
	if ok {
		result = &Snoozed{err, delay}
	}
	return result
}
