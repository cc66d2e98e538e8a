package backend_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/testing/suite"
)

// The limit that Adaptive finds for a real server with a queue keeps its workers busy,
// also when half of the workers are removed. It needs real time, so it runs only with
// WEIR_LONG=1.
func TestAdaptiveAtARealServer(t *testing.T) {
	if !suite.Long() {
		t.Skip("takes a minute of real time: WEIR_LONG=1")
	}
	const work = 20 * time.Millisecond
	workers := make(chan struct{}, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		workers <- struct{}{}
		time.Sleep(work)
		<-workers
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()

	b := backend.New("server", backend.Adaptive(4, 200), backend.WithLogger(silent))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return 1, errors.Join(err, resp.Body.Close())
	}), 10*time.Second, 500, asyncop.WithBackend(b), asyncop.WithContext(ctx), asyncop.WithDropOnFailure(), asyncop.WithLogger(silent))

	measure := func(what string, capacity int) {
		const length = 10 * time.Second
		before := op.Stats().Completed
		time.Sleep(length)
		perSecond := float64(op.Stats().Completed-before) / length.Seconds()
		share := perSecond / (float64(capacity) / work.Seconds())
		t.Logf("%s: %.0f calls a second, %.2f of what the server can do, limit %d", what, perSecond, share, b.Stats().Limit)
		require.Greater(t, share, 0.8)
		require.Less(t, b.Stats().Limit, 3*capacity)
	}
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		for _, err := range op.Results(func(yield func(int) bool) {
			for yield(0) {
			}
		}) {
			if err != nil {
				return
			}
		}
	}()
	time.Sleep(15 * time.Second)
	measure("16 workers", 16)
	for range 8 {
		workers <- struct{}{}
	}
	time.Sleep(20 * time.Second)
	measure("8 workers", 8)
	for range 8 {
		<-workers
	}
	cancel()
	<-done
}
