package httpretry

import (
	"errors"
	"net/http"
	"strings"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// Classifier returns the classifier of HTTP calls: by status, of a [*StatusError]
// or of an *http.Response among the results, else by the error of the connection.
// See the package documentation for its table.
func Classifier[OUT any]() predicates.Classifier[OUT] {
	connection := netretry.ClassifierOf[OUT](kindOf)
	return func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if e := status(a); e != nil {
			a.Stage = predicates.ResponseReceived
			reason, ok := byStatus[e.StatusCode]
			if e.Redirected && reason.AllowsNonIdempotentRetry() {
				reason = AfterRedirect
			}
			return reason, ok
		}
		return connection(a)
	}
}

// StatusCode returns the extraction, for [predicates.ByCode], of the status code
// of a [*StatusError] or of an *http.Response among the results.
func StatusCode[OUT any]() func(a *predicates.Attempt[OUT]) (int, bool) {
	return func(a *predicates.Attempt[OUT]) (int, bool) {
		if a.Err == nil {
			if resp := response(a); resp != nil {
				return resp.StatusCode, true
			}
			return 0, false
		}
		if e, ok := errors.AsType[*StatusError](a.Err); ok {
			return e.StatusCode, true
		}
		return 0, false
	}
}

// status returns the error status that a ended with, or nil.
func status[OUT any](a *predicates.Attempt[OUT]) *StatusError {
	if a.Err != nil {
		e, _ := errors.AsType[*StatusError](a.Err)
		return e
	}
	if resp := response(a); resp != nil && resp.StatusCode >= 400 {
		return statusError(resp)
	}
	return nil
}

// response returns the first result that is a response, or nil.
func response[OUT any](a *predicates.Attempt[OUT]) *http.Response {
	if a.Err != nil || !holdsResponse[OUT]() {
		return nil
	}
	for i := range a.Results {
		if resp, ok := any(a.Results[i]).(*http.Response); ok && resp != nil {
			return resp
		}
	}
	return nil
}

// holdsResponse reports whether an OUT can be a response, so that others need not
// be looked at one by one.
func holdsResponse[OUT any]() bool {
	var none OUT
	switch any(&none).(type) {
	case **http.Response, *any:
		return true
	}
	return false
}

// kindOf is netretry.KindOf with the errors of net/http that have neither type nor
// value.
func kindOf(err error) netretry.Kind {
	for e := err; e != nil; e = errors.Unwrap(e) {
		switch text := e.Error(); {
		case text == "net/http: TLS handshake timeout":
			return netretry.Dial
		case text == "http: server closed idle connection",
			strings.HasPrefix(text, "net/http: HTTP/1.x transport connection broken: "),
			text == "http2: client connection lost",
			strings.HasPrefix(text, "http2: server sent GOAWAY and closed the connection"):
			return netretry.Lost
		}
	}
	return netretry.KindOf(err)
}
