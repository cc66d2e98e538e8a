//go:build unix

package keystest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce/keys"
)

func post(url, key, body string) (*http.Response, string, error) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	req.Header.Set("User", "a")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), errors.Join(err, resp.Body.Close())
}

func userOf(req *http.Request) (string, bool) {
	return req.Header.Get("User"), req.Header.Get("User") != ""
}

// The middleware from the client's perspective.
func (b *bench) http() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	config := keys.HandlerConfig{
		User:    userOf,
		MaxBody: 50,
	}
	server := httptest.NewServer(o.Handler(config))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	expect := func(url, key, body string, status int, result string) string {
		b.Helper()
		resp, text, err := post(url, key, body)
		require.NoError(b, err)
		assert.Equal(b, status, resp.StatusCode, text)
		assert.Equal(b, result, resp.Header.Get("Exactly-Once-Result"))
		if status == http.StatusConflict && result == "in-progress" {
			assert.Equal(b, "1", resp.Header.Get("Retry-After"))
		}
		return text
	}
	first := expect(server.URL, "k", "body", http.StatusCreated, "")
	assert.Equal(b, first, expect(server.URL, "k", "body", http.StatusCreated, "replayed"))
	assert.Equal(b, first, expect(server.URL, `"k"`, "body", http.StatusCreated, "replayed"))
	assert.Contains(b, expect(server.URL, "k", "other", http.StatusConflict, "mismatch"), "urn:weir:exactly-once:mismatch")
	expect(server.URL, "", "body", http.StatusBadRequest, "invalid")
	expect(server.URL, `"k`, "body", http.StatusBadRequest, "invalid")
	expect(server.URL, "a b", "body", http.StatusBadRequest, "invalid")
	expect(server.URL, strings.Repeat("k", 256), "body", http.StatusBadRequest, "invalid")
	expect(server.URL+"/"+strings.Repeat("p", 100), "k2", "body", http.StatusBadRequest, "invalid")
	expect(server.URL, "k3", strings.Repeat("b", 51), http.StatusRequestEntityTooLarge, "")
	expect(server.URL, strings.Repeat("k", 255), "body", http.StatusCreated, "")

	p.call = func(string) error { return errors.New("lost") }
	expect(server.URL, "k4", "body", http.StatusServiceUnavailable, "")
	p.between = func(context.Context, *keys.Run) error { return errors.New("secret") }
	assert.NotContains(b, expect(server.URL, "k5", "body", http.StatusInternalServerError, ""), "secret")
	p.between = func(context.Context, *keys.Run) error {
		expect(server.URL, "k6", "body", http.StatusConflict, "in-progress")
		return nil
	}
	p.call = nil
	expect(server.URL, "k6", "body", http.StatusCreated, "")

	// The run continues after its client has disconnected.
	gone, cancel := context.WithCancel(b.Context())
	p.between = func(context.Context, *keys.Run) error { cancel(); return nil }
	req := httptest.NewRequestWithContext(gone, http.MethodPost, "/", strings.NewReader("body"))
	req.Header.Set("Idempotency-Key", "k7")
	req.Header.Set("User", "a")
	recorder := httptest.NewRecorder()
	o.Handler(config).ServeHTTP(recorder, req)
	assert.Equal(b, http.StatusCreated, recorder.Code)

	req.Header.Del("User")
	recorder = httptest.NewRecorder()
	o.Handler(config).ServeHTTP(recorder, req)
	assert.Equal(b, http.StatusForbidden, recorder.Code)

	config.MismatchStatus = http.StatusUnprocessableEntity
	other := httptest.NewServer(o.Handler(config))
	defer other.Close()
	expect(other.URL, "k", "other", http.StatusUnprocessableEntity, "mismatch")
	assert.PanicsWithValue(b, "keys: Handler: User is nil: it says whose key it is, and whose responses it may get",
		func() { o.Handler(keys.HandlerConfig{}) })
	config.MismatchStatus = http.StatusTeapot
	assert.Panics(b, func() { o.Handler(config) })
}

// Two refunds of one payment are one request, of two payments two.
func (b *bench) entity() {
	p := &phases{}
	refund := b.keys.Operation("refund", p.handle).Handler(keys.HandlerConfig{User: userOf, Key: func(_ *http.Request, body []byte) (string, error) {
		if len(body) == 0 {
			return "", errors.New("no payment")
		}
		return "payment-" + string(body) + "-refund", nil
	}})
	server := httptest.NewServer(refund)
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for i, payment := range []string{"1234", "1234", "1235"} {
		resp, _, err := post(server.URL, "random "+strconv.Itoa(i), payment)
		require.NoError(b, err)
		assert.Equal(b, http.StatusCreated, resp.StatusCode)
	}
	assert.Equal(b, [3]int{2, 2, 2}, p.runs())
	resp, _, err := post(server.URL, "k", "")
	require.NoError(b, err)
	assert.Equal(b, http.StatusBadRequest, resp.StatusCode)
}
