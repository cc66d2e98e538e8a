package settle

import (
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// CauseOf returns the cause of a dead letter: store.UnsafeToRepeat if a call of the
// message, in this or an earlier visit, is unsafe to repeat, otherwise cause. Each cause
// of a dead letter is from CauseOf, with three exceptions:
//
//   - A message that cannot be decoded is Undecodable.
//   - A message whose workers died is Lapsed.
//   - failed.Router returns UnsafeToRepeat itself if the next visit must not repeat a
//     call in doubt.
func CauseOf(meta *message.Meta, cause store.Cause) store.Cause {
	if meta.UnsafeToRepeat {
		return store.UnsafeToRepeat
	}
	return cause
}

// NoteFailure records the time of a failure in the history of a message.
func NoteFailure(meta *message.Meta, now time.Time) {
	meta.LastFailure = now
	if meta.FirstFailure.IsZero() {
		meta.FirstFailure = now
	}
}

// LateError is the error with which a message that came too late for a visit is rejected.
// Its store has refused to put it among the dead letters with its whole history.
type LateError struct {
	Cause store.Cause // of the dead letter
	Err   error       // the refusal
}

func (e *LateError) Error() string { return e.Err.Error() }

// Unwrap returns the refusal.
func (e *LateError) Unwrap() error { return e.Err }

// IsUnreadable reports whether err is the reason of a message that cannot be decoded.
func IsUnreadable(err error) bool {
	_, isUnreadable := errors.AsType[*decoder.Error](err)
	return isUnreadable
}

// RecordRejection records in the history of a message why it was rejected (law D6), and
// returns the cause.
func RecordRejection(meta *message.Meta, v message.Settlement, now time.Time) store.Cause {
	isUnreadable := IsUnreadable(v.Err)
	late, isLate := errors.AsType[*LateError](v.Err)
	DropPointsTo(meta)
	meta.UnsafeToRepeat = meta.UnsafeToRepeat || v.UnsafeToRepeat
	if v.Err != nil {
		meta.LastError = guard.Text(v.Err)
	}
	if isUnreadable || isLate {
		// The source has counted a visit that did not take place.
		meta.Visit--
	}
	if isUnreadable {
		// The cause is Undecodable even if a call is in doubt: the message cannot be
		// repeated until its bytes can be decoded, and meta keeps the doubt.
		return store.Undecodable
	}
	NoteFailure(meta, now)
	_, isLapsed := errors.AsType[LapsedError](v.Err) // its visit has begun in the workers that died, and counts
	switch {
	case isLate:
		return CauseOf(meta, late.Cause)
	case isLapsed:
		// Lapsed even if a call is in doubt: a person should look before the message
		// returns to workers that it may kill, and meta keeps the doubt.
		return store.Lapsed
	case guard.Is(v.Err, message.ErrRefused):
		return CauseOf(meta, store.Refused)
	default:
		return CauseOf(meta, store.Permanent)
	}
}
