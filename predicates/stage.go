package predicates

import (
	"errors"
	"fmt"
)

// Stage is how far a request had come when its attempt ended. A call that was never sent
// cannot have taken effect.
//
//	|--- ClientDispatch --->|
//	                        |--- NetworkTime --->|
//	                                             |--- ResponseReceived --->|
//
//	stage              may the call have taken effect?
//	ClientDispatch     no: it was not sent
//	NetworkTime        unknown: it was sent, but a complete response did not arrive
//	ResponseReceived   depends on the response, if the classifier can read it
//
// Stages are ordered by time. The zero value, [Unreported], counts as NetworkTime from
// the start of the call on, unless the error proves that the request was not sent. A
// reported NetworkTime outranks such an error, since the function may have sent another
// request.
//
// The stages come from RFC 0049 of the Couchbase SDKs.
type Stage uint8

const (
	// Unreported counts as NetworkTime.
	Unreported Stage = iota
	// ClientDispatch means that the request was not sent. Every call may be retried.
	ClientDispatch
	// NetworkTime means that the request was at least partly sent, and a complete
	// response did not arrive. Only idempotent calls may be retried.
	NetworkTime
	// ResponseReceived means that a complete response arrived, which decides about a
	// retry.
	ResponseReceived
)

// String returns the stage in words, such as "client dispatch".
func (s Stage) String() string {
	switch s {
	case Unreported:
		return "unreported"
	case ClientDispatch:
		return "client dispatch"
	case NetworkTime:
		return "network time"
	case ResponseReceived:
		return "response received"
	}
	return fmt.Sprintf("Stage(%d)", uint8(s))
}

// MarshalText returns the text of String.
func (s Stage) MarshalText() ([]byte, error) {
	if s > ResponseReceived {
		return nil, fmt.Errorf("predicates: no such stage: %d", uint8(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads the text of MarshalText.
func (s *Stage) UnmarshalText(text []byte) error {
	for stage := range ResponseReceived + 1 {
		if stage.String() == string(text) {
			*s = stage
			return nil
		}
	}
	return fmt.Errorf("predicates: no such stage: %q", text)
}

// StageError is an error with its stage, for code that knows the stage of a request but
// not the attempt: a wrapper of a client, such as httpretry.Transport.
type StageError struct {
	Stage Stage
	Err   error
}

// Error returns the message of Err.
func (e *StageError) Error() string { return fmt.Sprint(e.Err) }

// Unwrap returns Err.
func (e *StageError) Unwrap() error { return e.Err }

type timeout interface{ Timeout() bool }

// Timeout reports whether Err is a timeout: wrappers such as url.Error call this method
// directly.
func (e *StageError) Timeout() bool {
	var t timeout
	return errors.As(e.Err, &t) && t.Timeout()
}
