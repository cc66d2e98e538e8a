package predicates

import (
	"errors"
	"fmt"
	"slices"
	"unique"
)

// AsyncRetryPredicate is the pair of predicates of a retry strategy. Either may be nil,
// which means never. An operator reads the pair once, when it is built, so the methods
// must always return the same predicates.
type AsyncRetryPredicate[OUT any] interface {
	// ResultPredicate judges attempts that ended with results, or is nil.
	ResultPredicate() ResultPredicate[OUT]

	// ExceptionPredicate judges attempts that ended with an error, or is nil.
	ExceptionPredicate() ExceptionPredicate
}

// RetryIf returns the pair of result and exception, for authors of strategies.
func RetryIf[OUT any](result ResultPredicate[OUT], exception ExceptionPredicate) AsyncRetryPredicate[OUT] {
	return retryIf[OUT]{result: result, exception: exception}
}

type retryIf[OUT any] struct {
	result    ResultPredicate[OUT]
	exception ExceptionPredicate
}

func (r retryIf[OUT]) ResultPredicate() ResultPredicate[OUT]  { return r.result }
func (r retryIf[OUT]) ExceptionPredicate() ExceptionPredicate { return r.exception }

// An ExceptionPredicate reports whether an attempt that ended with err should be tried
// again. err is never nil. See [HasException], [ErrorIs] and [ErrorAs].
type ExceptionPredicate func(err error) bool

// HasException reports whether err is not nil, which includes a cancelled context and a
// panic of the user's function. It is an [ExceptionPredicate].
func HasException(err error) bool {
	return err != nil
}

// ErrorIs returns a predicate that is true if [errors.Is] finds any target. It panics
// without targets, or if any is nil.
func ErrorIs(targets ...error) ExceptionPredicate {
	if len(targets) == 0 {
		panic("predicates: ErrorIs: no targets")
	}
	for i, target := range targets {
		if target == nil {
			panic(fmt.Sprintf("predicates: ErrorIs: nil target at index %d", i))
		}
	}
	targets = slices.Clone(targets)
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(target error) bool {
			return errors.Is(err, target)
		})
	}
}

// ErrorAs returns a predicate that is true if [errors.AsType] finds a T and the
// conditions hold for it:
//
//	predicates.ErrorAs[*net.OpError]()
//	predicates.ErrorAs(func(e net.Error) bool { return e.Timeout() })
//
// Only the first T counts. It panics if a condition is nil.
func ErrorAs[T error](conditions ...func(err T) bool) ExceptionPredicate {
	for i, condition := range conditions {
		if condition == nil {
			panic(fmt.Sprintf("predicates: ErrorAs: nil condition at index %d", i))
		}
	}
	conditions = slices.Clone(conditions)
	return func(err error) bool {
		target, ok := errors.AsType[T](err)
		return ok && !slices.ContainsFunc(conditions, func(condition func(err T) bool) bool {
			return !condition(target)
		})
	}
}

// A ResultPredicate reports whether an attempt that ended with results should be tried
// again. It receives all results of the attempt, perhaps none, and must neither change
// nor keep the slice. See [EmptyResult] and [AnyResult].
type ResultPredicate[OUT any] func(results []OUT) bool

// EmptyResult reports whether results is empty, as after a lookup that came too early. It
// is a [ResultPredicate].
func EmptyResult[OUT any](results []OUT) bool {
	return len(results) == 0
}

// AnyResult returns a predicate that is true if condition holds for at least one result.
// It panics if condition is nil.
func AnyResult[OUT any](condition func(result OUT) bool) ResultPredicate[OUT] {
	if condition == nil {
		panic("predicates: AnyResult: nil condition")
	}
	return func(results []OUT) bool {
		return slices.ContainsFunc(results, condition)
	}
}

// Reason is why an attempt deserves another try. Authors of classifiers make their own,
// as package variables, with [NewReason].
//
//	AllowsNonIdempotentRetry   the call has certainly not taken effect, so that
//	                           even a call that must not happen twice may be repeated
//	AlwaysRetry                the call is repeated without asking the strategy, until
//	                           the time runs out, after 1, 10, 50, 100, 500 ms, and
//	                           then every second
//
// A rejection ([NewRejection]) prevents a retry: the call was refused for good, without
// effect.
//
// The zero Reason means no reason. Reasons are equal (==) if the name and all properties
// are. A Reason is as small as a pointer, and safe for concurrent use.
type Reason struct {
	handle unique.Handle[reason]
}

type reason struct {
	name                  string
	nonIdempotent, always bool
	rejection             bool
}

// Reasons that belong to no system.
var (
	// Unknown is the reason of an unexpected outcome. It does not allow a retry of calls
	// that must not happen twice. RFC 0049 states that it "must not be retried", but its
	// best effort strategy retries it for idempotent calls: see
	// BestEffortStrategy.RefuseUnknown in package strategies.
	Unknown = NewReason("UNKNOWN", false, false)

	// CircuitBreakerOpen means that your own circuit breaker refused the call before it
	// was sent.
	CircuitBreakerOpen = NewReason("CIRCUIT_BREAKER_OPEN", true, false)
)

// NewReason returns the reason with this name and these properties.
//
//   - allowsNonIdempotentRetry: the call has certainly not taken effect, so even a call
//     that must not happen twice may be repeated. It makes no difference for other calls,
//     such as a read under strategies.Policy.Idempotent.
//   - alwaysRetry: the call is repeated without asking the strategy, until the time runs
//     out.
//
// So the reason of a read whose row is not there yet is NewReason("ABSENT", true, false).
//
// NewReason panics if name is empty, or if alwaysRetry is set without
// allowsNonIdempotentRetry.
func NewReason(name string, allowsNonIdempotentRetry, alwaysRetry bool) Reason {
	if name == "" {
		panic("predicates: NewReason: empty name")
	}
	if alwaysRetry && !allowsNonIdempotentRetry {
		panic(fmt.Sprintf("predicates: NewReason: %s: alwaysRetry without allowsNonIdempotentRetry", name))
	}
	return Reason{unique.Make(reason{name: name, nonIdempotent: allowsNonIdempotentRetry, always: alwaysRetry})}
}

// NewRejection returns the reason of calls that were refused for good, without effect: an
// HTTP 404, a violated unique constraint. The strategy is not asked. The element fails at
// once; its failure has the reason and is not in doubt.
//
//	var Duplicate = predicates.NewRejection("DUPLICATE_KEY")
//	return predicates.WithReason(err, Duplicate) // in the function, for the classifier Named
//
// NewRejection panics if name is empty.
func NewRejection(name string) Reason {
	if name == "" {
		panic("predicates: NewRejection: empty name")
	}
	return Reason{unique.Make(reason{name: name, nonIdempotent: true, rejection: true})}
}

// IsZero reports whether r is the zero value.
func (r Reason) IsZero() bool { return r == Reason{} }

func (r Reason) value() reason {
	if r.IsZero() {
		return reason{}
	}
	return r.handle.Value()
}

// Name returns the name, or "" for the zero Reason.
func (r Reason) Name() string { return r.value().name }

// AllowsNonIdempotentRetry reports whether even a call that must not happen twice may be
// repeated, because it has certainly not taken effect. It is true for a rejection, too.
func (r Reason) AllowsNonIdempotentRetry() bool { return r.value().nonIdempotent }

// AlwaysRetry reports whether the call is repeated without asking the strategy.
func (r Reason) AlwaysRetry() bool { return r.value().always }

// IsRejection reports whether r was made by [NewRejection].
func (r Reason) IsRejection() bool { return r.value().rejection }

// String returns the name, or "(none)" for the zero Reason.
func (r Reason) String() string {
	if r.IsZero() {
		return "(none)"
	}
	return r.Name()
}

// MarshalText returns the name, or "" for the zero value, for JSON values and keys.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.Name()), nil }

// UnmarshalText makes r a reason with this name that does not allow any retry, or the
// zero value for an empty name. A text does not include what the reason allows: compare
// the name with the reasons that you expect, such as httpretry.Reasons().
func (r *Reason) UnmarshalText(text []byte) error {
	*r = Reason{}
	if len(text) > 0 {
		*r = NewReason(string(text), false, false)
	}
	return nil
}

type reasonError struct {
	reason Reason
	err    error
}

// WithReason adds the reason for another try to err, for functions that know it. The
// classifier [Named] reads it. It returns nil if err is nil.
func WithReason(err error, r Reason) error {
	if err == nil {
		return nil
	}
	return &reasonError{reason: r, err: err}
}

// Error returns the message after the name of the reason.
func (e *reasonError) Error() string { return fmt.Sprintf("%v: %v", e.reason, e.err) }

func (e *reasonError) Unwrap() error { return e.err }
