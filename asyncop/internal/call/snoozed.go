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

// snoozed returns err as a Snoozed if it asks for that. It does not call methods of the
// user's error.
func snoozed(err error) error {
	delay, ok := message.SnoozeOf(err)
	if !ok {
		return err
	}
	return &Snoozed{err, delay}
}
