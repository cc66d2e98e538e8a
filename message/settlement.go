package message

import (
	"errors"
	"fmt"
	"time"
)

// Settlement describes how a message was settled, for its source: see [New]. Kind alone
// decides what happens to the message.
type Settlement struct {
	Kind Kind
	// Delay is the least time until the redelivery of a Released or Failed message, from
	// now; 0 means at once. It is 0 for other kinds.
	Delay time.Duration
	// Err is the reason:
	//
	//	Done        nil
	//	HandedOver  the error of the failure
	//	Released    nil; or an error that matches [ErrBackendDown] or [ErrPurged]; or the
	//	            error of a call that has snoozed the message (predicates.WithSnooze)
	//	Failed      the error of the failure, or [ErrLost]; nil if the caller gave no error
	//	Rejected    never nil
	Err error
	// Refused reports that the service has refused a call for the message for good. So
	// the service answers, and the flood guard of a worker (delivery.WithFloodGuard) does
	// not count the failure. Refused is set for HandedOver and Failed messages. For a
	// message that was split, it is true if it is true for a part, whatever the Kind. A
	// store or sink that refuses a message does not set it: see [ErrRefused].
	Refused bool
	// UnsafeToRepeat reports that a call for a Rejected message, or for a part of it, may
	// have taken effect or has succeeded ([NoteUnsafeToRepeat]), and that a second call
	// may do harm.
	UnsafeToRepeat bool
}

// Kind is how a message was settled. The zero Kind is not valid.
type Kind uint8

const (
	// Done: all results of the message are safe. The source may forget the message.
	Done Kind = iota + 1
	// HandedOver: the failure of the message is safe elsewhere, such as in a layer or
	// among the dead letters, or was dropped by the failure policy. The source may forget
	// it.
	HandedOver
	// Released: the message was not processed, or not to the end. That is not a failure,
	// and its visit does not count. The source redelivers it after Delay.
	Released
	// Failed: the message has failed, and its failure was not handed over. The source
	// redelivers it after Delay.
	Failed
	// Rejected: the message is not done, and must not be redelivered. The source keeps it
	// among its dead letters, if any, and continues.
	Rejected
)

func (k Kind) String() string {
	switch k {
	case Done:
		return "done"
	case HandedOver:
		return "handed over"
	case Released:
		return "released"
	case Failed:
		return "failed"
	case Rejected:
		return "rejected"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// IsSafe reports whether the source may forget the message.
func (k Kind) IsSafe() bool { return k == Done || k == HandedOver }

// IsRedelivered reports whether the source redelivers the message.
func (k Kind) IsRedelivered() bool { return k == Released || k == Failed }

// String returns the settlement in words, such as "failed for 5s: no answer".
func (v Settlement) String() string {
	s := v.Kind.String()
	if v.Delay > 0 {
		s += " for " + v.Delay.String()
	}
	if v.Err != nil && !v.Kind.IsSafe() {
		s += fmt.Sprintf(": %v", v.Err)
	}
	return s
}

var (
	// ErrLost is the error of a message that was garbage collected unsettled: see
	// [FindLost].
	ErrLost = errors.New("delivery: the message was lost: it was neither settled nor passed on")

	// ErrRefused is matched by the error of a sink, a store or a failure sink for an
	// element that it can never take: it is too large, or cannot be encoded. The element
	// is not offered again. A message is rejected, so it ends among the dead letters of
	// its source.
	ErrRefused = errors.New("it can never be stored")

	// ErrBackendDown is matched by the error of a message that waited for its backend
	// until its operator's timeout had passed. If a call was made in this visit, the
	// message has failed, and the visit counts once the failure is handed over. But if
	// there was no call, or all calls were throttled, the message is Released.
	ErrBackendDown = errors.New("the backend is down")

	// ErrPurged is the cause of the end of the context of a call (context.Cause) whose
	// message was purged. The outcome of the call is not stored.
	ErrPurged = errors.New("the message was purged")

	errNoReason = errors.New("delivery: rejected without an error")
)

// weight ranks the settlements of parts: the greatest weight decides about the message.
func (k Kind) weight() int {
	switch k {
	case Done:
		return 1
	case HandedOver:
		return 2
	case Rejected:
		return 3
	case Released:
		return 4
	case Failed:
		return 5
	}
	return 0 // no part is settled
}

// and returns the settlement of a message whose two parts have the settlements v and w.
// Law D1: the message is done when all parts are. If one part is redelivered and the
// other rejected, the message is redelivered, and that part is rejected again.
func (v Settlement) and(w Settlement) Settlement {
	heavier, lighter := v, w
	if v.Kind.weight() < w.Kind.weight() {
		heavier, lighter = w, v
	}
	heavier.Refused = v.Refused || w.Refused
	heavier.Delay = max(v.Delay, w.Delay) // 0 unless a part is redelivered
	if heavier.Kind == lighter.Kind {
		heavier.UnsafeToRepeat = v.UnsafeToRepeat || w.UnsafeToRepeat
		if heavier.Err == nil {
			heavier.Err = lighter.Err
		}
	}
	if heavier.Kind == Rejected && lighter.Kind == HandedOver {
		// Law X1: the handed-over part has further visits of its own, which repeat its
		// calls.
		heavier.UnsafeToRepeat = true
	}
	return heavier
}
