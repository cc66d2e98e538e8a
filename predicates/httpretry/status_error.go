package httpretry

import (
	"fmt"
	"net/http"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
)

// StatusError is a response with an error status. See [CheckResponse].
type StatusError struct {
	StatusCode int
	Method     string // of the answered request; "" if unknown
	URL        string // of the answered request; password, query and fragment are hidden; "" if unknown

	// Redirected reports that an earlier request of the call had another method: it may
	// have been executed before the redirect.
	Redirected bool

	// Delay is the delay that the server demands, if HasDelay is set: see the package
	// documentation.
	Delay    time.Duration
	HasDelay bool

	tracker string // result of an exactlyonce tracker, or ""
}

var _ predicates.ServerPushback = (*StatusError)(nil)

// CheckResponse returns nil for a status below 400, otherwise a [*StatusError] with the
// delay that the response demands. It neither reads nor closes the body.
//
// A date in Retry-After is measured from the header Date, so that the clocks of client
// and server need not agree; without a Date, from the wall clock. A policy
// (strategies.ReasonAware) with [Classifier] waits for that delay.
func CheckResponse(resp *http.Response) error {
	if resp.StatusCode < 400 {
		return nil
	}
	return statusError(resp)
}

func statusError(resp *http.Response) *StatusError {
	e := &StatusError{StatusCode: resp.StatusCode, tracker: oncewire.Of(resp.Header)}
	if req := resp.Request; req != nil {
		e.Method = method(req)
		e.Redirected = methodChanged(req)
		e.URL = guard.URL(req.URL)
	}
	e.Delay, e.HasDelay = demandedDelay(resp.StatusCode, resp.Header, time.Now()) //nolint:forbidigo // without a Date, compare with the wall clock
	return e
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("http status %d %s", e.StatusCode, http.StatusText(e.StatusCode))
	if e.Method != "" {
		s = e.Method + " " + e.URL + ": " + s
	}
	if delay, ok := e.RetryPushback(); ok { // shows why there was no retry
		s += fmt.Sprintf(" (the server asks to wait %v)", delay)
	}
	return s
}

// RetryPushback implements [predicates.ServerPushback]. A Delay of 0 is not a demand.
func (e *StatusError) RetryPushback() (delay time.Duration, ok bool) {
	return e.Delay, e.HasDelay && e.Delay > 0
}

func methodChanged(req *http.Request) bool {
	for r := req; r.Response != nil && r.Response.Request != nil; r = r.Response.Request {
		if method(r.Response.Request) != method(req) {
			return true
		}
	}
	return false
}

func method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}
