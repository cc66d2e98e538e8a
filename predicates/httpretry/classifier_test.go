package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
)

var none predicates.Reason

func classify[OUT any](a *predicates.Attempt[OUT]) predicates.Reason {
	reason, ok := httpretry.Classifier[OUT]()(a)
	if !ok {
		return none
	}
	return reason
}

// Literally the tables of the package documentation; all other statuses have no reason.
func TestReasons_Statuses(t *testing.T) {
	table := map[int]struct {
		reason        predicates.Reason
		name          string
		nonIdempotent bool
	}{
		408: {httpretry.RequestTimeout, "HTTP_408_REQUEST_TIMEOUT", true},
		425: {httpretry.TooEarly, "HTTP_425_TOO_EARLY", true},
		429: {httpretry.TooManyRequests, "HTTP_429_TOO_MANY_REQUESTS", true},
		500: {httpretry.InternalServerError, "HTTP_500_INTERNAL_SERVER_ERROR", false},
		502: {httpretry.BadGateway, "HTTP_502_BAD_GATEWAY", false},
		503: {httpretry.ServiceUnavailable, "HTTP_503_SERVICE_UNAVAILABLE", false},
		504: {httpretry.GatewayTimeout, "HTTP_504_GATEWAY_TIMEOUT", false},
		529: {httpretry.Overloaded, "HTTP_529_OVERLOADED", false},
	}
	rejections := map[int]string{
		400: "HTTP_400_BAD_REQUEST", 401: "HTTP_401_UNAUTHORIZED", 402: "HTTP_402_PAYMENT_REQUIRED",
		403: "HTTP_403_FORBIDDEN", 404: "HTTP_404_NOT_FOUND", 405: "HTTP_405_METHOD_NOT_ALLOWED",
		407: "HTTP_407_PROXY_AUTHENTICATION_REQUIRED", 409: "HTTP_409_CONFLICT", 410: "HTTP_410_GONE",
		411: "HTTP_411_LENGTH_REQUIRED", 412: "HTTP_412_PRECONDITION_FAILED", 413: "HTTP_413_REQUEST_ENTITY_TOO_LARGE",
		414: "HTTP_414_REQUEST_URI_TOO_LONG", 415: "HTTP_415_UNSUPPORTED_MEDIA_TYPE", 417: "HTTP_417_EXPECTATION_FAILED",
		421: "HTTP_421_MISDIRECTED_REQUEST", 422: "HTTP_422_UNPROCESSABLE_ENTITY", 423: "HTTP_423_LOCKED",
		424: "HTTP_424_FAILED_DEPENDENCY", 426: "HTTP_426_UPGRADE_REQUIRED", 428: "HTTP_428_PRECONDITION_REQUIRED",
		431: "HTTP_431_REQUEST_HEADER_FIELDS_TOO_LARGE", 451: "HTTP_451_UNAVAILABLE_FOR_LEGAL_REASONS",
	}
	for status := 100; status < 600; status++ {
		row := table[status]
		if name, ok := rejections[status]; ok {
			row.reason = predicates.NewRejection(name)
		} else if !row.reason.IsZero() {
			assert.Equal(t, row.name, row.reason.Name())
			assert.Equal(t, row.nonIdempotent, row.reason.AllowsNonIdempotentRetry(), "%d", status)
			assert.False(t, row.reason.AlwaysRetry(), "%d", status)
		}

		byError := &predicates.Attempt[int]{Err: fmt.Errorf("get: %w", &httpretry.StatusError{StatusCode: status})}
		assert.Equal(t, row.reason, classify(byError), "%d", status)
		assert.Equal(t, predicates.ResponseReceived, byError.Stage, "%d", status)

		byResult := &predicates.Attempt[*http.Response]{Results: []*http.Response{{StatusCode: status}}}
		assert.Equal(t, row.reason, classify(byResult), "%d", status)

		asAny := &predicates.Attempt[any]{Results: []any{&http.Response{StatusCode: status}}}
		assert.Equal(t, row.reason, classify(asAny), "%d", status)

		// The weakened reason after a redirect that changed the method, or together with
		// a request that may have had an effect.
		redirected := &predicates.Attempt[int]{Err: &httpretry.StatusError{StatusCode: status, Redirected: true}}
		beside := &predicates.Attempt[int]{Err: &httpretry.StatusError{StatusCode: status}, InDoubt: true}
		besideResult := &predicates.Attempt[any]{Results: []any{&http.Response{StatusCode: status}}, InDoubt: true}
		afterRedirect, weak := row.reason, row.reason
		switch {
		case row.reason.IsRejection():
			afterRedirect, weak = none, none
		case row.nonIdempotent:
			afterRedirect, weak = httpretry.AfterRedirect, weakened(row.reason)
		}
		assert.Equal(t, afterRedirect, classify(redirected), "%d", status)
		assert.Equal(t, weak, classify(beside), "%d", status)
		assert.Equal(t, weak, classify(besideResult), "%d", status)
		assert.False(t, classify(redirected).AllowsNonIdempotentRetry(), "%d", status)
	}
	assert.Len(t, httpretry.Reasons(), len(table)+3+len(rejections))
	for _, r := range httpretry.Reasons() {
		assert.NotEmpty(t, r.Name())
	}
}

func TestClassifier_OtherOutcomes(t *testing.T) {
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Results: []int{503}}))
	assert.Equal(t, none, classify(&predicates.Attempt[*http.Response]{}))
	assert.Equal(t, none, classify(&predicates.Attempt[*http.Response]{Results: []*http.Response{nil}}))
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Err: errors.New("unsupported protocol scheme")}))
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Err: &url.Error{Err: context.Canceled}}))
	assert.Equal(t, netretry.ConnectionLost, classify(&predicates.Attempt[int]{Err: &url.Error{Err: io.EOF}}))
	assert.Equal(t, netretry.TimedOut, classify(&predicates.Attempt[int]{Err: &url.Error{Err: context.DeadlineExceeded}}))
	for _, text := range []string{ // errors of net/http that have only a text
		"http: server closed idle connection", "net/http: HTTP/1.x transport connection broken: EOF",
		"http2: client connection lost",
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=""`,
		"http2: client connection force closed via ClientConn.Close", "connection error: PROTOCOL_ERROR",
		"http2: Transport received Server's graceful shutdown GOAWAY",
		"http2: Transport received GOAWAY from server ErrCode:INTERNAL_ERROR",
		"stream error: stream ID 3; INTERNAL_ERROR; received from peer", "stream error: stream ID 3; CANCEL",
		"stream error: stream ID 3; REFUSED_STREAM; received from peer", // without Transport: of which request?
		"http2: Transport: cannot retry err [stream error: stream ID 1; REFUSED_STREAM; received from peer]" +
			" after Request.Body was written; define Request.GetBody to avoid this error",
	} {
		lost := classify(&predicates.Attempt[int]{Err: &url.Error{Err: errors.New(text)}})
		assert.Equal(t, netretry.ConnectionLost, lost, text)
		assert.False(t, lost.AllowsNonIdempotentRetry())
	}
	for _, text := range []string{ // a retry would fail the same way
		"stream error: stream ID 3; HTTP_1_1_REQUIRED; received from peer",
		"stream error: stream ID 3; INADEQUATE_SECURITY; received from peer",
		`stream error: stream ID 1; PROTOCOL_ERROR; invalid header field name "A"`,
	} {
		assert.Equal(t, none, classify(&predicates.Attempt[int]{Err: &url.Error{Err: errors.New(text)}}), text)
	}
}

func TestStatusCode(t *testing.T) {
	code := httpretry.StatusCode[*http.Response]()
	for _, tt := range []struct {
		a    predicates.Attempt[*http.Response]
		want int
	}{
		{predicates.Attempt[*http.Response]{Err: fmt.Errorf("x: %w", &httpretry.StatusError{StatusCode: 503})}, 503},
		{predicates.Attempt[*http.Response]{Results: []*http.Response{{StatusCode: 202}}}, 202},
		{predicates.Attempt[*http.Response]{Err: io.EOF}, 0},
		{predicates.Attempt[*http.Response]{}, 0},
	} {
		got, ok := code(&tt.a)
		assert.Equal(t, tt.want, got)
		assert.Equal(t, tt.want != 0, ok)
	}

	// A user's row comes first.
	c := predicates.Classifiers(
		predicates.ByCode(httpretry.StatusCode[int](), map[int]predicates.Reason{503: httpretry.TooManyRequests, 500: {}}),
		httpretry.Classifier[int]())
	for status, want := range map[int]predicates.Reason{
		503: httpretry.TooManyRequests, 500: none, 502: httpretry.BadGateway,
	} {
		reason, ok := c(&predicates.Attempt[int]{Err: &httpretry.StatusError{StatusCode: status}})
		assert.True(t, ok)
		assert.Equal(t, want, reason)
	}
}

// Results that cannot hold a response are not checked one by one.
func TestClassifyingResultsAllocatesNothing(t *testing.T) {
	c := httpretry.Classifier[[4]int]()
	a := &predicates.Attempt[[4]int]{Results: make([][4]int, 100)}
	assert.Zero(t, testing.AllocsPerRun(100, func() { c(a) }))
}
