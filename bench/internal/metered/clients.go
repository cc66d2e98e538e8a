package metered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/destel/rill"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	inFlight = 500 // a client's calls in flight, and the operator's slots
	patience = 2 * time.Minute
)

// job is the work of a client: calls for rows at the assumed rate, until all rows are
// answered or the budget is spent. A call costs 1. A budget of 0 means no limit.
type job struct {
	rows    int
	assumed float64
	budget  float64
	call    func(ctx context.Context) error
}

type client struct {
	name string
	run  func(ctx context.Context, j job) (done int, err error)
	kill func(ask asking, rows int) error // runs in a process that is killed
}

type asking func(ctx context.Context, row int) (int, error)

var clients = []client{
	{"weir", runWeir, killedWeir},
	{"loop", runLoop, killedLoop},
	{"rill", runRill, killedRill},
}

func runWeir(ctx context.Context, j job) (done int, err error) {
	quiet := slog.New(slog.DiscardHandler)
	service := backend.New("service", backend.AdaptiveRate(j.assumed/10, j.assumed, time.Second), backend.WithLogger(quiet))
	call := asyncop.Blocking(func(ctx context.Context, row int) (int, error) { return row, j.call(ctx) })
	policy := strategies.ReasonAware(httpretry.Classifier[int](), nil).Idempotent()
	var atBackend []asyncop.Option
	if j.budget > 0 {
		atBackend = append(atBackend, asyncop.Budget(j.budget))
	}
	op := asyncop.UnorderedWaitWithRetry(call, patience, inFlight, policy, asyncop.WithTimeoutFromFirstAttempt(),
		asyncop.WithBackend(service, atBackend...), asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
	for _, err := range op.Results(numbers(j.rows)) {
		if errors.Is(err, asyncop.ErrBudgetSpent) {
			return done, nil
		}
		if err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

func numbers(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// runLoop is the loop of most programs: a goroutine for each row, a limiter, and
// exponential back-off. It ignores Retry-After.
func runLoop(ctx context.Context, j job) (done int, err error) {
	limiter := newLimiter(j.assumed)
	var answered, spent atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(inFlight)
	for range j.rows {
		group.Go(func() error {
			waits := backoff.NewExponentialBackOff()
			waits.InitialInterval, waits.MaxInterval = 100*time.Millisecond, 2*time.Second
			_, err := backoff.Retry(ctx, func() (struct{}, error) {
				return struct{}{}, attempt(ctx, limiter, &spent, j)
			}, backoff.WithBackOff(waits), backoff.WithMaxElapsedTime(patience))
			return note(err, &answered)
		})
	}
	err = group.Wait()
	return int(answered.Load()), err
}

// runRill is a rill stream with a limiter. Its function repeats a failed call after
// Retry-After, or a back-off.
func runRill(ctx context.Context, j job) (done int, err error) {
	limiter := newLimiter(j.assumed)
	var answered, spent atomic.Int64
	rows := make([]int, j.rows)
	err = rill.ForEach(rill.FromSlice(rows, nil), inFlight, func(int) error {
		wait := 100 * time.Millisecond
		for {
			err := attempt(ctx, limiter, &spent, j)
			var permanent *backoff.PermanentError
			if err == nil || errors.As(err, &permanent) || ctx.Err() != nil {
				return note(err, &answered)
			}
			pause := wait
			status, ok := errors.AsType[*httpretry.StatusError](err)
			if ok && status.HasDelay {
				pause = status.Delay
			} else {
				wait = min(2*wait, 2*time.Second)
			}
			err = sleep(ctx, pause)
			if err != nil {
				return err
			}
		}
	})
	return int(answered.Load()), err
}

func newLimiter(perSecond float64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/20)))
}

var errSpent = errors.New("metered: the budget is spent")

// attempt makes a call within the limiter and the budget. An answered call is spent.
func attempt(ctx context.Context, limiter *rate.Limiter, spent *atomic.Int64, j job) error {
	err := limiter.Wait(ctx)
	if err != nil {
		return backoff.Permanent(fmt.Errorf("metered: wait for the limiter: %w", err))
	}
	if j.budget > 0 && float64(spent.Load()) >= j.budget {
		return backoff.Permanent(errSpent)
	}
	err = j.call(ctx)
	if err == nil {
		spent.Add(1)
	}
	return err
}

// note counts an answered row. A row stopped by the budget is not an error.
func note(err error, answered *atomic.Int64) error {
	switch {
	case err == nil:
		answered.Add(1)
		return nil
	case errors.Is(err, errSpent):
		return nil
	}
	return err
}
