package store

import "time"

// Repetition is whether a dead letter may be sent back, so that its service is called
// again. Jobs, the command and the console all use [Message.Repetition].
type Repetition uint8

// The answers of [Message.Repetition].
const (
	// RepeatSafe: each call has failed without an effect, or may be repeated.
	RepeatSafe Repetition = iota
	// RepeatSafeUntil: a call may have taken effect, and its service recognises the
	// request until Meta.Remembered, so a repeated call does not have a second effect.
	RepeatSafeUntil
	// RepeatPointless: it fails again, unless the program, the service or the payload has
	// changed. Or it is a pointer ([Message.PointsTo]), which jobs do not send back.
	RepeatPointless
	// RepeatInDoubt: a call may have taken effect, or has succeeded without its result
	// being stored, and its service does not recognise the request. Another call may have
	// a second effect.
	RepeatInDoubt
	// RepeatLookFirst: its workers died or hung while they had it. A call may have taken
	// effect, and the message may have killed them.
	RepeatLookFirst
)

// String returns the answer as people see it, such as "look first".
func (r Repetition) String() string {
	switch r {
	case RepeatSafe:
		return "safe"
	case RepeatSafeUntil:
		return "safe until"
	case RepeatPointless:
		return "pointless"
	case RepeatInDoubt:
		return "in doubt"
	case RepeatLookFirst:
		return "look first"
	}
	return "unknown"
}

// Repetition returns whether m may be sent back at the time now, if it is a dead letter.
// It uses only what is stored with the message, in this order:
//
//	Meta.UnsafeToRepeat    Meta.Remembered    Cause                             answer
//	true                   zero or passed     any                               in doubt
//	any                    any                Lapsed                            look first
//	any                    any                Undecodable                       pointless
//	true                   after now          any other                         safe until Remembered
//	false                  any                any other, of a pointer           pointless
//	false                  any                Permanent, Expired, Refused       pointless
//	false                  any                Exhausted, or unknown             safe
//
// The cause UnsafeToRepeat counts as a true Meta.UnsafeToRepeat: another program may set
// only the cause.
//
// A merge leaves messages in doubt in place unless its Spec asks for them
// (jobs.Spec.UnsafeToRepeat). It sends back messages that are to be looked at first,
// unless its Spec leaves them in place (LeaveLapsed), as the command and the console do.
func (m *Message) Repetition(now time.Time) Repetition {
	isRemembered := m.Meta.Remembered.After(now)
	isUnsafe := m.Meta.UnsafeToRepeat || m.Cause == UnsafeToRepeat
	switch {
	case isUnsafe && !isRemembered:
		return RepeatInDoubt
	case m.Cause == Lapsed:
		return RepeatLookFirst
	case m.Cause == Undecodable:
		return RepeatPointless
	case isUnsafe:
		return RepeatSafeUntil
	}
	if m.PointsTo() != "" {
		return RepeatPointless
	}
	switch m.Cause {
	case Permanent, Expired, Refused:
		return RepeatPointless
	default:
		return RepeatSafe
	}
}
