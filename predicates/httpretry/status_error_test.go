package httpretry_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/progress"
)

// The key of a service is often in the query: weir's error texts do not contain it.
func TestStatusError_HidesTheSecretsOfItsURL(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
	defer s.Close()
	address := strings.Replace(s.URL, "http://", "http://ann:SECRET@", 1) + "/charges/7?q='x'&key=SECRET#SECRET"
	call := func(ctx context.Context, _ int) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		return 0, httpretry.CheckResponse(resp)
	}
	defer http.DefaultClient.CloseIdleConnections()
	_, err := call(t.Context(), 1)
	status, ok := err.(*httpretry.StatusError)
	require.True(t, ok)
	want := strings.Replace(s.URL, "http://", "http://ann:xxxxx@", 1) + "/charges/7?xxxxx"
	require.Equal(t, want, status.URL)
	require.Equal(t, "GET "+want+": http status 400 Bad Request", err.Error())

	var log, line bytes.Buffer
	op := asyncop.OrderedWait(asyncop.Blocking(call), time.Minute, 1, asyncop.WithName("charges"),
		asyncop.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	stop := progress.Line{Out: &line, Style: progress.Plain, Sample: func() progress.State { return progress.Of(op.Stats()) }}.Start()
	for _, err := range op.Results(func(yield func(int) bool) { yield(1) }) {
		require.Error(t, err)
	}
	stop()
	for name, text := range map[string]string{"log": log.String(), "progress": line.String()} {
		require.Contains(t, text, "/charges/7?xxxxx", name)
		require.NotContains(t, text, "SECRET", name)
	}
}

// The error of net/http itself contains the query. weir's log lines and progress lines do
// not.
func TestURLError_SecretsInLogLines(t *testing.T) {
	var log, line bytes.Buffer
	op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:1/?q=<b>&key=SECRET", http.NoBody)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return 0, err
	}), time.Minute, 1, asyncop.WithLogger(slog.New(slog.NewJSONHandler(&log, nil))))
	stop := progress.Line{Out: &line, Style: progress.Plain, Sample: func() progress.State { return progress.Of(op.Stats()) }}.Start()
	for _, err := range op.Results(func(yield func(int) bool) { yield(1) }) {
		require.ErrorContains(t, err, "SECRET", "the program's own error is passed on")
	}
	stop()
	require.Contains(t, log.String(), "refused")
	require.NotContains(t, log.String(), "SECRET")
	require.Contains(t, line.String(), "refused")
	require.NotContains(t, line.String(), "SECRET")
}
