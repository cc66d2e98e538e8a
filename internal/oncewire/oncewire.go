// Package oncewire has the HTTP headers that callers and servers of exactly-once calls share, for packages exactlyonce
// and httpretry.
package oncewire

import "net/http"

// Result is the response header that says what became of a request as far as its id is concerned. An answer that the service
// gave to this very attempt has none.
const Result = "Exactly-Once-Result"

// Limits of the fields of an id. Numbers have at most 15 digits, as integers of structured header fields do (RFC 9651).
const (
	MaxSequence = 999_999_999_999_999
	MaxAttempt  = 999_999_999
	MaxStep     = 64 // bytes
)

// RequestKey finds the request, an exactlyonce.Request, in the context of its handler.
type RequestKey struct{}

// ElementKey finds the element that a tracker has numbered, an [Element], in its contexts.
type ElementKey struct{}

// Element is an element with a number.
type Element interface {
	// Carried returns the id of the latest request, if the element is a message that keeps it on its next visit; else "".
	Carried() string
}

// Values of Result. All but Replayed are answers of the tracker, not of the service.
const (
	Replayed   = "replayed"    // the answer to an earlier attempt
	Stale      = "stale"       // 410: the request stays in doubt
	Mismatch   = "mismatch"    // 409 or 422: an earlier request with the id had other content
	InProgress = "in-progress" // 409: an earlier attempt runs; the request may be repeated
	Full       = "full"        // 503: a limit refuses to track it; nothing was executed
	Invalid    = "invalid"     // 400: the id is missing or not valid; nothing was executed
)

// ProblemType returns the "type" of a problem document (RFC 9457) for one of the values that are answers of the tracker.
func ProblemType(result string) string { return "urn:weir:exactly-once:" + result }

// Of returns the answer of the tracker that h belongs to; "" if it is the service's own, replayed or not.
func Of(h http.Header) string {
	switch result := h.Get(Result); result {
	case Stale, Mismatch, InProgress, Full, Invalid:
		return result
	}
	return ""
}
