package console

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

// repetition describes what happens if a dead letter is sent back.
type repetition struct {
	Level    string // ok, careful, danger: a class of the style sheet
	Headline string
	Lines    []string
}

// repeated describes the answer of store.Message.Repetition, as for jobs. It asks no
// service.
func repeated(e *store.Entry, now time.Time) repetition {
	var r repetition
	switch e.Repetition(now) {
	case store.RepeatSafe:
		r = safe(e)
	case store.RepeatSafeUntil:
		r = safeUntil(e, now)
	case store.RepeatPointless:
		r = pointless(e)
	case store.RepeatInDoubt:
		r = inDoubt(e, now)
	case store.RepeatLookFirst:
		r = repetition{"careful", "Look first: it is not known how far its workers got", []string{
			"Its workers died or hung while they had it, again and again. It may be what kills them.",
			"A call may have taken effect before a worker died. Where calls have request ids or idempotency keys that the message determines, the server finds them.",
		}}
	}
	if e.Meta.Merges > 0 {
		r.Lines = append(r.Lines, fmt.Sprintf("It was sent back %s already. A job leaves it here after %d.", count(e.Meta.Merges, "time"), jobs.DefaultMaxMerges))
	}
	return r
}

// mayHaveTakenEffect reports whether a dead letter's call may have taken effect, even if
// its service recognises the request: an edited message makes another request.
func mayHaveTakenEffect(e *store.Entry) bool {
	return e.Meta.UnsafeToRepeat || e.Cause == store.UnsafeToRepeat
}

func safe(e *store.Entry) repetition {
	if e.Cause != store.Exhausted {
		return repetition{"careful", "This console does not know its cause", []string{
			"No call is known to be in doubt. A later version of weir, or another program, has put it here.",
		}}
	}
	return repetition{"ok", "Safe to repeat", []string{
		fmt.Sprintf("It failed at each of its %s. Every call ended with an error that says it took no effect, or may be repeated.", count(e.Meta.Visit, "visit")),
		"If the service that it calls is back, it goes through. Otherwise it returns here.",
	}}
}

func pointless(e *store.Entry) repetition {
	place := e.PointsTo()
	if place != "" {
		return repetition{"careful", "It cannot be sent back: it points to its message", []string{
			"The message did not fit among the dead letters. It stays in " + place + ", and is not delivered again.",
			"A job leaves this dead letter here. You can edit it: give it the payload of the message.",
		}}
	}
	switch e.Cause {
	case store.Undecodable:
		return repetition{
			"careful", "Safe to repeat, but it fails again unless the program or the payload has changed",
			[]string{"The program's codec cannot read the payload, so nothing was called for it."},
		}
	case store.Expired:
		return repetition{
			"careful", "Safe to repeat, but it expires again",
			[]string{"Its deadline was " + when(e.Meta.Deadline) + ". A queue does not deliver it after that."},
		}
	case store.Refused:
		return repetition{"careful", "It ends here again unless something has changed", []string{
			"The sink can never take its result, or the engine its failure: it is too large, for example.",
			"A repeat calls the service again. That call is not marked as unsafe to repeat. An operator marks it if it succeeded " +
				"and is not idempotent. A worker without an operator, or of an earlier version, does not judge that.",
		}}
	default:
		return repetition{
			"careful", "Safe to repeat, but it fails again unless something has changed",
			[]string{"The error is of a kind that does not go away by itself.", "Mend the program, the service or the payload first."},
		}
	}
}

// ofDoubt are lines about a call that may have taken effect.
func ofDoubt(e *store.Entry, now time.Time) []string {
	made := "It was last made at a time that is not known."
	if failed := e.Meta.LastFailure; !failed.IsZero() {
		made = fmt.Sprintf("It failed %s ago, at %s.", age(now.Sub(failed)), when(failed))
	}
	return []string{"A call for it may have taken effect: its answer was lost, and nothing proves that it did not.", made}
}

// safeUntil describes a message whose call in doubt is repeated under the same id.
func safeUntil(e *store.Entry, now time.Time) repetition {
	until := e.Meta.Remembered
	return repetition{"ok", "Safe to repeat for " + age(until.Sub(now)), append(ofDoubt(e, now),
		"It is made again under the same request id, which the server remembers until "+when(until)+". So it takes effect once.",
		"After that the server has forgotten it, and a repeat is a new request.")}
}

// inDoubt describes a message whose call in doubt would be another request.
func inDoubt(e *store.Entry, now time.Time) repetition {
	m := &e.Meta
	r := repetition{"danger", "Not safe to repeat: it may happen twice", ofDoubt(e, now)}
	if m.Request != "" && !m.Remembered.IsZero() {
		r.Lines = append(r.Lines,
			"The server remembered the request until "+when(m.Remembered)+", "+age(now.Sub(m.Remembered))+" ago. A repeat is a new request for it.",
			"Look there for the request first. If it took effect, remove this message; if not, send it back.")
		return r
	}
	r.Lines = append(r.Lines,
		"The server keeps no request id of it, so a repeat is a new request.",
		"Check the called service first. If it took effect, remove this message; if not, send it back.")
	return r
}
