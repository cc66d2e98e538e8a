package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// Row is a row that the examples look up.
type Row struct{ Key, Name string }

var ErrBusy = errors.New("busy")

// flaky is a table whose first call fails and whose second call finds no row.
type flaky struct{ calls atomic.Int64 }

func (t *flaky) Get(ctx context.Context, key string) (Row, error) {
	switch t.calls.Add(1) {
	case 1:
		return Row{}, ErrBusy
	case 2:
		return Row{}, asyncop.ErrNoResult
	default:
		return Row{Key: key, Name: strings.ToUpper(key)}, nil
	}
}

func Example_retries() {
	var table flaky
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (Row, error) {
		return table.Get(ctx, key)
	})
	strategy := strategies.FixedDelay[Row](3, 20*time.Millisecond).
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException)
	op := asyncop.OrderedWaitWithRetry(lookup, 5*time.Second, 1000, strategy,
		asyncop.WithDrainRetries())

	for row, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(row.Name, err, "after", op.Stats().Attempts, "attempts")
	}
	// Output:
	// LHR <nil> after 3 attempts
}

func Example_backoff() {
	strategy := strategies.ExponentialBackoff[Row](strategies.Unlimited, 10*time.Millisecond, 5*time.Second, 2).
		WithJitter(strategies.FullJitter).
		RetryIfException(predicates.AnyOf(predicates.ErrorIs(ErrBusy), predicates.ErrorAs[*net.OpError]()))

	for attempt := 1; attempt <= 10; attempt += 3 {
		fmt.Println(strategy.BackoffTime(attempt)) // before jitter
	}
	// Output:
	// 10ms
	// 80ms
	// 640ms
	// 5s
}

// everyThird allows two retries, and waits longer for every third attempt.
type everyThird struct{}

func (everyThird) CanRetry(currentAttempts int) bool { return currentAttempts <= 2 }

func (everyThird) BackoffTime(currentAttempts int) time.Duration {
	if currentAttempts%3 == 0 {
		return time.Second
	}
	return time.Millisecond
}

func (everyThird) RetryPredicate() predicates.AsyncRetryPredicate[Row] {
	return predicates.RetryIf[Row](nil, predicates.HasException)
}

func Example_ownStrategy() {
	failing := asyncop.Blocking(func(ctx context.Context, key string) (Row, error) { return Row{}, ErrBusy })
	op := asyncop.OrderedWaitWithRetry(failing, 5*time.Second, 10, everyThird{},
		asyncop.WithDrainRetries(), asyncop.WithDropOnFailure())
	for range op.Results(slices.Values([]string{"lhr"})) {
	}
	fmt.Println("attempts:", op.Stats().Attempts, "dropped:", op.Stats().Dropped)
	// Output:
	// attempts: 3 dropped: 1
}

func Example_map() {
	ctx := context.Background()
	keys := []string{"lhr", "cdg"}
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (Row, error) {
		if asyncop.AttemptFromContext(ctx) == 1 {
			return Row{}, ErrBusy
		}
		return Row{Key: key}, nil
	})
	rows, err := asyncop.Map(ctx, keys, lookup,
		strategies.FixedDelay[Row](3, 20*time.Millisecond).RetryIfException(predicates.HasException))
	fmt.Println(len(rows), rows[1].Key, err)
	// Output:
	// 2 cdg <nil>
}

func Example_ownTimeouts() {
	type request struct {
		Key      string
		Deadline time.Time
	}
	lookup := asyncop.Blocking(func(ctx context.Context, r request) (string, error) { return "row of " + r.Key, nil })
	op := asyncop.OrderedWait(lookup, time.Minute, 10,
		asyncop.WithTimeoutFor(func(r request) time.Duration {
			return time.Until(r.Deadline) // over: the element times out without a call
		}))
	late := request{"lhr", time.Now().Add(-time.Second)}
	for _, err := range op.ResultsOf(asyncop.FromSlice([]request{late})) {
		fmt.Println("late:", errors.Is(err, context.DeadlineExceeded), "calls:", op.Stats().Attempts)
	}
	// Output:
	// late: true calls: 0
}

func Example_timeouts() {
	slow := asyncop.Blocking(func(ctx context.Context, key string) (Row, error) {
		<-ctx.Done() // the attempt's time is over
		return Row{}, ctx.Err()
	})
	withDefault := asyncop.HandleFailure(slow, func(ctx context.Context, f asyncop.Failure[string]) ([]Row, error) {
		return []Row{{Key: f.Element, Name: "unknown"}}, nil
	})
	op := asyncop.OrderedWaitWithRetry(withDefault, 100*time.Millisecond, 10,
		strategies.FixedDelay[Row](10, time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithAttemptTimeout(30*time.Millisecond),
		asyncop.WithDrainRetries())
	for row, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(row.Name, err)
	}
	// Output:
	// unknown <nil>
}

func Example_reasons() {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	url := server.URL

	client := &http.Client{Transport: httpretry.Transport(nil)} // its errors report whether anything was sent
	defer client.CloseIdleConnections()
	post := asyncop.Blocking(func(ctx context.Context, order string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(order))
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return order, httpretry.CheckResponse(resp)
	})
	op := asyncop.OrderedWaitWithRetry(post, 5*time.Second, 1000,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithDrainRetries(),
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			fmt.Println("failed:", f.Element, "reason:", f.Reason, "may have taken effect:", f.UnsafeToRepeat())
			return nil // it is taken
		}))
	for order, err := range op.Results(slices.Values([]string{"order 1"})) {
		fmt.Println(order, err)
	}
	fmt.Println("requests:", requests.Load())
	// Output:
	// order 1 <nil>
	// requests: 2
}

func Example_reasonBackoff() {
	delays := strategies.ExponentialBackoff[string](strategies.Unlimited, 50*time.Millisecond, 5*time.Second, 2)
	policy := strategies.ReasonAware(httpretry.Classifier[string](),
		strategies.BestEffort[string]().WithBackoff(delays.BackoffTime).WithMaxRetries(6)).
		WithJitter(strategies.FullJitter)

	busy := &httpretry.StatusError{StatusCode: http.StatusTooManyRequests}
	for _, attempt := range []int{1, 2, 6, 7} {
		fmt.Println(strategiestest.Decide(policy, predicates.Attempt[string]{Number: attempt, Err: busy})) // before jitter
	}
	// Output:
	// retry after 50ms (HTTP_429_TOO_MANY_REQUESTS)
	// retry after 100ms (HTTP_429_TOO_MANY_REQUESTS)
	// retry after 1.6s (HTTP_429_TOO_MANY_REQUESTS)
	// no retry: refused (HTTP_429_TOO_MANY_REQUESTS)
}

func Example_maxRetriesForAReason() {
	badAnswer := predicates.NewReason("BAD_ANSWER", true, false)
	policy := strategies.ReasonAware(predicates.Classifiers(predicates.Named[string](), httpretry.Classifier[string]()), nil).
		WithMaxRetriesFor(badAnswer, 2) // two retries; a 503 is repeated until the timeout

	bad := predicates.WithReason(errors.New("this is not JSON"), badAnswer)
	for retries := range 3 {
		fmt.Println(strategiestest.Decide(policy, predicates.Attempt[string]{Err: bad, ReasonRetries: retries}))
	}
	// Output:
	// retry after 1ms (BAD_ANSWER)
	// retry after 1ms (BAD_ANSWER)
	// no retry: refused (BAD_ANSWER)
}

func Example_idempotent() {
	type request struct {
		Method string
		Path   string
	}
	policy := strategies.ReasonAware(httpretry.Classifier[string](), nil).
		IdempotentIf(func(input any) bool {
			r, ok := input.(request)
			return ok && r.Method == http.MethodGet
		})

	for _, method := range []string{http.MethodGet, http.MethodPost} {
		d := strategiestest.Decide(policy, predicates.Attempt[string]{Input: request{Method: method}, Err: io.ErrUnexpectedEOF})
		fmt.Println(method, d)
	}
	// Output:
	// GET retry after 1ms (CONNECTION_LOST_IN_FLIGHT)
	// POST no retry: refused (CONNECTION_LOST_IN_FLIGHT)
}

func Example_budget() {
	calls := backend.New("http", backend.RetryBudget(0.2)) // a retry for every fifth first attempt, and 10 a second
	policy := strategies.ReasonAware(httpretry.Classifier[string](), nil).
		WithMaxWaiting(500).
		WithJitter(strategies.FullJitter)
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(upper), 5*time.Second, 1000, policy, asyncop.WithBackend(calls))

	_ = op.Stop(context.Background())
	// Output:
}
