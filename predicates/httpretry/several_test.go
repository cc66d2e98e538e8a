package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

func statusOf(code int) error {
	return &httpretry.StatusError{StatusCode: code, Method: http.MethodPost}
}

func weakened(r predicates.Reason) predicates.Reason {
	return predicates.NewReason(r.Name(), false, false)
}

// R3: a POST that was refused is not repeated if another of the same call may have taken
// effect.
func TestJoinedErrors(t *testing.T) {
	at := func(s predicates.Stage, err error) error { return &predicates.StageError{Stage: s, Err: err} }
	refused := at(predicates.ClientDispatch, &net.OpError{Op: "dial", Err: errors.New("refused")})
	lost := at(predicates.NetworkTime, io.EOF)
	sentinel := errors.New("lookup failed")
	for _, tt := range []struct {
		name  string
		a, b  error
		want  predicates.Reason
		stage predicates.Stage
	}{
		{"both refused", statusOf(429), statusOf(425), httpretry.TooManyRequests, predicates.ResponseReceived},
		{"and executed, perhaps", statusOf(502), statusOf(429), httpretry.BadGateway, predicates.ResponseReceived},
		{"and not listed", statusOf(429), statusOf(406), weakened(httpretry.TooManyRequests), predicates.ResponseReceived},
		{"and rejected", statusOf(429), statusOf(404), httpretry.TooManyRequests, predicates.ResponseReceived},
		{"rejected, and executed, perhaps", statusOf(404), statusOf(502), httpretry.BadGateway, predicates.ResponseReceived},
		{"rejected, and not listed", statusOf(404), statusOf(406), none, predicates.ResponseReceived},
		{"and lost", statusOf(429), lost, netretry.ConnectionLost, predicates.ResponseReceived},
		{"and lost, without a stage", statusOf(429), io.EOF, netretry.ConnectionLost, predicates.ResponseReceived},
		{
			"and lost in a client", statusOf(429), &url.Error{Op: "Post", URL: "http://x", Err: errors.Join(io.EOF, sentinel)},
			netretry.ConnectionLost, predicates.ResponseReceived,
		},
		{"and never sent", statusOf(429), refused, httpretry.TooManyRequests, predicates.ResponseReceived},
		{"and unknown", statusOf(429), sentinel, weakened(httpretry.TooManyRequests), predicates.ResponseReceived},
		{"never sent and unknown", refused, sentinel, weakened(netretry.NotConnected), predicates.NetworkTime},
		{"and cancelled", statusOf(429), context.Canceled, weakened(httpretry.TooManyRequests), predicates.ResponseReceived},
		{"lost and cancelled", io.EOF, context.Canceled, netretry.ConnectionLost, predicates.Unreported},
		{"lost and never sent", lost, refused, netretry.ConnectionLost, predicates.NetworkTime},
		{
			"within one stage", at(predicates.NetworkTime, errors.Join(statusOf(429), statusOf(502))), sentinel,
			httpretry.BadGateway, predicates.ResponseReceived,
		},
	} {
		for order, err := range []error{errors.Join(tt.a, tt.b), fmt.Errorf("%w: %w", tt.b, tt.a)} {
			a := &predicates.Attempt[int]{Err: err}
			got := classify(a)
			if order == 0 || !tt.want.AllowsNonIdempotentRetry() {
				assert.Equal(t, tt.want, got, "%s: %v", tt.name, err)
			}
			assert.Equal(t, tt.want.AllowsNonIdempotentRetry(), got.AllowsNonIdempotentRetry(), "%s: %v", tt.name, err)
			assert.Equal(t, tt.stage, a.Stage, "%s: %v", tt.name, err)
		}
	}
	harmless := decision.EachError(httpretry.Classifier[int](), sentinel)
	reason, _ := harmless(&predicates.Attempt[int]{Err: fmt.Errorf("%w: %w", sentinel, statusOf(429))})
	assert.Equal(t, httpretry.TooManyRequests, reason)
}

func TestClassifier_SeveralResponses(t *testing.T) {
	responses := func(codes ...int) *predicates.Attempt[*http.Response] {
		a := &predicates.Attempt[*http.Response]{}
		for _, code := range codes {
			a.Results = append(a.Results, &http.Response{StatusCode: code, Header: http.Header{}})
		}
		return a
	}
	for _, tt := range []struct {
		want  predicates.Reason
		codes []int
	}{
		{none, []int{200, 204}},
		{none, []int{200, 404}},
		{httpretry.ServiceUnavailable, []int{200, 503}},
		{httpretry.BadGateway, []int{429, 502}},
		{httpretry.TooManyRequests, []int{429, 425}},
		{weakened(httpretry.TooManyRequests), []int{429, 200}},
		{weakened(httpretry.TooManyRequests), []int{406, 429}},
		{httpretry.TooManyRequests, []int{404, 429}},
	} {
		assert.Equal(t, tt.want, classify(responses(tt.codes...)), "%v", tt.codes)
	}

	code := httpretry.StatusCode[*http.Response]()
	got, ok := code(responses(503, 503))
	assert.True(t, ok)
	assert.Equal(t, 503, got)
	_, ok = code(responses(503, 200))
	assert.False(t, ok, "which one?")
	_, ok = httpretry.StatusCode[int]()(&predicates.Attempt[int]{Err: errors.Join(statusOf(503), statusOf(429))})
	assert.False(t, ok, "which one?")

	a := responses(503, 503, 503)
	a.Results[1].Header.Set("Retry-After", "60")
	a.Results[2].Header.Set("Retry-After", "5")
	delay, ok := httpretry.Pushback(a)
	assert.True(t, ok)
	assert.Equal(t, time.Minute, delay)
}

// R2: a request before the call has not sent the call, if the function marks its status.
func TestStatusBeforeTheCall(t *testing.T) {
	before := func(code int) error {
		return fmt.Errorf("token: %w", &predicates.StageError{Stage: predicates.ClientDispatch, Err: statusOf(code)})
	}
	for _, tt := range []struct {
		name     string
		err      error
		reported predicates.Stage
		want     predicates.Reason
		stage    predicates.Stage
	}{
		{"listed", before(503), predicates.Unreported, netretry.NotSent, predicates.ClientDispatch},
		{"listed, reported too", before(503), predicates.ClientDispatch, netretry.NotSent, predicates.ClientDispatch},
		{"rejected", before(404), predicates.Unreported, predicates.NewRejection("HTTP_404_NOT_FOUND"), predicates.ClientDispatch},
		{"not listed", before(406), predicates.Unreported, none, predicates.ClientDispatch},
		{"but something was sent", before(503), predicates.NetworkTime, httpretry.ServiceUnavailable, predicates.ResponseReceived},
		{
			"reported only: an answer has come", statusOf(503), predicates.ClientDispatch, httpretry.ServiceUnavailable,
			predicates.ResponseReceived,
		},
		{
			"beside one that was sent", errors.Join(before(503), statusOf(502)), predicates.Unreported, httpretry.BadGateway,
			predicates.ResponseReceived,
		},
	} {
		a := &predicates.Attempt[int]{Err: tt.err, Stage: tt.reported}
		assert.Equal(t, tt.want, classify(a), tt.name)
		assert.Equal(t, tt.stage, a.Stage, tt.name)
	}
}

// The same with a policy, which passes the classifier the stage of all errors.
func TestJoinedErrorsUnderAPolicy(t *testing.T) {
	at := func(s predicates.Stage, err error) error { return &predicates.StageError{Stage: s, Err: err} }
	post := func(err error) error { return &url.Error{Op: "Post", URL: "http://x", Err: err} }
	token := at(predicates.ClientDispatch, statusOf(503))
	refused := at(predicates.ClientDispatch, &net.OpError{Op: "dial", Err: errors.New("refused")})
	policy := strategies.ReasonAware(httpretry.Classifier[int](), nil)
	for name, tt := range map[string]struct {
		err     error
		retried bool
	}{
		"token":                     {token, true},
		"refused":                   {post(refused), true},
		"token and refused":         {errors.Join(token, post(refused)), true},
		"429 and refused":           {errors.Join(statusOf(429), post(refused)), true},
		"token and lost":            {errors.Join(token, post(io.EOF)), false},
		"lost and token":            {errors.Join(post(io.EOF), token), false},
		"429, refused and lost":     {errors.Join(statusOf(429), refused, post(io.EOF)), false},
		"refused and lost":          {errors.Join(refused, post(io.EOF)), false},
		"refused and lost, clients": {errors.Join(post(refused), post(io.EOF)), false},
	} {
		a := &predicates.Attempt[int]{Number: 1, Err: tt.err, Remaining: decision.NoDeadline}
		d := decision.StepsOf(policy).Decide(t.Context(), a, &decision.Situation{})
		assert.Equal(t, tt.retried, d.NoRetryReason == decision.Retried, "%s: %v, %v in %v", name, d.NoRetryReason, d.Reason, a.Stage)
		if !tt.retried {
			assert.NotEqual(t, predicates.ClientDispatch, a.Stage, name)
		}
	}

	code := httpretry.StatusCode[int]()
	_, ok := code(&predicates.Attempt[int]{Err: errors.Join(statusOf(503), at(predicates.NetworkTime, io.EOF))})
	assert.False(t, ok, "the other one has none")
	_, ok = code(&predicates.Attempt[int]{Err: errors.Join(statusOf(503), errors.New("unknown"))})
	assert.False(t, ok, "the other one has none")
	got, ok := code(&predicates.Attempt[int]{Err: fmt.Errorf("get: %w", errors.Join(statusOf(503)))})
	assert.True(t, ok)
	assert.Equal(t, 503, got)
}
