package httpretry_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

// run runs call, which must not happen twice, under an operator that allows three
// retries. It returns how often it was called, and its failure, if it has failed.
func run(t *testing.T, call func(ctx context.Context) error) (calls int, failed *asyncop.Failure[int]) {
	t.Helper()
	policy := strategies.ReasonAware(httpretry.Classifier[int](), strategies.BestEffort[int]().WithMaxRetries(3))
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
		calls++ // one element, one call at a time
		return in, call(ctx)
	}), time.Minute, 1, policy, asyncop.WithDrainRetries(),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
			failed = &f
			return nil
		}))
	go func() {
		op.In() <- 1
		close(op.In())
	}()
	for range op.Out() {
	}
	require.NoError(t, op.Wait())
	return calls, failed
}

// request makes a request as shown in the documentation.
func request(ctx context.Context, client *http.Client, method, url string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("body"))
	if err != nil {
		return err
	}
	return do(client, req)
}

func accepting(t *testing.T) *server {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
	})
}

// A refusal of the second request of a call does not remove the doubt about the first. If
// the first had no effect, the call is repeated.
func TestCallOfTwoRequests(t *testing.T) {
	answering := func(status int) func(t *testing.T) string {
		return func(t *testing.T) string {
			return serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }).URL
		}
	}
	refusals := map[string]func(t *testing.T) string{
		"refused": refusing, "429": answering(429), "425": answering(425), "408": answering(408),
	}
	firsts := map[string]struct {
		method  string
		url     func(t *testing.T) string
		retried bool
	}{
		"executed":       {http.MethodPost, answering(200), false},
		"perhaps":        {http.MethodPost, answering(503), false},
		"lost":           {http.MethodPost, func(t *testing.T) string { return serve(t, hangUp).URL }, false},
		"put":            {http.MethodPut, answering(200), false},
		"safe method":    {http.MethodGet, answering(200), true},
		"rejected":       {http.MethodPost, answering(404), true},
		"refused before": {http.MethodPost, refusing, true},
		"redirected":     {http.MethodPost, func(t *testing.T) string { return serve(t, redirectTo(refusing(t), 308)).URL }, true},
		"seen elsewhere": {http.MethodPost, func(t *testing.T) string { return serve(t, redirectTo(refusing(t), 303)).URL }, false},
	}
	for name, first := range firsts {
		for refusal, second := range refusals {
			t.Run(name+" then "+refusal, func(t *testing.T) {
				_, client := clients(t)
				firstURL, secondURL := first.url(t), second(t)
				calls, failed := run(t, func(ctx context.Context) error {
					_ = request(ctx, client, first.method, firstURL) // the function ignores the error
					return request(ctx, client, http.MethodPost, secondURL)
				})
				want := 1
				if first.retried {
					want = 4
				}
				assert.Equal(t, want, calls)
				require.NotNil(t, failed)
				assert.Equal(t, !first.retried, failed.UnsafeToRepeat(), "%v: %v", failed.Reason, failed.Err)
			})
		}
	}
}

// A request that is still under way when its call has ended may be sent later.
func TestCallThatLeavesARequestBehind(t *testing.T) {
	dialing := make(chan struct{})
	base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		close(dialing)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
	_, client := clients(t)
	slow := &http.Client{Transport: httpretry.Transport(base)}
	url := refusing(t)
	left := make(chan struct{})
	calls, failed := run(t, func(ctx context.Context) error {
		go func() {
			defer close(left)
			_ = request(ctx, slow, http.MethodPost, url)
		}()
		<-dialing
		return request(ctx, client, http.MethodPost, url)
	})
	<-left
	assert.Equal(t, 1, calls)
	assert.True(t, failed.UnsafeToRepeat())
}

// A POST that was refused for good is safe to repeat.
func TestClassifier_RejectedPostIsSafeToRepeat(t *testing.T) {
	for status, unsafe := range map[int]bool{400: false, 404: false, 409: false, 412: false, 422: false, 406: true, 500: true} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		plain, tracing := clients(t)
		for _, client := range []*http.Client{plain, tracing} {
			calls, failed := run(t, func(ctx context.Context) error { return request(ctx, client, http.MethodPost, s.URL) })
			assert.Equal(t, 1, calls, "%d", status)
			assert.Equal(t, unsafe, failed.UnsafeToRepeat(), "%d", status)
			assert.Equal(t, !unsafe, failed.Reason.IsRejection(), "%d", status)
		}
	}
}

// An http.Client whose Timeout runs out replaces the error by its text.
func TestClientTimeoutWhileDialing(t *testing.T) {
	base := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
	client := &http.Client{Transport: httpretry.Transport(base), Timeout: time.Millisecond}
	calls, failed := run(t, func(ctx context.Context) error { return request(ctx, client, http.MethodPost, "http://host/") })
	assert.Equal(t, 4, calls)
	assert.Equal(t, netretry.NotSent, failed.Reason, "%v", failed.Err)
	assert.False(t, failed.UnsafeToRepeat())

	// A request of the same call that was sent.
	s := accepting(t)
	_, other := clients(t)
	calls, failed = run(t, func(ctx context.Context) error {
		if err := request(ctx, other, http.MethodPost, s.URL); err != nil {
			return err
		}
		return request(ctx, client, http.MethodPost, "http://host/")
	})
	assert.Equal(t, 1, calls)
	assert.Equal(t, netretry.TimedOut, failed.Reason, "%v", failed.Err)
	assert.True(t, failed.UnsafeToRepeat())
}

// A context that has ended before the call.
func TestContextOverBeforeTheRequest(t *testing.T) {
	s := accepting(t)
	_, client := clients(t)
	calls, failed := run(t, func(ctx context.Context) error {
		ctx, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
		defer cancel()
		return request(ctx, client, http.MethodPost, s.URL)
	})
	assert.Equal(t, 4, calls)
	assert.Equal(t, netretry.NotSent, failed.Reason, "%v", failed.Err)
	assert.False(t, failed.UnsafeToRepeat())
	assert.Zero(t, s.posts.Load())

	body := &closing{Reader: strings.NewReader("body")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, body)
	require.NoError(t, err)
	_, err = client.Transport.RoundTrip(req)
	require.ErrorIs(t, err, context.Canceled)
	assert.True(t, body.closed.Load(), "as a RoundTripper must")
}

type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

// If a connection from the pool is dead before a byte was written, net/http opens
// another, which is refused.
func TestPostOnADeadConnection(t *testing.T) {
	s := accepting(t)
	var conns atomic.Int32
	broken := errors.New("broken")
	base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if conns.Add(1) > 1 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &dyingConn{Conn: conn, err: broken}, err
	}}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: httpretry.Transport(base)}
	require.NoError(t, request(t.Context(), client, http.MethodPost, s.URL))
	calls, failed := run(t, func(ctx context.Context) error { return request(ctx, client, http.MethodPost, s.URL) })
	assert.Equal(t, 4, calls, "%v", failed.Err)
	assert.Equal(t, netretry.NotConnected, failed.Reason, "%v", failed.Err)
	assert.False(t, failed.UnsafeToRepeat())
	assert.EqualValues(t, 1, s.posts.Load())
}

// dyingConn accepts one request, and fails at the first byte of the second.
type dyingConn struct {
	net.Conn
	err    error
	writes atomic.Int32
}

func (c *dyingConn) Write(p []byte) (int, error) {
	if c.writes.Add(1) > 1 {
		return 0, c.err
	}
	return c.Conn.Write(p)
}

// A Retry-After is obeyed by default. If it exceeds the element's time, no attempt
// follows.
func TestRetryAfterByDefault(t *testing.T) {
	for delay, want := range map[time.Duration]struct {
		calls int
		after time.Duration
	}{
		2 * time.Second: {2, 2 * time.Second},
		time.Hour:       {1, time.Minute}, // the timeout
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			asked := 0
			calls, failed := run(t, func(context.Context) error {
				if asked++; asked > 1 {
					return nil
				}
				return &httpretry.StatusError{StatusCode: http.StatusTooManyRequests, Delay: delay, HasDelay: true}
			})
			assert.Equal(t, want.calls, calls)
			assert.Equal(t, want.after, time.Since(began))
			assert.Equal(t, delay == time.Hour, failed != nil)
			if failed != nil {
				assert.ErrorIs(t, failed.Err, context.DeadlineExceeded)
				assert.False(t, failed.UnsafeToRepeat())
			}
		})
	}
}

// An operator without a strategy finds the reason of an error made by errors.New, if
// package httpretry knows the error.
func TestOperator_WithoutAStrategy_PlainErrors(t *testing.T) {
	for _, c := range []struct {
		err     error
		reason  predicates.Reason
		inDoubt bool
	}{
		{io.ErrUnexpectedEOF, netretry.ConnectionLost, true},
		{fmt.Errorf("read the answer: %w", io.EOF), netretry.ConnectionLost, true},
		{io.ErrClosedPipe, netretry.ConnectionLost, true},
		{errors.New("http: server closed idle connection"), netretry.ConnectionLost, true},
		{errors.New("net/http: cannot rewind body after connection loss"), netretry.ConnectionLost, true},
		{errors.New("net/http: HTTP/1.x transport connection broken: x"), netretry.ConnectionLost, true},
		{errors.New("net/http: TLS handshake timeout"), netretry.NotConnected, false},
		{errors.New("http2: client connection lost"), netretry.ConnectionLost, true},
		{errors.New("connection error: PROTOCOL_ERROR"), netretry.ConnectionLost, true},
		{errors.New("stream error: stream ID 1; INTERNAL_ERROR"), netretry.ConnectionLost, true},
		{driver.ErrBadConn, netretry.NotConnected, false},
		{errors.New("broken"), predicates.Reason{}, true},
	} {
		fn := asyncop.Blocking(func(context.Context, int) (int, error) { return 0, c.err })
		var failed asyncop.Failure[int]
		op := asyncop.OrderedWait(fn, time.Minute, 1, asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
				failed = f
				return nil
			}))
		for range op.Results(slices.Values([]int{1})) {
			t.Error("a result")
		}
		require.NoError(t, op.Wait())
		assert.Equal(t, c.reason, failed.Reason, "%v", c.err)
		assert.Equal(t, c.inDoubt, failed.InDoubt, "%v", c.err)
	}
}
