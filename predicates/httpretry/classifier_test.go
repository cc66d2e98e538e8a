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

// Literally the table of the package documentation; all other statuses have no
// reason.
func TestStatuses(t *testing.T) {
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
	}
	for status := 100; status < 600; status++ {
		row := table[status]
		if !row.reason.IsZero() {
			assert.Equal(t, row.name, row.reason.Name())
			assert.Equal(t, row.nonIdempotent, row.reason.AllowsNonIdempotentRetry(), "%d", status)
			assert.False(t, row.reason.AlwaysRetry(), "%d", status)
		}

		byError := &predicates.Attempt[int]{Err: fmt.Errorf("get: %w", &httpretry.StatusError{StatusCode: status})}
		assert.Equal(t, row.reason, classify(byError), "%d", status)
		assert.Equal(t, predicates.ResponseReceived, byError.Stage, "%d", status)

		byResult := &predicates.Attempt[*http.Response]{Results: []*http.Response{{StatusCode: status}}}
		assert.Equal(t, row.reason, classify(byResult), "%d", status)

		asAny := &predicates.Attempt[any]{Results: []any{"x", &http.Response{StatusCode: status}}}
		assert.Equal(t, row.reason, classify(asAny), "%d", status)

		redirected := &predicates.Attempt[int]{Err: &httpretry.StatusError{StatusCode: status, Redirected: true}}
		want := row.reason
		if row.nonIdempotent {
			want = httpretry.AfterRedirect
		}
		assert.Equal(t, want, classify(redirected), "%d", status)
		assert.False(t, classify(redirected).AllowsNonIdempotentRetry(), "%d", status)
	}
	assert.Len(t, httpretry.Reasons(), len(table)+1)
}

func TestOtherOutcomes(t *testing.T) {
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Results: []int{503}}))
	assert.Equal(t, none, classify(&predicates.Attempt[*http.Response]{}))
	assert.Equal(t, none, classify(&predicates.Attempt[*http.Response]{Results: []*http.Response{nil}}))
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Err: errors.New("unsupported protocol scheme")}))
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Err: &url.Error{Err: context.Canceled}}))
	assert.Equal(t, netretry.ConnectionLost, classify(&predicates.Attempt[int]{Err: &url.Error{Err: io.EOF}}))
	assert.Equal(t, netretry.TimedOut, classify(&predicates.Attempt[int]{Err: &url.Error{Err: context.DeadlineExceeded}}))
	for _, text := range []string{ // errors of net/http that have neither type nor value
		"http: server closed idle connection", "net/http: HTTP/1.x transport connection broken: EOF",
		"http2: client connection lost",
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=""`,
	} {
		lost := classify(&predicates.Attempt[int]{Err: &url.Error{Err: errors.New(text)}})
		assert.Equal(t, netretry.ConnectionLost, lost, text)
		assert.False(t, lost.AllowsNonIdempotentRetry())
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

	// A row of one's own comes first.
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

// Results that cannot hold a response are not looked at one by one.
func TestClassifyingResultsAllocatesNothing(t *testing.T) {
	c := httpretry.Classifier[[4]int]()
	a := &predicates.Attempt[[4]int]{Results: make([][4]int, 100)}
	assert.Zero(t, testing.AllocsPerRun(100, func() { c(a) }))
}
