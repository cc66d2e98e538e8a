package httpretry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
)

// server is a real server whose failures a test chooses. It counts its requests.
type server struct {
	*httptest.Server
	posts atomic.Int32
}

func serve(t *testing.T, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.posts.Add(1)
		}
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// refusing returns the URL of a server that does not exist. A client uses its port, so
// that no other server can listen there meanwhile.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(); l.Close() })
	return "http://" + conn.LocalAddr().String()
}

func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

func redirectTo(url string, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, status) }
}

// post makes a POST and returns its attempt, classified.
func post(t *testing.T, client *http.Client, url string) (*predicates.Attempt[string], predicates.Reason) {
	t.Helper()
	a := &predicates.Attempt[string]{Number: 1}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("body"))
	require.NoError(t, err)
	a.Err = do(client, req)
	require.Error(t, a.Err)
	return a, classify(a)
}

// do makes a request as shown in the documentation.
func do(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := httpretry.CheckResponse(resp); err != nil {
		return err
	}
	_, err = io.ReadAll(resp.Body)
	return err
}

func clients(t *testing.T) (plain, tracing *http.Client) {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: base}, &http.Client{Transport: httpretry.Transport(base)}
}

// A POST, one failure in each stage, with and without Transport.
func TestPostFailsInEachStage(t *testing.T) {
	plain, tracing := clients(t)
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	notFound := predicates.NewRejection("HTTP_404_NOT_FOUND")
	tests := []struct {
		name         string
		url          string
		want         predicates.Reason
		stage        predicates.Stage
		plainWant    predicates.Reason
		mayBeRetried bool
	}{
		{"refused", refusing(t), netretry.NotConnected, predicates.ClientDispatch, netretry.HopNotConnected, true},
		{"no host", "http://127.0.0.1:1/", netretry.NotConnected, predicates.ClientDispatch, netretry.HopNotConnected, true},
		{"hung up", serve(t, hangUp).URL, netretry.ConnectionLost, predicates.NetworkTime, netretry.ConnectionLost, false},
		{"cut short", serve(t, cut).URL, netretry.ConnectionLost, predicates.Unreported, netretry.ConnectionLost, false},
		{"429", serve(t, status(429)).URL, httpretry.TooManyRequests, predicates.ResponseReceived, httpretry.TooManyRequests, true},
		{"503", serve(t, status(503)).URL, httpretry.ServiceUnavailable, predicates.ResponseReceived, httpretry.ServiceUnavailable, false},
		{"404", serve(t, status(404)).URL, notFound, predicates.ResponseReceived, notFound, false},
		{"406", serve(t, status(406)).URL, none, predicates.ResponseReceived, none, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, reason := post(t, tracing, tt.url)
			assert.Equal(t, tt.want, reason, "%v", a.Err)
			assert.Equal(t, tt.stage, a.Stage, "%v", a.Err)
			assert.Equal(t, tt.mayBeRetried, reason.AllowsNonIdempotentRetry() && !reason.IsRejection())
			_, reason = post(t, plain, tt.url)
			assert.Equal(t, tt.plainWant, reason, "%v", a.Err)
		})
	}
}

// A POST that was answered with 303 has taken effect, even if the following GET fails.
func TestPostIsNotRepeatedForWhatFollowsARedirect(t *testing.T) {
	plain, tracing := clients(t)
	overloaded := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
	hanging := serve(t, hangUp)
	for name, target := range map[string]string{
		"refused": refusing(t), "overloaded": overloaded.URL, "hanging": hanging.URL,
	} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			s := serve(t, redirectTo(target, status))
			for kind, client := range map[string]*http.Client{"plain": plain, "tracing": tracing} {
				a, reason := post(t, client, s.URL)
				require.False(t, reason.IsZero(), "%s %d: %v", name, status, a.Err)
				// 307 and 308 keep the method: the first server has not executed the
				// POST.
				safe := status >= 307 && (name == "overloaded" || name == "refused" && kind == "tracing")
				assert.Equal(t, safe, reason.AllowsNonIdempotentRetry(), "%s %d %s: %v", name, status, kind, reason)
			}
		}
	}
}

// A call makes two POSTs: one is refused, and the answer to the other is lost. The order
// of the joined errors does not matter.
func TestPostIsNotRepeatedForTheOneBesideIt(t *testing.T) {
	_, tracing := clients(t)
	lost, lostReason := post(t, tracing, serve(t, hangUp).URL)
	refused, refusedReason := post(t, tracing, refusing(t))
	require.False(t, lostReason.AllowsNonIdempotentRetry())
	require.True(t, refusedReason.AllowsNonIdempotentRetry())
	for _, err := range []error{errors.Join(lost.Err, refused.Err), errors.Join(refused.Err, lost.Err)} {
		a := &predicates.Attempt[string]{Number: 1, Err: err}
		reason := classify(a)
		assert.False(t, reason.IsZero(), "%v", err)
		assert.False(t, reason.AllowsNonIdempotentRetry(), "%v: %v", reason, err)
		assert.Equal(t, predicates.NetworkTime, a.Stage)
	}
}

// A chain of redirects whose last redirect keeps the method.
func TestPostIsNotRepeatedAfterMixedRedirects(t *testing.T) {
	_, tracing := clients(t)
	second := serve(t, redirectTo(refusing(t), 307))
	first := serve(t, redirectTo(second.URL, 303))
	_, reason := post(t, tracing, first.URL)
	assert.Equal(t, netretry.HopNotConnected, reason)
}

func TestTransportOverTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		panic(http.ErrAbortHandler)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)

	_, distrusting := clients(t)
	a, reason := post(t, distrusting, s.URL)
	assert.Equal(t, none, reason, "a certificate that is not trusted is not trusted tomorrow: %v", a.Err)
	assert.Equal(t, predicates.ClientDispatch, decision.StageOf(a.Err, predicates.Unreported))

	for name, http2 := range map[string]bool{"http/1": false, "http/2": true} {
		t.Run(name, func(t *testing.T) {
			base := s.Client().Transport.(*http.Transport).Clone()
			base.ForceAttemptHTTP2 = http2
			if !http2 {
				base.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
				base.TLSClientConfig.NextProtos = nil
			}
			t.Cleanup(base.CloseIdleConnections)
			a := &predicates.Attempt[string]{}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("body"))
			require.NoError(t, err)
			a.Err = do(&http.Client{Transport: httpretry.Transport(base)}, req)
			require.Error(t, a.Err)
			assert.Equal(t, predicates.NetworkTime, decision.StageOf(a.Err, a.Stage), "%v", a.Err)
			assert.False(t, classify(a).AllowsNonIdempotentRetry(), "%v", a.Err)
		})
	}
}

// A server that accepts the connection, and then does not answer or closes it during the
// TLS handshake.
func TestHandshakeThatDoesNotEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	base := &http.Transport{TLSHandshakeTimeout: time.Millisecond}
	t.Cleanup(base.CloseIdleConnections)
	url := "https://" + l.Addr().String()

	a, reason := post(t, &http.Client{Transport: httpretry.Transport(base)}, url)
	assert.Equal(t, netretry.NotConnected, reason, "%v", a.Err)
	a, reason = post(t, &http.Client{Transport: base}, url)
	assert.Equal(t, netretry.HopNotConnected, reason, "%v", a.Err)

	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	base.TLSHandshakeTimeout = time.Minute
	a, reason = post(t, &http.Client{Transport: httpretry.Transport(base)}, url)
	assert.Equal(t, netretry.NotSent, reason, "%v", a.Err)
	a, reason = post(t, &http.Client{Transport: base}, url)
	assert.Equal(t, netretry.ConnectionLost, reason, "%v", a.Err)
}

// The client gives up while it waits for the answer, or for a connection.
func TestTimeoutsOfTheClient(t *testing.T) {
	release := make(chan struct{})
	got := make(chan struct{}, 10)
	s := serve(t, func(http.ResponseWriter, *http.Request) { got <- struct{}{}; <-release })
	t.Cleanup(func() { close(release) }) // before the server is closed
	base := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: httpretry.Transport(base)}

	call := func(ctx context.Context) *predicates.Attempt[string] {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("body"))
		require.NoError(t, err)
		return &predicates.Attempt[string]{Err: do(client, req)}
	}

	first, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan *predicates.Attempt[string])
	go func() { done <- call(first) }()
	<-got // the only connection is taken

	ctx, cancelSecond := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancelSecond()
	a := call(ctx)
	assert.Equal(t, netretry.NotSent, classify(a), "%v", a.Err)
	cancel()
	a = <-done
	assert.Equal(t, none, classify(a), "cancelled: %v", a.Err)

	sent := make(chan struct{})
	go func() { <-got; close(sent) }()
	a = call(deadline{t.Context(), sent})
	assert.Equal(t, netretry.TimedOut, classify(a), "%v", a.Err)

	// On a busy machine the timeout of the client may end before the request was sent:
	// repeat the test with more time.
	for client.Timeout = 200 * time.Millisecond; ; client.Timeout *= 2 {
		if a = call(t.Context()); classify(a) == netretry.TimedOut {
			break
		}
		require.Contains(t, []predicates.Reason{netretry.NotSent, netretry.NotConnected}, classify(a), "%v", a.Err)
	}
	<-got // it was sent
	assert.EqualValues(t, 3, s.posts.Load())
}

// deadline is a context whose deadline has passed when done is closed.
type deadline struct {
	context.Context
	done <-chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.done }

func (d deadline) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

type roundTripper func(req *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A base that does not support tracing does not prove a stage.
func TestTransportWithoutTracing(t *testing.T) {
	broken := errors.New("broken")
	rt := httpretry.Transport(roundTripper(func(*http.Request) (*http.Response, error) { return nil, broken }))
	req := httptest.NewRequest(http.MethodPost, "http://host/", nil)
	_, err := rt.RoundTrip(req)
	assert.Equal(t, broken, err)
	assert.Equal(t, predicates.Unreported, decision.StageOf(err, predicates.Unreported))
}

// If another connection cannot be made after a header was written, the request may have
// been executed: base may repeat requests for any reason.
func TestTransportStageIsSticky(t *testing.T) {
	for _, wrote := range []bool{false, true} {
		rt := httpretry.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			trace.GetConn("host:80")
			trace.GotConn(httptrace.GotConnInfo{})
			if wrote {
				trace.WroteHeaderField("Host", []string{"host"})
			}
			trace.GetConn("host:80")
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}))
		_, err := rt.RoundTrip(httptest.NewRequest(http.MethodPost, "http://host/", nil))
		want := netretry.NotConnected
		if wrote {
			want = netretry.HopNotConnected
		}
		assert.Equal(t, want, classify(&predicates.Attempt[int]{Err: err}))
	}
}

// If base repeats a request, a refusal of the repetition does not prove anything about
// the first request.
func TestBaseThatRepeatsRequests(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusNotFound} {
		for _, lost := range []bool{false, true} {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/lost" {
					hangUp(w, r)
					return
				}
				w.WriteHeader(status)
			})
			inner := &http.Transport{}
			t.Cleanup(inner.CloseIdleConnections)
			client := &http.Client{Transport: httpretry.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
				if lost {
					first := req.Clone(req.Context())
					first.URL.Path = "/lost"
					_, err := inner.RoundTrip(first) //nolint:bodyclose // there is none
					require.Error(t, err)
					req = req.Clone(req.Context())
					req.Body, err = req.GetBody()
					require.NoError(t, err)
				}
				return inner.RoundTrip(req)
			}))}
			calls, failed := run(t, func(ctx context.Context) error { return request(ctx, client, http.MethodPost, s.URL) })
			require.NotNil(t, failed)
			assert.Equal(t, !lost && status == http.StatusTooManyRequests, calls == 4, "%d, lost: %v", status, lost)
			assert.Equal(t, lost, failed.UnsafeToRepeat(), "%d: %v", status, failed.Err)
		}
	}
}

// A base may give up a request for its own reasons, even if the context of the request
// has not ended.
func TestBaseWithATimeoutOfItsOwn(t *testing.T) {
	for connected, want := range map[bool]predicates.Stage{false: predicates.ClientDispatch, true: predicates.NetworkTime} {
		rt := httpretry.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			trace.GetConn("host:80")
			if connected {
				trace.GotConn(httptrace.GotConnInfo{})
			}
			return nil, context.DeadlineExceeded
		}))
		_, err := rt.RoundTrip(httptest.NewRequest(http.MethodPost, "http://host/", nil))
		assert.Equal(t, want, decision.StageOf(err, predicates.Unreported))
	}
}

// If a connection from the pool cannot be used, and the body was closed, net/http cannot
// use another connection: the request was not sent.
func TestBodyThatCannotBeReadAgain(t *testing.T) {
	base := &http.Transport{}
	base.RegisterProtocol("http", roundTripper(func(req *http.Request) (*http.Response, error) {
		trace := httptrace.ContextClientTrace(req.Context())
		trace.GetConn("host:80")
		trace.GotConn(httptrace.GotConnInfo{})
		_ = req.Body.Close()
		return nil, http.ErrSkipAltProtocol // net/http continues by itself
	}))
	for _, rt := range []http.RoundTripper{base, roundTripper(base.RoundTrip)} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://host/", onceOnly())
		require.NoError(t, err)
		a := &predicates.Attempt[string]{Err: do(&http.Client{Transport: httpretry.Transport(rt)}, req)}
		require.ErrorContains(t, a.Err, "rewind")
		assert.Equal(t, netretry.NotSent, classify(a), "%v", a.Err)
		assert.Equal(t, predicates.ClientDispatch, a.Stage)
	}
}

// http.Client reports a base that breaks its contract.
func TestBaseWithoutAnAnswer(t *testing.T) {
	client := &http.Client{Transport: httpretry.Transport(roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil }))}
	_, err := client.Get("http://host/") //nolint:bodyclose,noctx // there is none
	assert.ErrorContains(t, err, "nil *Response")
}

// A proxy that cannot reach the server, or refuses to, has not sent the request.
func TestProxyThatRefuses(t *testing.T) {
	for status, want := range map[int]predicates.Reason{
		403: none, 407: none, 429: netretry.NotConnected, 502: netretry.NotConnected, 503: netretry.NotConnected, 504: netretry.NotConnected,
	} {
		proxy := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		at, err := url.Parse(proxy.URL)
		require.NoError(t, err)
		base := &http.Transport{Proxy: http.ProxyURL(at)}
		t.Cleanup(base.CloseIdleConnections)
		a, reason := post(t, &http.Client{Transport: httpretry.Transport(base)}, "https://host/")
		assert.Equal(t, want, reason, "%d: %v", status, a.Err)
		assert.Equal(t, predicates.ClientDispatch, a.Stage, "%d", status)
		_, reason = post(t, &http.Client{Transport: base}, "https://host/")
		assert.Equal(t, none, reason, "%d: the text alone proves nothing", status)
	}
}

// HTTP/2 may use another connection without calling GetConn: then the request was not
// processed on the first.
func TestTransportWithAnotherConnection(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodGet} { // net/http repeats a GET that was sent
		base := &http.Transport{}
		base.RegisterProtocol("test", roundTripper(func(req *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			trace.GetConn("host:80")
			trace.GotConn(httptrace.GotConnInfo{})
			trace.WroteHeaderField(":method", []string{req.Method})
			trace.GotConn(httptrace.GotConnInfo{})
			return nil, errors.New("http2: client conn could not be established")
		}))
		_, err := httpretry.Transport(base).RoundTrip(httptest.NewRequest(method, "test://host/", nil))
		want := netretry.NotSent
		if method == http.MethodGet {
			want = netretry.ConnectionLost
		}
		assert.Equal(t, want, classify(&predicates.Attempt[int]{Err: err}), method)
	}
}

// When a request is cancelled, HTTP/2 does not wait for the goroutine that may be about
// to write it.
func TestTransportWithAConnectionAndNoTime(t *testing.T) {
	for _, byContext := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		req := httptest.NewRequest(http.MethodPost, "test://host/", nil).WithContext(ctx)
		legacy := make(chan struct{})
		req.Cancel = legacy
		base := &http.Transport{} // another base is not trusted with a connection anyway
		base.RegisterProtocol("test", roundTripper(func(req *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			trace.GetConn("host:80")
			trace.GotConn(httptrace.GotConnInfo{})
			if byContext {
				cancel()
			} else {
				close(legacy)
			}
			return nil, errors.New("given up")
		}))
		_, err := httpretry.Transport(base).RoundTrip(req)
		assert.Equal(t, predicates.NetworkTime, decision.StageOf(err, predicates.Unreported))
		cancel()
	}
}

// An http.Client replaces the error by its text when it has noticed that its Timeout has
// run out.
func TestClientTimeoutReplacesTheError(t *testing.T) {
	synctest.Test(t, testClientTimeoutReplacesTheError)
}

func testClientTimeoutReplacesTheError(t *testing.T) {
	for _, connected := range []bool{false, true} {
		client := &http.Client{Timeout: time.Minute, Transport: httpretry.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			trace.GetConn("host:80")
			if connected {
				trace.GotConn(httptrace.GotConnInfo{})
				trace.WroteHeaderField("Host", []string{"host"})
			}
			<-req.Cancel
			return nil, &net.OpError{Op: "read", Err: errors.New("given up")}
		}))}
		a, reason := post(t, client, "http://host/")
		_, kept := errors.AsType[*predicates.StageError](a.Err)
		require.False(t, kept, "%v", a.Err)
		want := netretry.NotSent
		if connected {
			want = netretry.TimedOut
		}
		assert.Equal(t, want, reason, "%v", a.Err)
	}
}

func TestTransportIsTransparent(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	closed := false
	base := struct {
		roundTripper
		closer
	}{http.DefaultTransport.RoundTrip, func() { closed = true }}
	client := &http.Client{Transport: httpretry.Transport(base)}
	gotConn := false
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { gotConn = true }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(body))
	assert.True(t, gotConn, "the user's own trace is kept")
	client.CloseIdleConnections()
	assert.True(t, closed)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()

	_, err = http.DefaultTransport.RoundTrip(httptest.NewRequest(http.MethodGet, "nonsense://host/", nil))
	_, wrapped := httpretry.Transport(nil).RoundTrip(httptest.NewRequest(http.MethodGet, "nonsense://host/", nil))
	assert.Equal(t, err.Error(), wrapped.Error())
}

type closer func()

func (f closer) CloseIdleConnections() { f() }
