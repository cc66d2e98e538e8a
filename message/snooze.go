package message

import (
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Snooze returns an error for a call whose message is to be called again after d, although
// it has not failed: what it asks about is not ready yet, or its customer has a pause. The
// operator releases the message (Released): there is no retry and no evidence about the
// backend, and neither the visit nor an attempt counts. The source delivers it again after
// d, at once if d is 0 or less. For a time t, d is time.Until(t). The call may wrap the
// error with fmt.Errorf.
//
// A message may be snoozed any number of times. Its deadline still holds (Meta.Deadline).
// An element that is not a message fails with the error, as with any other. So does a
// message if an earlier attempt of the visit may have taken effect, since a release would
// forget that, and any message in an operator of package lookup. On Kafka, a snoozed
// message stays with its worker, and holds back the position of its partition: choose
// minutes there, not days.
func Snooze(d time.Duration) error { return &snoozeError{max(0, d)} }

// SnoozeOf returns the duration of an error of [Snooze], also if fmt.Errorf has wrapped
// it. It does not call methods of other errors.
func SnoozeOf(err error) (d time.Duration, ok bool) {
	for err != nil {
		if e, ok := err.(*snoozeError); ok { //nolint:errorlint // errors.As would call methods of any error
			return e.delay, true
		}
		t := reflect.TypeOf(err)
		if t.Kind() != reflect.Pointer || t.Elem().PkgPath() != "fmt" {
			return 0, false
		}
		err = errors.Unwrap(err)
	}
	return 0, false
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("message: snoozed for %v", e.delay) }
