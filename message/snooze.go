package message

import (
	"errors"
	"fmt"
	"time"
)

// Snooze returns an error for a call whose message is to be called again after d, although
// it has not failed: what it asks about is not ready yet, or its customer has a pause. The
// operator releases the message (Released): there is no retry and no evidence about the
// backend, and neither the visit nor an attempt counts. The source delivers it again after
// d, at once if d is 0 or less. For a time t, d is time.Until(t). The call may wrap the
// error.
//
// A message may be snoozed any number of times. Its deadline still holds (Meta.Deadline).
// An element that is not a message fails with the error, as with any other. So does a
// message if an earlier attempt of the visit may have taken effect, since a release would
// forget that, and any message in an operator of package lookup. On Kafka, a snoozed
// message stays with its worker, and holds back the position of its partition: choose
// minutes there, not days.
func Snooze(d time.Duration) error { return &snoozeError{max(0, d)} }

// SnoozeOf returns the duration of an error of [Snooze], which err may wrap.
func SnoozeOf(err error) (d time.Duration, ok bool) {
	e, ok := errors.AsType[*snoozeError](err)
	if !ok {
		return 0, false
	}
	return e.delay, true
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("message: snoozed for %v", e.delay) }
