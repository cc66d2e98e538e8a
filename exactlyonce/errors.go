package exactlyonce

import "errors"

var (
	// ErrInvalid is the class of requests whose id or key is missing or breaks a rule,
	// such as the rules of [ID.Validate]. The request was not executed.
	ErrInvalid = errors.New("exactlyonce: invalid request")

	// ErrStale reports that the outcome of the request is unknown: it may have been
	// executed, and its record is gone. It is permanent. A stale request must be neither
	// repeated nor sent again under another id without looking for its effect.
	ErrStale = errors.New("exactlyonce: stale request: it may have taken effect")

	// ErrMismatch reports that an earlier request with the same id had other content. The
	// request was not executed. It is permanent, and points to an error of the client.
	ErrMismatch = errors.New("exactlyonce: another request with this id had other content")

	// ErrInProgress reports that another attempt of the request is running and its answer
	// was not awaited, or that it was faster and has stored its answer meanwhile. The
	// request may be repeated with the same id, and then gets that answer.
	ErrInProgress = errors.New("exactlyonce: another attempt is in progress")

	// ErrFull reports that a limit refuses to track another request. The request was not
	// executed, and may be repeated with the same id.
	ErrFull = errors.New("exactlyonce: too many tracked requests")
)
