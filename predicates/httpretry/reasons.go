package httpretry

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
)

// The reasons of [Classifier], in addition to the reasons of package netretry.
var (
	// RequestTimeout, 408: the server did not receive the whole request in time.
	RequestTimeout = predicates.NewReason("HTTP_408_REQUEST_TIMEOUT", true, false)
	// TooEarly, 425: the server refuses a request that might be a replay.
	TooEarly = predicates.NewReason("HTTP_425_TOO_EARLY", true, false)
	// TooManyRequests, 429: the server refuses because of a rate limit.
	TooManyRequests = predicates.NewReason("HTTP_429_TOO_MANY_REQUESTS", true, false)
	// InternalServerError, 500: anything may have happened.
	InternalServerError = predicates.NewReason("HTTP_500_INTERNAL_SERVER_ERROR", false, false)
	// BadGateway, 502: the server behind the proxy did not return a valid answer.
	BadGateway = predicates.NewReason("HTTP_502_BAD_GATEWAY", false, false)
	// ServiceUnavailable, 503: overload or maintenance. A server that returns it has not
	// executed the call, but proxies return it, too, when they lose the server.
	ServiceUnavailable = predicates.NewReason("HTTP_503_SERVICE_UNAVAILABLE", false, false)
	// GatewayTimeout, 504: the server behind the proxy did not answer in time.
	GatewayTimeout = predicates.NewReason("HTTP_504_GATEWAY_TIMEOUT", false, false)
	// Overloaded, 529: the service is overloaded. No RFC defines this status; providers
	// of language models, and perhaps proxies, use it.
	Overloaded = predicates.NewReason("HTTP_529_OVERLOADED", false, false)
	// AfterRedirect: 408, 425 or 429 in answer to a request after the first, which has
	// been executed.
	AfterRedirect = predicates.NewReason("HTTP_REFUSED_AFTER_REDIRECT", false, false)

	// InProgress, 409 of a tracker (package exactlyonce): an earlier attempt of the
	// request runs.
	InProgress = predicates.NewReason("HTTP_409_IN_PROGRESS", false, false)
	// TrackerFull, 503 of a tracker: it is full, and did not execute the request.
	TrackerFull = predicates.NewReason("HTTP_503_TRACKER_FULL", true, false)
)

// Reasons returns all reasons of this package.
func Reasons() []predicates.Reason {
	all := []predicates.Reason{
		RequestTimeout, TooEarly, TooManyRequests, InternalServerError, BadGateway, ServiceUnavailable,
		GatewayTimeout, Overloaded, AfterRedirect, InProgress, TrackerFull,
	}
	for _, status := range rejections {
		all = append(all, byStatus[status])
	}
	return all
}

const statusOverloaded = 529

// byStatus is the table of the package documentation.
var byStatus = func() map[int]predicates.Reason {
	table := map[int]predicates.Reason{
		http.StatusRequestTimeout:      RequestTimeout,
		http.StatusTooEarly:            TooEarly,
		http.StatusTooManyRequests:     TooManyRequests,
		http.StatusInternalServerError: InternalServerError,
		http.StatusBadGateway:          BadGateway,
		http.StatusServiceUnavailable:  ServiceUnavailable,
		http.StatusGatewayTimeout:      GatewayTimeout,
		statusOverloaded:               Overloaded,
	}
	upper := strings.NewReplacer(" ", "_", "-", "_")
	for _, status := range rejections {
		name := fmt.Sprintf("HTTP_%d_%s", status, upper.Replace(strings.ToUpper(http.StatusText(status))))
		table[status] = predicates.NewRejection(name)
	}
	return table
}()

// rejections are statuses of permanent refusals before any effect: see the package
// documentation.
var rejections = []int{
	http.StatusBadRequest, http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusNotFound,
	http.StatusMethodNotAllowed, http.StatusProxyAuthRequired, http.StatusConflict, http.StatusGone,
	http.StatusLengthRequired, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge,
	http.StatusRequestURITooLong, http.StatusUnsupportedMediaType, http.StatusExpectationFailed,
	http.StatusMisdirectedRequest, http.StatusUnprocessableEntity, http.StatusLocked, http.StatusFailedDependency,
	http.StatusUpgradeRequired, http.StatusPreconditionRequired, http.StatusRequestHeaderFieldsTooLarge,
	http.StatusUnavailableForLegalReasons,
}

// reasonFor returns the reason for a status. tracker is the tracker's result, or "".
func reasonFor(status int, tracker string) (predicates.Reason, bool) {
	switch tracker {
	case oncewire.InProgress:
		return InProgress, true
	case oncewire.Full:
		return TrackerFull, true
	case oncewire.Stale: // law X1: its 410 is not a refusal
		return predicates.Reason{}, true
	}
	reason, ok := byStatus[status]
	return reason, ok
}

// withoutEffect reports whether resp proves that the request was not executed: it was
// refused, or sent elsewhere with its method.
func withoutEffect(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	reason, _ := reasonFor(resp.StatusCode, oncewire.Of(resp.Header))
	return reason.AllowsNonIdempotentRetry()
}
