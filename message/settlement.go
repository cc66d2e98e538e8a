package message

import (
	"errors"
	"fmt"
	"time"
)

// Settlement is how a message was settled. The source of the message gets it: see [New].
type Settlement struct {
	Kind  Kind
	Delay time.Duration // Nacked: the least time until redelivery, from now; 0 or more
	// Err is the reason of the settlement. Rejected: never nil. Nacked: ErrLost, the error of a failure, or nil. Acked: the error of a failed
	// message that was dropped or handed over, to a layer or the dead letters for example; nil if it is done.
	Err error
	// UnsafeToRepeat reports that a call for a rejected message may have taken effect, which is not known.
	UnsafeToRepeat bool
}

// Kind is a way to settle a message.
type Kind uint8

const (
	// Acked: all results of the message are safe. The source may forget it.
	Acked Kind = iota
	// Rejected: it is not done, and must not be delivered again. The source keeps it apart, if it can, and continues.
	Rejected
	// Nacked: it is not done. The source delivers it again, not before the delay is over.
	Nacked
)

func (k Kind) String() string {
	switch k {
	case Acked:
		return "acked"
	case Rejected:
		return "rejected"
	case Nacked:
		return "nacked"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// String returns the settlement in words, such as "nacked for 5s".
func (v Settlement) String() string {
	s := v.Kind.String()
	if v.Delay > 0 {
		s += " for " + v.Delay.String()
	}
	if v.Err != nil && v.Kind != Acked { // such a message is as safe as any other
		s += fmt.Sprintf(": %v", v.Err)
	}
	return s
}

var (
	// ErrLost is the error of the settlement of a message that was garbage collected before it was settled: see [FindLost].
	ErrLost = errors.New("delivery: the message was lost: it was neither settled nor passed on")

	// ErrRefused is matched by the error of a sink, a store or a failure sink for a message or element that it can never take: it is too large,
	// or cannot be encoded. It is not offered again. The message is rejected, so it ends among the dead letters of its source.
	ErrRefused = errors.New("it can never be stored")

	// ErrBackendDown is matched by the error of a nacked message that waited for its backend until its time ran out. That is not a failure:
	// its visit does not count.
	ErrBackendDown = errors.New("the backend is down")

	errNoReason = errors.New("delivery: rejected without an error")
)

// and returns the settlement of a message of two parts. Law D1: the whole is done when all parts are. If one
// part is nacked and another rejected, the message is nacked: when it comes again, that part will be rejected again.
func (v Settlement) and(w Settlement) Settlement {
	switch {
	case v.Kind < w.Kind:
		return w
	case v.Kind == Rejected && w.Kind == Rejected:
		v.UnsafeToRepeat = v.UnsafeToRepeat || w.UnsafeToRepeat
		return v
	case v.Kind > w.Kind:
		return v
	}
	v.Delay = max(v.Delay, w.Delay)
	if v.Err == nil {
		v.Err = w.Err
	}
	return v
}
