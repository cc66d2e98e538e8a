package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

// anyone is the principal of a service with one client.
func anyone(*http.Request) (string, bool) { return "", true }

const resultHeader = "Exactly-Once-Result"

// post sends a request with an id, or without one if it is zero, through h.
func post(h http.Handler, id exactlyonce.ID, body string) *http.Response {
	req := httptest.NewRequest(http.MethodPost, "/charges?x=1", strings.NewReader(body))
	if id != (exactlyonce.ID{}) {
		req.Header.Set(exactlyonce.Header, id.String())
	}
	return serve(h, req)
}

func serve(h http.Handler, req *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

func id(seq int64, attempt int) exactlyonce.ID {
	return exactlyonce.ID{Client: client, Sequence: seq, Attempt: attempt}
}

func bodyOf(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// requireProblem checks a refusal of the tracker.
func requireProblem(t *testing.T, resp *http.Response, status int, result string) {
	t.Helper()
	require.Equal(t, status, resp.StatusCode)
	require.Equal(t, result, resp.Header.Get(resultHeader))
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	require.NoError(t, json.Unmarshal([]byte(bodyOf(t, resp)), &p))
	if result == "" {
		require.Empty(t, p.Type)
	} else {
		require.Equal(t, "urn:weir:exactly-once:"+result, p.Type)
	}
	require.Equal(t, http.StatusText(status), p.Title)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Detail)
}

// counter counts its calls, and answers with the number.
func counter(status int) (http.Handler, *atomic.Int64) {
	var calls atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		w.Header().Set("X-Call", fmt.Sprint(calls.Add(1)))
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "call %d: %s", calls.Load(), b)
	}), &calls
}

// X1: the second attempt gets the response of the first, marked as replayed. A request
// without an id passes through.
func TestHandlerReplays(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, calls := counter(http.StatusCreated)
	h := r.Handler(next, server.HandlerConfig{Scope: anyone})

	first := post(h, id(1, 1), "body")
	require.Equal(t, http.StatusCreated, first.StatusCode)
	require.Equal(t, "call 1: body", bodyOf(t, first))
	require.Empty(t, first.Header.Get(resultHeader))
	second := post(h, id(1, 2), "body")
	require.Equal(t, http.StatusCreated, second.StatusCode)
	require.Equal(t, "call 1: body", bodyOf(t, second))
	require.Equal(t, "replayed", second.Header.Get(resultHeader))
	require.Equal(t, "1", second.Header.Get("X-Call"))
	second.Header.Del(resultHeader)
	require.Equal(t, first.Header, second.Header)

	require.Equal(t, "call 2: body", bodyOf(t, post(h, exactlyonce.ID{}, "body")))
	require.Equal(t, "call 3: body", bodyOf(t, post(h, exactlyonce.ID{}, "body")))
	require.Equal(t, int64(3), calls.Load())
}

// A request whose id is missing, duplicated or invalid gets 400; it neither runs nor is
// tracked.
func TestHandlerRefusesInvalidIDs(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, calls := counter(200)
	h := r.Handler(next, server.HandlerConfig{Scope: anyone, Required: true})
	requireProblem(t, post(h, exactlyonce.ID{}, ""), 400, "invalid")
	for _, values := range [][]string{
		{""},
		{"x"},
		{id(1, 1).String(), id(1, 1).String()},
		{id(1, 1).String() + ", " + id(1, 2).String()},
		{exactlyonce.ID{Client: client, Sequence: 1, Attempt: 1, First: 2}.String()},
	} {
		req := httptest.NewRequest(http.MethodPost, "/", nil)
		req.Header[exactlyonce.Header] = values
		requireProblem(t, serve(h, req), 400, "invalid")
	}
	require.Zero(t, calls.Load())
	require.Zero(t, r.Stats().Clients)
	require.EqualValues(t, 6, r.Stats().Invalid)
}

// A scope that some database does not accept is refused with any storage.
func TestScopeIsText(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	for _, scope := range []string{"a\x00", "\xff"} {
		h := r.Handler(mustNotRun(t), server.HandlerConfig{Scope: func(*http.Request) (string, bool) { return scope, true }})
		requireProblem(t, post(h, id(1, 1), ""), 400, "invalid")
	}
	require.EqualValues(t, 2, r.Stats().Invalid)
}

// A handler can suppress the Content-Type that net/http would guess. Later responses do
// not have it either.
func TestReplayWithoutContentType(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	server := httptest.NewServer(r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		w.Header()["X-Nothing"] = nil
		_, _ = io.WriteString(w, "<html>")
	}), server.HandlerConfig{Scope: anyone}))
	defer server.Close()
	defer server.Client().CloseIdleConnections()
	for n := range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		require.NoError(t, err)
		req.Header.Set(exactlyonce.Header, id(1, n+1).String())
		resp, err := server.Client().Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NotContains(t, resp.Header, "Content-Type", "attempt %d", n+1)
	}
}

// The same id with another method, path, query, type or body is a mismatch and does not
// run.
func TestHandlerRefusesOtherContent(t *testing.T) {
	for _, status := range []int{0, 409, 422} {
		r, _ := newResults(t, server.Config{})
		next, calls := counter(200)
		h := r.Handler(next, server.HandlerConfig{Scope: anyone, MismatchStatus: status})
		require.Equal(t, 200, post(h, id(1, 1), "body").StatusCode)
		want := max(409, status)
		requireProblem(t, post(h, id(1, 2), "other"), want, "mismatch")
		for method, url := range map[string]string{"PUT": "/charges?x=1", "POST": "/refunds?x=1", "PATCH": "/charges?x=2"} {
			req := httptest.NewRequest(method, url, strings.NewReader("body"))
			req.Header.Set(exactlyonce.Header, id(1, 2).String())
			requireProblem(t, serve(h, req), want, "mismatch")
		}
		req := httptest.NewRequest(http.MethodPost, "/charges?x=1", strings.NewReader("body"))
		req.Header.Set(exactlyonce.Header, id(1, 2).String())
		req.Header.Set("Content-Type", "text/plain")
		requireProblem(t, serve(h, req), want, "mismatch")
		require.Equal(t, int64(1), calls.Load())
	}
	r, _ := newResults(t, server.Config{})
	next, _ := counter(200)
	h := r.Handler(next, server.HandlerConfig{
		Scope: anyone, Fingerprint: func(_ *http.Request, body []byte) [32]byte { return [32]byte{body[0]} },
	})
	require.Equal(t, "call 1: same", bodyOf(t, post(h, id(1, 1), "same")))
	require.Equal(t, "call 1: same", bodyOf(t, post(h, id(1, 2), "still")))
	requireProblem(t, post(h, id(1, 2), "other"), 409, "mismatch")
}

// STALE gets 410.
func TestHandlerStale(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, calls := counter(200)
	h := r.Handler(next, server.HandlerConfig{Scope: anyone})
	later := id(2, 1)
	later.First = 2
	require.Equal(t, 200, post(h, later, "").StatusCode)
	resp := post(h, id(1, 1), "")
	requireProblem(t, resp, 410, "stale")
	require.Empty(t, resp.Header.Get("Retry-After"))
	require.Equal(t, int64(1), calls.Load())
}

// A request refused by a bound gets 503 with Retry-After.
func TestHandlerFull(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxRecords: 1})
	next, _ := counter(200)
	h := r.Handler(next, server.HandlerConfig{Scope: anyone, RetryAfter: 1500 * time.Millisecond})
	require.Equal(t, 200, post(h, id(1, 1), "").StatusCode)
	resp := post(h, id(2, 1), "")
	requireProblem(t, resp, 503, "full")
	require.Equal(t, "2", resp.Header.Get("Retry-After"))
}

// blocking is a handler that waits for leave, and the requests that have entered it.
type blocking struct {
	http.Handler
	entered chan *http.Request
	leave   chan struct{}
}

func newBlocking(then http.Handler) *blocking {
	b := &blocking{entered: make(chan *http.Request, 100), leave: make(chan struct{})}
	b.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b.entered <- req
		<-b.leave
		then.ServeHTTP(w, req)
	})
	return b
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	require.Eventually(t, what, time.Minute, time.Millisecond)
}

// An attempt waits for the running one. If MaxWaiters is reached or negative, it gets 409
// with Retry-After.
func TestHandlerInProgress(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxWaiters: 2})
	next, calls := counter(200)
	b := newBlocking(next)
	h := r.Handler(b, server.HandlerConfig{Scope: anyone})
	var wg sync.WaitGroup
	wg.Go(func() { require200(t, post(h, id(1, 1), "x"), "call 1: x", "") })
	<-b.entered
	wg.Go(func() { require200(t, post(h, id(1, 2), "x"), "call 1: x", "replayed") })
	wg.Go(func() { require200(t, post(h, id(1, 3), "x"), "call 1: x", "replayed") })
	waitFor(t, func() bool { return r.Stats().Waiting == 2 })
	resp := post(h, id(1, 4), "x")
	requireProblem(t, resp, 409, "in-progress")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	close(b.leave)
	wg.Wait()
	require.Equal(t, int64(1), calls.Load())

	r, _ = newResults(t, server.Config{MaxWaiters: -1})
	h = r.Handler(b, server.HandlerConfig{Scope: anyone, RetryAfter: time.Minute})
	b.leave = make(chan struct{})
	wg.Go(func() { require200(t, post(h, id(2, 1), "x"), "call 2: x", "") })
	<-b.entered
	resp = post(h, id(2, 2), "x")
	requireProblem(t, resp, 409, "in-progress")
	require.Equal(t, "60", resp.Header.Get("Retry-After"))
	close(b.leave)
	wg.Wait()
	require200(t, post(h, id(2, 2), "x"), "call 2: x", "replayed")
}

func require200(t *testing.T, resp *http.Response, body, result string) {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || string(b) != body || resp.Header.Get(resultHeader) != result {
		t.Errorf("%d %q %q", resp.StatusCode, b, resp.Header)
	}
}

// A classifier decides which responses are stored. Definite responses are stored;
// transient responses, and the responses of another tracker, are never stored.
func TestHandlerStoresDefiniteResponses(t *testing.T) {
	stored := func(c server.HandlerConfig, status int, header http.Header) bool {
		r, _ := newResults(t, server.Config{})
		calls := 0
		h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls++
			for name, values := range header {
				w.Header()[name] = values
			}
			w.WriteHeader(status)
			if status != 204 && status != 304 {
				_, _ = fmt.Fprint(w, calls)
			}
		}), c)
		first, second := post(h, id(1, 1), ""), post(h, id(1, 2), "")
		require.Equal(t, status, first.StatusCode)
		require.Equal(t, status, second.StatusCode)
		if calls == 1 {
			require.Equal(t, bodyOf(t, first), bodyOf(t, second))
		} else {
			require.Equal(t, "2", bodyOf(t, second))
		}
		return calls == 1
	}
	for status := 200; status < 600; status++ {
		want := status < 500 && status != 408 && status != 425 && status != 429
		require.Equal(t, want, stored(server.HandlerConfig{Scope: anyone}, status, nil), "%d", status)
	}
	only201 := server.HandlerConfig{Scope: anyone, Stored: func(status int) bool { return status == 201 }}
	require.True(t, stored(only201, 201, nil))
	require.False(t, stored(only201, 200, nil))
	for result, want := range map[string]bool{
		"in-progress": false, "mismatch": false, "stale": false, "full": false, "invalid": false, "replayed": true,
	} {
		require.Equal(t, want, stored(server.HandlerConfig{Scope: anyone}, 409, http.Header{resultHeader: {result}}), result)
	}
}

// A transient response goes to all waiting attempts.
func TestHandlerSharesTransientResponses(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, calls := counter(503)
	b := newBlocking(next)
	h := r.Handler(b, server.HandlerConfig{Scope: anyone})
	var wg sync.WaitGroup
	var first, second *http.Response
	wg.Go(func() { first = post(h, id(1, 1), "x") })
	<-b.entered
	wg.Go(func() { second = post(h, id(1, 2), "x") })
	waitFor(t, func() bool { return r.Stats().Waiting == 1 })
	close(b.leave)
	wg.Wait()
	for _, resp := range []*http.Response{first, second} {
		require.Equal(t, 503, resp.StatusCode)
		require.Equal(t, "call 1: x", bodyOf(t, resp))
	}
	require.Equal(t, "", first.Header.Get(resultHeader))
	require.Equal(t, "replayed", second.Header.Get(resultHeader))
	require.Equal(t, "call 2: x", bodyOf(t, post(h, id(1, 3), "x")))
	require.Equal(t, int64(2), calls.Load())
}

// A replayed response has no Set-Cookie, no headers of a connection, and no headers set
// around the handler.
func TestHandlerDoesNotReplayCertainHeaders(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		require.Equal(t, "1", header.Get("Outer"), "a handler sees what is there")
		header.Set("Set-Cookie", "session=secret")
		header.Set("Connection", "X-Hop, close")
		header.Set("X-Hop", "1")
		header.Set("Keep-Alive", "timeout=5")
		header.Set("Transfer-Encoding", "identity")
		header.Set("Trailer", "X-Trailer")
		header.Set("Proxy-Authenticate", "Basic")
		header.Set("Upgrade", "x")
		header.Add("Vary", "B")
		header.Add("X-Many", "1")
		header.Add("X-Many", "2")
		header.Del("Outer-Removed")
		_, _ = io.WriteString(w, "body")
		header.Set("X-Late", "after the status")
		header.Set("X-Trailer", "t")
		header.Set(http.TrailerPrefix+"X-Other", "o")
	}), server.HandlerConfig{Scope: anyone})
	n := 0
	outer := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n++
		w.Header().Set("Outer", fmt.Sprint(n))
		w.Header().Set("Outer-Removed", "x")
		w.Header().Set("Vary", "A")
		h.ServeHTTP(w, req)
	})
	first := post(outer, id(1, 1), "")
	require.Equal(t, "session=secret", first.Header.Get("Set-Cookie"), "its own caller gets everything")
	require.Equal(t, "1", first.Header.Get("X-Hop"))
	require.Equal(t, "t", first.Trailer.Get("X-Trailer"))
	require.Empty(t, first.Header.Get("Outer-Removed"))
	require.Empty(t, first.Header.Get("X-Late"))
	require.Equal(t, "body", bodyOf(t, first))

	second := post(outer, id(1, 2), "")
	require.Equal(t, "body", bodyOf(t, second))
	require.Equal(t, http.Header{
		"Outer": {"2"}, "Outer-Removed": {"x"}, "Vary": {"A", "B"}, "X-Many": {"1", "2"}, resultHeader: {"replayed"},
	}, second.Header)
	require.Empty(t, second.Trailer)
}

// Streamed, hijacked and too long responses go to their caller, and the request is STALE.
func TestHandlerDoesNotStoreStreams(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter){
		"flushed": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "first ")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "second")
		},
		"flushed before": func(w http.ResponseWriter) {
			require.NoError(t, http.NewResponseController(w).Flush())
			_, _ = io.WriteString(w, "first second")
		},
		"long": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "first ")
			_, _ = io.WriteString(w, "second")
		},
		"long headers": func(w http.ResponseWriter) {
			w.Header().Set("X", strings.Repeat("x", 100))
			_, _ = io.WriteString(w, "first ")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := server.Config{}
			if strings.HasPrefix(name, "long") {
				c.MaxAnswer = 10
			}
			r, _ := newResults(t, c)
			calls := 0
			h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.Header().Set("X-Mine", "x")
				write(w)
			}), server.HandlerConfig{Scope: anyone})
			resp := post(h, id(1, 1), "")
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, "x", resp.Header.Get("X-Mine"))
			want := "first second"
			if name == "long headers" {
				want = "first "
			}
			require.Equal(t, want, bodyOf(t, resp))
			requireProblem(t, post(h, id(1, 2), ""), 410, "stale")
			require.Equal(t, 1, calls)
		})
	}
	t.Run("nothing but flushed", func(t *testing.T) {
		r, _ := newResults(t, server.Config{})
		h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
		}), server.HandlerConfig{Scope: anyone})
		require.Equal(t, 200, post(h, id(1, 1), "").StatusCode)
		requireProblem(t, post(h, id(1, 2), ""), 410, "stale")
	})
	t.Run("transient", func(t *testing.T) {
		r, _ := newResults(t, server.Config{})
		h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			w.WriteHeader(http.StatusInternalServerError) // ignored
		}), server.HandlerConfig{Scope: anyone})
		for attempt := range 2 {
			require.Equal(t, 503, post(h, id(1, attempt+1), "").StatusCode)
		}
	})
	t.Run("hijacked", func(t *testing.T) {
		r, _ := newResults(t, server.Config{})
		server := httptest.NewServer(r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
			_ = rw.Flush()
			_ = conn.Close()
		}), server.HandlerConfig{Scope: anyone}))
		defer server.Close()
		require.Equal(t, "hi", bodyOf(t, send(t, t.Context(), server, id(1, 1), "")))
		requireProblem(t, send(t, t.Context(), server, id(1, 2), ""), 410, "stale")
	})
}

func send(t *testing.T, ctx context.Context, server *httptest.Server, id exactlyonce.ID, body string) *http.Response {
	t.Helper()
	resp, err := sendErr(ctx, server, id, body)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func sendErr(ctx context.Context, server *httptest.Server, id exactlyonce.ID, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set(exactlyonce.Header, id.String())
	return server.Client().Do(req)
}

// A handler's writer works as it does without tracking.
func TestHandlerWritesAsUsual(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch b, _ := io.ReadAll(req.Body); string(b) {
		case "nothing":
		case "twice":
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusAccepted)
		case "no body":
			w.WriteHeader(http.StatusNoContent)
			_, err := io.WriteString(w, "x")
			if !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Error(err)
			}
		case "hints":
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			_, _ = io.WriteString(w, "<html>")
		case "deadline":
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
		case "invalid":
			w.WriteHeader(99)
		}
	})
	server := httptest.NewServer(r.Handler(next, server.HandlerConfig{Scope: anyone}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	defer server.Close()
	for i, tt := range []struct {
		what   string
		status int
		body   string
	}{{"nothing", 200, ""}, {"twice", 201, ""}, {"no body", 204, ""}, {"hints", 200, "<html>"}, {"deadline", 200, ""}} {
		for attempt := range 2 {
			resp := send(t, t.Context(), server, id(int64(i+1), attempt+1), tt.what)
			require.Equal(t, tt.status, resp.StatusCode, tt.what)
			require.Equal(t, tt.body, bodyOf(t, resp), tt.what)
			require.Empty(t, resp.Header.Get("Link"))
			if tt.body != "" {
				require.Equal(t, "text/html; charset=utf-8", resp.Header.Get("Content-Type"), "found by net/http")
			}
		}
	}
	_, err := sendErr(t.Context(), server, id(100, 1), "invalid")
	require.Error(t, err, "net/http panics, too")
	require.Equal(t, 0, r.Stats().InProgress)
}

// A handler that panics aborts its own connection. Waiting attempts get 500, and the next
// attempt is NEW.
func TestHandlerThatPanics(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	var panics atomic.Bool
	panics.Store(true)
	next, _ := counter(200)
	b := newBlocking(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if panics.Load() {
			_, _ = io.WriteString(w, "half a resp")
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, req)
	}))
	server := httptest.NewServer(r.Handler(b, server.HandlerConfig{Scope: anyone}))
	defer server.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := sendErr(t.Context(), server, id(1, 1), "x")
		failed <- err
	}()
	<-b.entered
	waits := make(chan *http.Response, 1)
	go func() {
		resp, _ := sendErr(t.Context(), server, id(1, 2), "x")
		waits <- resp
	}()
	waitFor(t, func() bool { return r.Stats().Waiting == 1 })
	close(b.leave)
	require.ErrorIs(t, <-failed, io.EOF)
	requireProblem(t, <-waits, 500, "")
	panics.Store(false)
	require.Equal(t, "call 1: x", bodyOf(t, send(t, t.Context(), server, id(1, 3), "x")))
}

// Law X1: a definite response of which the caller has seen a part is the outcome, even if
// the handler panics before its end, as a proxy does when its backend breaks off. The
// request does not run again.
func TestHandlerThatPanicsInAStream(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		end    func()
		want   int
	}{
		"definite":     {201, func() { panic(http.ErrAbortHandler) }, 410},
		"Goexit":       {201, runtime.Goexit, 410},
		"upgraded":     {101, func() { panic(http.ErrAbortHandler) }, 410},
		"not definite": {503, func() { panic(http.ErrAbortHandler) }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newResults(t, server.Config{})
			calls := 0
			h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls > 1 {
					return
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, "half a resp")
				_ = http.NewResponseController(w).Flush()
				tt.end()
			}), server.HandlerConfig{Scope: anyone})
			over := make(chan any)
			go func() {
				defer func() { over <- recover() }()
				post(h, id(1, 1), "")
			}()
			if p := <-over; name != "Goexit" {
				require.Equal(t, http.ErrAbortHandler, p)
			}
			resp := post(h, id(1, 2), "")
			require.Equal(t, tt.want, resp.StatusCode)
			require.Equal(t, map[int]int{410: 1, 200: 2}[tt.want], calls)
			require.Zero(t, r.Stats().InProgress)
		})
	}
}

// If the handler stored its answer before it panicked, Records have it.
func TestHandlerThatPanicsInAStreamWithRecords(t *testing.T) {
	for _, stores := range []bool{true, false} {
		f := newFakeRecords()
		r, _ := newResults(t, server.Config{Records: f})
		calls := 0
		h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			calls++
			request, _ := exactlyonce.RequestFromContext(req.Context())
			response := exactlyonce.Response{Status: 201, Body: []byte("paid")}
			if stores {
				require.NoError(t, f.put(request, string(response.Encode())))
			}
			response.Send(w)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}), server.HandlerConfig{Scope: anyone})
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { post(h, id(1, 1), "") })
		resp := post(h, id(1, 2), "")
		if stores {
			require.Equal(t, 201, resp.StatusCode)
			require.Equal(t, "paid", bodyOf(t, resp))
		} else {
			requireProblem(t, resp, 410, "stale")
		}
		require.Equal(t, 1, calls)
	}
}

// A driver's handler continues without its caller while others wait.
func TestHandlerOutlivesItsConnection(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, calls := counter(200)
	b := newBlocking(next)
	server := httptest.NewServer(r.Handler(b, server.HandlerConfig{Scope: anyone}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := sendErr(ctx, server, id(1, 1), "x")
		gone <- err
	}()
	inner := (<-b.entered).Context()
	waits := make(chan *http.Response, 1)
	go func() {
		resp, _ := sendErr(t.Context(), server, id(1, 2), "x")
		waits <- resp
	}()
	waitFor(t, func() bool { return r.Stats().Waiting == 1 })
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.NoError(t, inner.Err())
	close(b.leave)
	require200(t, <-waits, "call 1: x", "replayed")
	require.Equal(t, int64(1), calls.Load())

	b.leave = make(chan struct{})
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		_, err := sendErr(ctx, server, id(2, 1), "x")
		gone <- err
	}()
	inner = (<-b.entered).Context()
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	<-inner.Done() // without waiting attempts it ends with its caller
	close(b.leave)
}

// A waiting attempt whose context ends is released. If its client is still connected, the
// response reports that another attempt runs.
func TestHandlerWaitEnds(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	h := r.Handler(mustNotRun(t), server.HandlerConfig{Scope: anyone})
	req := httptest.NewRequest(http.MethodPost, "/", nil)
	req.Header.Set(exactlyonce.Header, id(1, 2).String())
	ctx, cancel := context.WithCancel(t.Context())
	call, err := r.Track(t.Context(), request(1))
	require.NoError(t, err)
	defer call.Fail(nil)
	cancel()
	requireProblem(t, serve(h, req.WithContext(ctx)), 409, "in-progress")
	require.Equal(t, 0, r.Stats().Waiting)
}

func mustNotRun(t *testing.T) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("must not run") })
}

// Ids are scoped by the principal. Authorisation comes before tracking: a request without
// it leaves no trace.
func TestHandlerScopes(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, _ := counter(200)
	h := r.Handler(next, server.HandlerConfig{Scope: func(req *http.Request) (string, bool) {
		user := req.Header.Get("User")
		return user, user != ""
	}})
	as := func(user string) *http.Response {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
		req.Header.Set("User", user)
		req.Header.Set(exactlyonce.Header, id(1, 1).String())
		return serve(h, req)
	}
	requireProblem(t, as(""), 403, "")
	require.Zero(t, r.Stats().Clients)
	require.Equal(t, "call 1: x", bodyOf(t, as("alice")))
	require.Equal(t, "call 2: x", bodyOf(t, as("mallory")), "not Alice's answer")
	require.Equal(t, "call 1: x", bodyOf(t, as("alice")))
	require.Equal(t, 2, r.Stats().Clients)
}

// The body of a request is bounded. A request whose body is cut off is not tracked.
func TestHandlerBoundsBodies(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	next, _ := counter(200)
	h := r.Handler(next, server.HandlerConfig{Scope: anyone, MaxBody: 3})
	requireProblem(t, post(h, id(1, 1), "long"), 413, "")
	req := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("x"), cut{}))
	req.Header.Set(exactlyonce.Header, id(1, 1).String())
	requireProblem(t, serve(h, req), 408, "")
	require.Zero(t, r.Stats().Clients)
	require.Equal(t, "call 1: sho", bodyOf(t, post(h, id(1, 1), "sho")))
	req = httptest.NewRequest(http.MethodPost, "/charges?x=1", nil)
	req.Body = nil
	req.Header.Set(exactlyonce.Header, id(2, 1).String())
	require.Equal(t, "call 2: ", bodyOf(t, serve(h, req)))
}

// Law X1: a refusal that another server could replace by a success does not end the doubt
// about earlier attempts.
func TestHandler_KeepsRefusal(t *testing.T) {
	const kept = "Exactly-Once-Kept"
	for name, tt := range map[string]struct {
		hasRecords, puts bool
		elsewhere        int // the status that another server puts after the first attempt, or 0
		status           int
		want             string // of the second attempt
	}{
		"in memory":               {status: 402, want: "true"},
		"a success":               {status: 201},
		"not put into Records":    {hasRecords: true, status: 402},
		"put into Records":        {hasRecords: true, puts: true, status: 402, want: "true"},
		"a success elsewhere":     {hasRecords: true, elsewhere: 201, status: 402},
		"a refusal elsewhere":     {hasRecords: true, elsewhere: 402, status: 402, want: "true"},
		"a success, with Records": {hasRecords: true, puts: true, status: 201},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRecords()
			next := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set(kept, "true") // of a server behind this one; no proof here
				request, _ := exactlyonce.RequestFromContext(req.Context())
				resp := exactlyonce.Response{Status: tt.status, Body: []byte("answer")}
				if tt.puts {
					err := f.put(request, string(resp.Encode()))
					if err != nil {
						t.Error(err)
					}
				}
				resp.Send(w)
			})
			config := server.Config{}
			if tt.hasRecords {
				config.Records = f
			}
			r, _ := newResults(t, config)
			h := r.Handler(next, server.HandlerConfig{Scope: anyone})
			require.Equal(t, tt.status, post(h, id(1, 1), "").StatusCode)
			if tt.elsewhere != 0 {
				resp := exactlyonce.Response{Status: tt.elsewhere}
				require.NoError(t, f.put(request(1), string(resp.Encode())))
			}
			second := post(h, id(1, 2), "")
			require.Equal(t, "replayed", second.Header.Get(resultHeader))
			require.Equal(t, tt.want, second.Header.Get(kept))
		})
	}
}

type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// X2: a handler stores its response in its transaction. The records return it after a
// restart and after a lost COMMIT.
func TestHandlerWithRecords(t *testing.T) {
	f := newFakeRecords()
	lost := false
	next := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		request, ok := exactlyonce.RequestFromContext(req.Context())
		if !ok {
			t.Error("no request")
		}
		resp := exactlyonce.Response{Status: 201, Header: http.Header{"Location": {"/1"}}, Body: []byte("made")}
		if err := f.put(request, string(resp.Encode())); err != nil || lost {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		resp.Send(w)
	})
	handler := func() http.Handler {
		r, _ := newResults(t, server.Config{Records: f})
		return r.Handler(next, server.HandlerConfig{Scope: anyone})
	}
	check := func(resp *http.Response, result string) {
		t.Helper()
		require.Equal(t, 201, resp.StatusCode)
		require.Equal(t, "made", bodyOf(t, resp))
		require.Equal(t, "/1", resp.Header.Get("Location"))
		require.Equal(t, result, resp.Header.Get(resultHeader))
	}
	h := handler()
	check(post(h, id(1, 1), ""), "")
	check(post(h, id(1, 2), ""), "replayed")
	check(post(handler(), id(1, 2), ""), "replayed")
	lost = true
	check(post(h, id(2, 1), ""), "replayed")

	lost = false
	// Another request had the id at another server, so the handler's transaction has
	// failed.
	f.err = exactlyonce.ErrMismatch
	requireProblem(t, post(h, id(7, 1), ""), 409, "mismatch")
	f.err = nil
	var log bytes.Buffer
	r, _ := newResults(t, server.Config{Records: f})
	h = r.Handler(next, server.HandlerConfig{Scope: anyone, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, f.put(request(3), "not a response"))
	requireProblem(t, post(h, id(3, 1), ""), 500, "")
	require.Contains(t, log.String(), "stored response: version 110 is unknown")
	f.err = errors.New("no connection")
	resp := post(h, id(4, 2), "")
	requireProblem(t, resp, 503, "")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	require.Contains(t, log.String(), "no connection")
	f.err = nil
	f.marks[client] = 6
	requireProblem(t, post(h, id(5, 2), ""), 410, "stale")
}

// A handler that is no longer the driver does not answer.
func TestTakeOver_HandlerLosesItsRole(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	h := r.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		call, err := r.TakeOver(attempt(1, 9))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { call.Fail(nil) })
	}), server.HandlerConfig{Scope: anyone})
	requireProblem(t, post(h, id(1, 1), ""), 409, "in-progress")
}

func TestHandlerConfigThatMakesNoSense(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	require.PanicsWithValue(t, "server: Handler: nil next", func() { r.Handler(nil, server.HandlerConfig{Scope: anyone}) })
	require.PanicsWithValue(t, "server: Handler: Scope is nil: it says whose request it is, and whose answers it may get",
		func() { r.Handler(http.NotFoundHandler(), server.HandlerConfig{}) })
	require.Panics(t, func() {
		r.Handler(http.NotFoundHandler(), server.HandlerConfig{Scope: anyone, MismatchStatus: 400})
	})
	require.Panics(t, func() { r.Handler(http.NotFoundHandler(), server.HandlerConfig{Scope: anyone, RetryAfter: -1}) })
	require.Panics(t, func() { r.Handler(http.NotFoundHandler(), server.HandlerConfig{Scope: anyone, MaxBody: -1}) })
}

// With any header, the request is refused as invalid, or runs once for two attempts.
func FuzzHandlerHeader(f *testing.F) {
	f.Add(id(1, 1).String())
	f.Add(`"0af7651916cd43dd8448eb211c80319c"; seq=7; attempt=1;first=3;step="a"`)
	f.Add("")
	f.Fuzz(func(t *testing.T, value string) {
		r := server.NewResults(server.Config{})
		defer r.Close(t.Context())
		next, calls := counter(200)
		h := r.Handler(next, server.HandlerConfig{Scope: anyone})
		for range 2 {
			req := httptest.NewRequest(http.MethodPost, "/", nil)
			req.Header[exactlyonce.Header] = []string{value}
			resp := serve(h, req)
			if _, err := parseID(value); err != nil {
				requireProblem(t, resp, 400, "invalid")
				require.Zero(t, calls.Load())
			} else {
				require.Equal(t, 200, resp.StatusCode)
				require.Equal(t, int64(1), calls.Load())
			}
		}
	})
}

func parseID(text string) (id exactlyonce.ID, err error) {
	err = id.UnmarshalText([]byte(text))
	return id, err
}
