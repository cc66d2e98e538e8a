package exactlyonce

import "errors"

var (
	// ErrInvalid is the class of requests whose id or key is missing or breaks a rule
	// ([ID.Validate]). The request was not executed.
	ErrInvalid = errors.New("exactlyonce: invalid request")

	// ErrStale reports that the outcome of the request is unknown: it may have been
	// executed, and its record was removed. It is permanent. Neither repeat the request
	// nor send it under another id without looking for its effect.
	ErrStale = errors.New("exactlyonce: stale request: it may have taken effect")

	// ErrMismatch reports that an earlier request with the same id had other content. The
	// request was not executed. The error is permanent: the client's mistake.
	ErrMismatch = errors.New("exactlyonce: another request with this id had other content")

	// ErrInProgress reports that another attempt of the request is running, or has just
	// stored its answer. The request may be repeated with the same id, and then gets that
	// answer.
	ErrInProgress = errors.New("exactlyonce: another attempt is in progress")

	// ErrFull reports that a limit refuses to track another request, which was not
	// executed. It may be repeated with the same id.
	ErrFull = errors.New("exactlyonce: too many tracked requests")
)
