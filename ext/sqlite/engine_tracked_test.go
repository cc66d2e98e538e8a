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
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/workerkill"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// Set for the process of a worker: the URL of the service, and the database.
const (
	serviceEnv = "WEIR_TRACKED_SERVICE"
	fileEnv    = "WEIR_TRACKED_FILE"
)

// Law X1: workers are killed again and again, and answers are lost. Each message has one
// effect: any worker that repeats its call, after a redelivery or from a layer, uses the
// same id.
func TestKilledWorkersChargeOnce(t *testing.T) {
	t.Parallel()
	chargeOnce(t, os.Args[0])
}

// beforeDoubtWasRenamed is the last commit whose Go names of doubt are the stored ones.
const beforeDoubtWasRenamed = "72e6ac555835bc87a25cf0a244430638b72dd57d"

// Laws W4 and X1: workers of the version before the renames run beside workers of this
// version. Each reads the doubts, the ids and the times that the other has stored, and
// each runs the jobs that the other has started.
func TestKilledWorkersChargeOnce_BesideThePreviousVersion(t *testing.T) {
	older := workerkill.Older(t, beforeDoubtWasRenamed, "ext/sqlite")
	chargeOnce(t, older, os.Args[0])
	mergeUnsafe(t, older)
	mergeUnsafe(t, os.Args[0])
}

// mergeUnsafe has a worker of a program merge dead letters. It merges those unsafe to
// repeat only if the job includes them.
func mergeUnsafe(t *testing.T, program string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "queues.db")
	db := open(t, file)
	s := sqlite.New(db)
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "refunds-dead",
		store.Message{Meta: message.Meta{ID: "a", Visit: 1, UnsafeToRepeat: true}, Payload: []byte(`"a"`), Cause: store.UnsafeToRepeat},
		store.Message{Meta: message.Meta{ID: "b", Visit: 1, UnsafeToRepeat: true}, Payload: []byte(`"b"`), Cause: store.UnsafeToRepeat},
		store.Message{Meta: message.Meta{ID: "c", Visit: 1}, Payload: []byte(`"c"`), Cause: store.Permanent},
	))
	j, err := jobs.New(s, jobs.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	start := func(spec jobs.Spec) int {
		spec.Do, spec.Queue, spec.To, spec.By, spec.Why = store.Merge, "refunds-dead", "refunds", "ann", "test"
		job, err := j.Start(t.Context(), spec)
		require.NoError(t, err)
		return job.ID
	}
	cautious, all := start(jobs.Spec{}), start(jobs.Spec{UnsafeToRepeat: true})
	worker := chargeWorker(t, program, "http://127.0.0.1:1", file) // runs jobs, but makes no charges
	defer endWorker(worker)
	for id, want := range map[int]jobs.Progress{cautious: {Done: 1, Unsafe: 2}, all: {Done: 2}} {
		require.Eventually(t, func() bool {
			job, err := j.Get(t.Context(), id)
			require.NoError(t, err)
			return !job.Ended.IsZero() && job.Progress == want
		}, time.Minute, 100*time.Millisecond, "job %d", id)
	}
}

// chargeWorker starts a worker of a program: the tests of this package, of this version
// or another.
func chargeWorker(t *testing.T, program, service, file string) *exec.Cmd {
	t.Helper()
	worker := exec.Command(program, "-test.run=^TestTrackedWorker$", "-test.timeout=5m")
	worker.Env = append(os.Environ(), serviceEnv+"="+service, fileEnv+"="+file)
	worker.Stderr = os.Stderr
	require.NoError(t, worker.Start())
	return worker
}

func endWorker(worker *exec.Cmd) {
	_ = worker.Process.Kill()
	_ = worker.Wait()
}

// chargeOnce kills workers of the programs, which run side by side.
func chargeOnce(t *testing.T, programs ...string) {
	t.Helper()
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

	left := func() (left int) {
		for _, queue := range []string{"orders", "orders-retry-1", "orders-retry-2"} {
			c, err := s.Count(t.Context(), queue, store.Filter{})
			require.NoError(t, err)
			left += c.Messages
		}
		return left
	}
	running := make([]*exec.Cmd, len(programs))
	for i, program := range programs {
		running[i] = chargeWorker(t, program, service.URL, file)
	}
	for kill := range kills {
		time.Sleep(time.Duration(200+rand.IntN(300)) * time.Millisecond) // any time is good for a kill
		i := kill % len(programs)
		endWorker(running[i])
		running[i] = chargeWorker(t, programs[i], service.URL, file)
	}
	require.Eventually(t, func() bool { return left() == 0 }, 3*time.Minute, 50*time.Millisecond)
	for _, worker := range running {
		endWorker(worker)
	}

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
	orders := delivery.NewQueue[string](s, "orders", delivery.WithLease(500*time.Millisecond), delivery.WithLogger(quiet), delivery.WithIdempotencyWindow(9*time.Minute), delivery.WithLayers(delivery.Layer{Delay: 100 * time.Millisecond}, delivery.Layer{Delay: 200 * time.Millisecond}))
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
	_, err = delivery.Run(ctx, orders, op, acknowledge{}, delivery.WithLogger(quiet), delivery.WithFloodGuard(1, 100))
	require.NoError(t, err)
}

// acknowledge is a sink in which everything is safe.
type acknowledge struct{}

func (acknowledge) PutAll(context.Context, []message.Message[string]) error { return nil }
