// Package oncewire has the HTTP headers that callers and servers of exactly-once calls
// share, for packages exactlyonce and httpretry.
package oncewire

import "net/http"

// Result is the response header with the tracker's result for a request's id. A response
// of the service to this attempt does not have it.
const Result = "Exactly-Once-Result"

// Kept is the response header of a refusal, with the value "true", that the tracker keeps
// for all attempts of the request on every server that shares its records: no attempt has
// taken effect, or will. Servers of earlier versions do not send it.
const Kept = "Exactly-Once-Kept"

// Limits of the fields of an id. Integers of structured header fields have at most 15
// digits (RFC 9651).
const (
	MaxSequence = 999_999_999_999_999
	MaxAttempt  = 999_999_999
	MaxStep     = 64 // bytes
)

// RequestKey is the context key of a handler's exactlyonce.Request.
type RequestKey struct{}

// Values of Result. Replayed marks a response of the service, the others are the
// tracker's.
const (
	Replayed   = "replayed"    // the answer to an earlier attempt
	Stale      = "stale"       // 410: the request stays in doubt
	Mismatch   = "mismatch"    // 409 or 422: an earlier request with the id had other content
	InProgress = "in-progress" // 409: an earlier attempt runs; the request may be repeated
	Full       = "full"        // 503: a limit refuses to track it; the request was not executed
	Invalid    = "invalid"     // 400: the id is missing or not valid; the request was not executed
)

// ProblemType returns the "type" of a problem document (RFC 9457) for a response of the
// tracker.
func ProblemType(result string) string { return "urn:weir:exactly-once:" + result }

// IsKept reports whether a response has the header [Kept].
func IsKept(h http.Header) bool { return h.Get(Kept) == "true" }

// Of returns the result of a response of the tracker, or "" for a response of the
// service, replayed or not.
func Of(h http.Header) string {
	switch result := h.Get(Result); result {
	case Stale, Mismatch, InProgress, Full, Invalid:
		return result
	}
	return ""
}
