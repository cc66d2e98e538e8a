package predicates

import "time"

// Attempt describes an attempt that has ended to classifiers and reason-aware strategies.
// An operator fills it in. Tests set the fields that their code reads, and call
// strategiestest.Decide.
//
// It is generic only in the output type, so it serves operators of every input type. It
// must not be kept after the call; keep a copy. The values that it refers to (Input,
// Results) must not be changed.
type Attempt[OUT any] struct {
	Input  any // the element
	Number int // of the attempt, from 1

	// Stage is how far the attempt had come: the later of the reported stage
	// ([ReportStage]) and the stage of the error ([StageError]). Unreported counts as
	// NetworkTime. A classifier that can prove another stage sets it, for strategies and
	// logs.
	Stage Stage
	// InDoubt is set if a request that its client has reported ([ReportSent]) may have
	// taken effect, whatever Err is: it was sent, and its server did not refuse it. A
	// classifier that finds a refusal in Err then returns a reason that does not allow a
	// retry. The classifiers of weir's clients do so; [ByCode] and [ByException] do not,
	// since your reason may know refusals better.
	InDoubt bool
	// Reason is the reason why the outcome deserves another try, as returned by the
	// classifiers. It is zero when they are called.
	Reason Reason
	// Reasons are the reasons why the element was retried before.
	Reasons ReasonSet
	// ReasonRetries is how often the element was retried for Reason. An operator counts
	// only reasons that its policy limits (strategies.Policy.WithMaxRetriesFor), without
	// retries after an outage or a throttle of its backend. It is 0 when classifiers are
	// called.
	ReasonRetries int
	// Idempotent is set if the call may be repeated: it is idempotent, or it is
	// deduplicated ([WithDeduplicated]), so its servers recognise the repetition.
	Idempotent bool

	Results []OUT // of the attempt, if Err is nil; may be empty
	Err     error // of the attempt, or nil

	Elapsed   time.Duration // since the element took its slot
	Remaining time.Duration // until its deadline; the greatest Duration without a deadline

	// Values has the user's values, or is nil. An operator sets it to the context of the
	// attempt, with the values of observers; for a plain strategies.AsyncRetryStrategy it
	// is nil.
	Values interface{ Value(key any) any }
}

// Retries returns the number of retries made so far, 0 at the first outcome.
func (a *Attempt[OUT]) Retries() int { return a.Number - 1 }

// Value returns the user's value for key from the context, or nil.
func (a *Attempt[OUT]) Value(key any) any {
	if a.Values == nil {
		return nil
	}
	return a.Values.Value(key)
}
