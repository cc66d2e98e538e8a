package sqlite_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// Set for the process of a worker: the URL of the service, and the database.
const (
	serviceEnv = "WEIR_TRACKED_SERVICE"
	fileEnv    = "WEIR_TRACKED_FILE"
)

// Law X1: workers are killed again and again, and answers are lost. Each message has one effect: whichever worker makes its call again, after a
// redelivery or from a layer, makes it under the same id.
func TestKilledWorkersChargeOnce(t *testing.T) {
	const n, kills = 60, 6
	file := filepath.Join(t.TempDir(), "queues.db")
	db := open(t, file)
	s := sqlite.New(db)
	defer s.Close()
	var ms []store.Message
	for i := range n {
		ms = append(ms, store.Message{Meta: message.Meta{ID: "order-" + strconv.Itoa(i)}, Payload: []byte(strconv.Quote(strconv.Itoa(i)))})
	}
	require.NoError(t, s.Put(t.Context(), "orders", ms...))

	var mu sync.Mutex
	effects, replayed := map[string]int{}, 0
	results := server.NewResults(server.Config{})
	defer func() { require.NoError(t, results.Close(context.Background())) }()
	charge := results.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		effects[string(body)]++
		mu.Unlock()
	}), server.HandlerConfig{Scope: func(*http.Request) (string, bool) { return "test", true }, Required: true})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorded := httptest.NewRecorder()
		charge.ServeHTTP(recorded, r)
		mu.Lock()
		if recorded.Header().Get("Exactly-Once-Result") == "replayed" {
			replayed++
		}
		mu.Unlock()
		if rand.IntN(3) == 0 { // the answer is lost
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = c.Close()
			}
			return
		}
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorded.Code)
	}))
	defer service.Close()

	start := func() *exec.Cmd {
		worker := exec.Command(os.Args[0], "-test.run=^TestTrackedWorker$", "-test.timeout=5m")
		worker.Env = append(os.Environ(), serviceEnv+"="+service.URL, fileEnv+"="+file)
		worker.Stderr = os.Stderr
		require.NoError(t, worker.Start())
		return worker
	}
	left := func() (left int) {
		for _, queue := range []string{"orders", "orders-retry-1", "orders-retry-2"} {
			c, err := s.Count(t.Context(), queue, store.Filter{})
			require.NoError(t, err)
			left += c.Messages
		}
		return left
	}
	for range kills {
		worker := start()
		time.Sleep(time.Duration(200+rand.IntN(300)) * time.Millisecond) // a kill at any moment is a good one
		_ = worker.Process.Kill()
		_ = worker.Wait()
	}
	worker := start()
	require.Eventually(t, func() bool { return left() == 0 }, 3*time.Minute, 50*time.Millisecond)
	_ = worker.Process.Kill()
	_ = worker.Wait()

	letters, err := s.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: n})
	require.NoError(t, err)
	for _, l := range letters { // the ladder is short: some are given up. Each has at most one effect, too
		require.Equal(t, store.UnsafeToRepeat, l.Cause, l.Meta.LastError)
	}
	mu.Lock()
	defer mu.Unlock()
	for what, times := range effects {
		require.Equal(t, 1, times, what)
	}
	require.GreaterOrEqual(t, len(effects), n-len(letters))
	require.Positive(t, replayed)
}

// TestTrackedWorker is the process of a worker.
func TestTrackedWorker(t *testing.T) {
	url := os.Getenv(serviceEnv)
	if url == "" {
		t.Skip("a process of TestKilledWorkersChargeOnce")
	}
	ctx := t.Context()
	db, err := sqlite.OpenDB(ctx, os.Getenv(fileEnv))
	require.NoError(t, err)
	s := sqlite.New(db)
	quiet := slog.New(slog.DiscardHandler)
	orders := delivery.NewQueue[string](s, "orders", delivery.QueueConfig{Lease: 500 * time.Millisecond, Logger: quiet, Remembers: 9 * time.Minute, Layers: []delivery.Layer{{Delay: 100 * time.Millisecond}, {Delay: 200 * time.Millisecond}}})
	client := &http.Client{Transport: caller.Transport(nil, url+"/charges")}
	call := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/charges", strings.NewReader(in))
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		time.Sleep(20 * time.Millisecond) // so that kills find messages in flight
		return in, errors.Join(httpretry.CheckResponse(resp), resp.Body.Close())
	})
	op := asyncop.UnorderedWaitWithRetry(call, time.Minute, 8,
		strategies.ReasonAware(httpretry.Classifier[string](), nil).WithMaxDelay(time.Nanosecond), asyncop.WithLogger(quiet),
		asyncop.WithObserver(caller.NewTracker(caller.Config{Name: "charges", Secret: []byte("0123456789abcdef")})), asyncop.WithFailureSink(orders.TakeFailure))
	_, err = delivery.Run(ctx, orders, op, acknowledge{}, delivery.RunConfig{FloodShare: 1, FloodWindow: 100, Logger: quiet})
	require.NoError(t, err)
}

// acknowledge is a sink in which everything is safe.
type acknowledge struct{}

func (acknowledge) PutAll(context.Context, []message.Message[string]) error { return nil }
