package exactlyonce

import "errors"

var (
	// ErrInvalid is the class of requests whose id or key breaks a rule, such as those of [ID.Validate], or is missing. The request was not
	// executed.
	ErrInvalid = errors.New("exactlyonce: invalid request id")

	// ErrStale reports that the outcome of the request is unknown: it may have been executed, and its record is gone. It is
	// permanent. A stale request must be neither repeated nor sent again under another id without looking for its effect.
	ErrStale = errors.New("exactlyonce: stale request, its outcome is unknown")

	// ErrMismatch reports that an earlier request with the same id had other content. The request was not executed. It is
	// permanent, and points to an error of the client.
	ErrMismatch = errors.New("exactlyonce: another request with this id had other content")

	// ErrInProgress reports that an earlier attempt of the request still runs and the answer was not waited for. The request
	// may be repeated with the same id.
	ErrInProgress = errors.New("exactlyonce: an earlier attempt is in progress")

	// ErrFull reports that a limit refuses to track another request. The request was not executed, and may be repeated with
	// the same id.
	ErrFull = errors.New("exactlyonce: too many tracked requests")

	// ErrCompleted reports that another attempt has stored its answer: the transaction must be rolled back, and the stored
	// answer is the answer. See [Store].
	ErrCompleted = errors.New("exactlyonce: another attempt has completed the request")
)
