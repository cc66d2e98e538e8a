package predicates

import "time"

// Attempt describes an ended attempt to classifiers and reason-aware strategies. An
// operator fills it in. Tests set the fields that their code reads, and call
// strategiestest.Decide.
//
// It must not be kept after the call; keep a copy. Input and Results must not be changed.
type Attempt[OUT any] struct {
	Input  any // the element
	Number int // of the attempt, from 1

	// Stage is how far the attempt had come: the later of the reported stage
	// ([ReportStage]) and the stage of the error ([StageError]). Unreported counts as
	// NetworkTime. A classifier that can prove another stage sets it.
	Stage Stage
	// InDoubt is set if a reported request ([ReportSent]) was sent and not refused, so it
	// may have taken effect, whatever Err is. A classifier that finds a refusal in Err
	// then returns a reason that does not allow a retry. The classifiers of weir's
	// clients do so; [ByCode] and [ByException] do not, since your reason may know
	// better.
	InDoubt bool
	// Reason is why the outcome deserves another try, zero when classifiers are called.
	Reason Reason
	// Reasons are the reasons of earlier retries.
	Reasons ReasonSet
	// ReasonRetries is how often the element was retried for Reason, if its policy limits
	// that (strategies.Policy.WithMaxRetriesFor), without retries after an outage or a
	// throttle of its backend. It is 0 when classifiers are called.
	ReasonRetries int
	// Idempotent is set if the call may be repeated: it is idempotent or deduplicated
	// ([WithDeduplicated]).
	Idempotent bool

	Results []OUT // of the attempt, if Err is nil; may be empty
	Err     error // of the attempt, or nil

	Elapsed   time.Duration // since the element took its slot
	Remaining time.Duration // until its deadline; the greatest Duration without one

	// Values is the context of the attempt, with the values of observers, or nil for a
	// plain strategies.AsyncRetryStrategy.
	Values interface{ Value(key any) any }
}

// Retries returns the number of retries so far.
func (a *Attempt[OUT]) Retries() int { return a.Number - 1 }

// Value returns the user's value for key, or nil.
func (a *Attempt[OUT]) Value(key any) any {
	if a.Values == nil {
		return nil
	}
	return a.Values.Value(key)
}
