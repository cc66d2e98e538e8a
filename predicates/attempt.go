package predicates

import (
	"math"
	"time"
)

// NoDeadline as [Attempt.Remaining] is the time left to an element without a
// timeout.
const NoDeadline = time.Duration(math.MaxInt64)

// Attempt is what classifiers and reason-aware strategies see of an attempt that
// has ended. An operator fills it in; a test may, and then sets Number, Remaining
// (zero means that no time is left) and, for calls that may happen twice,
// Idempotent, which a policy does not fill in.
//
// It is generic in the output type only: the same view serves operators of every
// input type. It belongs to whoever passes it on and is good for the duration of
// the call. Whoever keeps it longer keeps a copy. What it refers to (Input,
// Results) must not be changed.
type Attempt[OUT any] struct {
	Input  any // the element
	Number int // of the attempt, from 1

	// Stage is how far the attempt had come, as reported by the function or proven
	// by its error (see [StageOf]); Unreported counts as NetworkTime. A classifier
	// whose evidence proves a stage corrects it, for strategies and logs; nobody
	// else changes anything here.
	Stage Stage
	// InDoubt is set if a request that its client has reported ([ReportSent]) may have
	// taken effect, whatever Err says: it was sent, and its server did not refuse it.
	// A classifier that reads a refusal from Err then names what is left of its
	// reason: WeakestOf(reason, Reason{}). Those of weir's clients do; a table ([ByError],
	// [ByCode]) does not, since it may know better what a refusal is.
	InDoubt bool
	// Reason is why the outcome deserves another try: what the classifiers found.
	// They see it unset.
	Reason Reason
	// Reasons are those for which the element was retried before.
	Reasons ReasonSet
	// Idempotent tells that the call may happen twice.
	Idempotent bool

	Results []OUT // of the attempt, if Err is nil
	Err     error // of the attempt; nil: it has results, possibly none

	Elapsed   time.Duration // since the element took its slot
	Remaining time.Duration // until its deadline; NoDeadline if it has none

	// Values are the user's values: the attempt's context, as a rule. Nil: none.
	Values interface{ Value(key any) any }

	part part
}

// part is what EachError shows of an attempt. One that is called by another answers
// here that the branch which it sees is harmless.
type part uint8

const (
	whole part = iota
	branch
	harmlessBranch
)

// Retries returns the number of retries made so far, 0 at the first outcome.
func (a *Attempt[OUT]) Retries() int { return a.Number - 1 }

// Value returns the user's value for key from the context, or nil.
func (a *Attempt[OUT]) Value(key any) any {
	if a.Values == nil {
		return nil
	}
	return a.Values.Value(key)
}
