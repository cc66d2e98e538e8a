package predicates

import (
	"fmt"
	"unique"
)

// Reason is why an attempt deserves another try, with its meaning for the call. Reasons are an open set: the author of a
// classifier makes its own, as package variables, with [NewReason].
//
//	AllowsNonIdempotentRetry   the call has certainly not taken effect, so that
//	                           even a call that must not happen twice may be repeated
//	AlwaysRetry                no caller wants to see this outcome: repeated without
//	                           asking the strategy, until the time runs out, after
//	                           1, 10, 50, 100, 500 ms, and then every second
//
// The stage is the evidence, the reason is the verdict: a strategy that has a reason need not look at the stage again.
//
// A rejection ([NewRejection]) is the opposite of a reason to try again: the call was answered and refused for good, without
// effect. Its element ends at once, and its failure is not ambiguous.
//
// The zero Reason is none. Two reasons are equal (==) if name and both properties are. A Reason is as small as a pointer; it is
// a value and safe for concurrent use.
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
	// Unknown is the reason of the unexpected: nothing is known, so it allows nothing. RFC 0049 says that it "must not be
	// retried", and its best effort retries it for idempotent calls all the same: see BestEffortStrategy.RefuseUnknown in
	// package strategies.
	Unknown = NewReason("UNKNOWN", false, false)

	// CircuitBreakerOpen: a circuit breaker of your own kept the call from being sent, so it has not taken effect.
	CircuitBreakerOpen = NewReason("CIRCUIT_BREAKER_OPEN", true, false)
)

// NewReason returns the reason with this name and these properties. It panics if name is empty, or if alwaysRetry is set
// without allowsNonIdempotentRetry, which would repeat calls that may have taken effect without asking the strategy.
func NewReason(name string, allowsNonIdempotentRetry, alwaysRetry bool) Reason {
	if name == "" {
		panic("predicates: NewReason: empty name")
	}
	if alwaysRetry && !allowsNonIdempotentRetry {
		panic(fmt.Sprintf("predicates: NewReason: %s: alwaysRetry without allowsNonIdempotentRetry", name))
	}
	return Reason{unique.Make(reason{name: name, nonIdempotent: allowsNonIdempotentRetry, always: alwaysRetry})}
}

// NewRejection returns the reason of calls that were answered and refused for good, without effect: an HTTP 404, a violated
// unique constraint. Strategies are not asked about it, and the call is not retried. The element fails, and its failure has the reason
// and is not in doubt.
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

// IsZero reports whether r is the zero value, which is not a reason.
func (r Reason) IsZero() bool { return r == Reason{} }

func (r Reason) value() reason {
	if r.IsZero() {
		return reason{}
	}
	return r.handle.Value()
}

// Name returns the name, and "" for none.
func (r Reason) Name() string { return r.value().name }

// AllowsNonIdempotentRetry reports whether even a call that must not happen twice may be repeated, because it has certainly not
// taken effect. That is true of a rejection, too, although repeating it is of no use.
func (r Reason) AllowsNonIdempotentRetry() bool { return r.value().nonIdempotent }

// AlwaysRetry reports whether the call is repeated without asking the strategy.
func (r Reason) AlwaysRetry() bool { return r.value().always }

// IsRejection reports whether r was made by [NewRejection].
func (r Reason) IsRejection() bool { return r.value().rejection }

// String returns the name, and "(none)" for none.
func (r Reason) String() string {
	if r.IsZero() {
		return "(none)"
	}
	return r.Name()
}

// MarshalText returns the name, and "" for the zero value. Thereby a Reason is its name in JSON, as a value and as a key of a map.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.Name()), nil }

// UnmarshalText makes r the reason with this name that does not allow any retry, and the zero value for an empty name. Only
// the makers of the reason know how much a name allows, and a registry does not exist: compare names with the names of the
// reasons that you expect, such as httpretry.Reasons().
func (r *Reason) UnmarshalText(text []byte) error {
	*r = Reason{}
	if len(text) > 0 {
		*r = NewReason(string(text), false, false)
	}
	return nil
}

// reasonError is an error that names its own reason.
type reasonError struct {
	reason Reason
	err    error
}

// WithReason returns err with the reason why its attempt deserves another try, for functions that know it best themselves. The
// classifier [Named] reads it. It returns nil if err is nil.
func WithReason(err error, r Reason) error {
	if err == nil {
		return nil
	}
	return &reasonError{reason: r, err: err}
}

// Error returns the error's own message with the reason's name.
func (e *reasonError) Error() string { return fmt.Sprintf("%v: %v", e.reason, e.err) }

func (e *reasonError) Unwrap() error { return e.err }
