package console

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// repetition says what happens if a dead letter is sent back, in words.
type repetition struct {
	Level    string // ok, careful, danger: a class of the style sheet
	Headline string
	Lines    []string
	Unsafe   bool // it goes back only if a person confirms it
}

// repeated judges by what is known of a message. Nothing else is known: it asks no service.
func repeated(e *store.Entry, now time.Time) repetition {
	m := &e.Meta
	if m.UnsafeToRepeat {
		return unsafeToRepeat(e, now)
	}
	r := repetition{Level: "ok", Headline: "Safe to repeat"}
	switch e.Cause {
	case store.Permanent:
		r.Level, r.Headline = "careful", "Safe to repeat, but it fails again unless something has changed"
		r.Lines = []string{"The error is of a kind that does not go away by itself.", "Mend the program, the service or the payload first."}
	case store.Exhausted:
		r.Lines = []string{
			fmt.Sprintf("It failed at each of its %s. Every call ended with an error that says it took no effect, or may be repeated.", count(m.Visit, "visit")),
			"If what it calls is back, it goes through; else it comes here again.",
		}
	case store.Undecodable:
		r.Level, r.Headline = "careful", "Safe to repeat, but it fails again unless the program or the payload has changed"
		r.Lines = []string{"The program's codec cannot read the payload, so nothing was called for it."}
	case store.Lapsed:
		r.Level, r.Headline = "careful", "Look first: nobody knows how far its workers came"
		r.Lines = []string{
			"Its workers died or hung while they had it, again and again. It may be what kills them.",
			"A call may have taken effect before a worker died. Where calls have request ids or idempotency keys that the message determines, the server finds them.",
		}
	case store.Expired:
		r.Level, r.Headline = "careful", "Safe to repeat, but it expires again"
		r.Lines = []string{"Its deadline was " + when(m.Deadline) + ". A queue does not deliver it after that."}
	case store.Refused:
		r.Level, r.Headline = "careful", "It was done, but its result could not be stored"
		r.Lines = []string{"A sink or a layer can never take what was made of it: it is too large, for example. A repeat calls the service again, and ends here again unless that has changed."}
	default:
		r.Level, r.Headline = "careful", "This console does not know its cause"
		r.Lines = []string{"Nothing says that a call is in doubt. A later version of weir, or another program, has put it here."}
	}
	if m.Merges > 0 {
		r.Lines = append(r.Lines, fmt.Sprintf("It was sent back %s already. A job leaves it here after 5.", count(m.Merges, "time")))
	}
	return r
}

// unsafeToRepeat judges a message whose call may have taken effect and is not idempotent.
func unsafeToRepeat(e *store.Entry, now time.Time) repetition {
	m := &e.Meta
	r := repetition{Lines: []string{"A call for it may have taken effect: its answer was lost, and nothing proves that it did not."}}
	made := "It was last made at a time that is not known."
	if !m.LastFailure.IsZero() {
		made = fmt.Sprintf("It failed %s ago, at %s.", age(now.Sub(m.LastFailure)), when(m.LastFailure))
	}
	r.Lines = append(r.Lines, made)
	switch {
	case m.Remembered.After(now):
		r.Level, r.Headline = "ok", "Safe to repeat for "+age(m.Remembered.Sub(now))
		r.Lines = append(r.Lines,
			"It is made again under the same request id, which the server remembers until "+when(m.Remembered)+". So it takes effect once.",
			"After that the server has forgotten it, and a repeat is a new request.")
	case m.Request != "" && !m.Remembered.IsZero():
		r.Level, r.Headline, r.Unsafe = "danger", "Not safe to repeat: it may happen twice", true
		r.Lines = append(r.Lines,
			"The server remembered the request until "+when(m.Remembered)+", "+age(now.Sub(m.Remembered))+" ago. A repeat is a new request for it.",
			"Look there for the request first. If it took effect, remove this message; if not, send it back.")
	default:
		r.Level, r.Headline, r.Unsafe = "danger", "Not safe to repeat: it may happen twice", true
		r.Lines = append(r.Lines,
			"The server keeps no request id of it, so a repeat is a new request.",
			"Check the called service first. If it took effect, remove this message; if not, send it back.")
	}
	return r
}
