package streams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Stress in real time: many short operators, with everything happening at once.
// TestRandomSchedules checks the predictable results. Here the machine makes the
// schedules, and the race detector watches.

var errStress = errors.New("stress")

// stressBackend completes attempts from a few goroutines, at random times, some twice and
// some never.
type stressBackend struct {
	requests chan stressRequest
	workers  sync.WaitGroup
}

type stressRequest struct {
	ctx    context.Context
	in     int
	result asyncop.ResultFuture[int]
}

func newStressBackend(goroutines int) *stressBackend {
	b := &stressBackend{requests: make(chan stressRequest, 4096)}
	for range goroutines {
		b.workers.Go(b.work)
	}
	return b
}

func (b *stressBackend) close() {
	close(b.requests)
	b.workers.Wait()
}

func (b *stressBackend) work() {
	for r := range b.requests {
		switch rand.IntN(16) {
		case 0: // never
			continue
		case 1: // about when it times out
			go func() {
				<-r.ctx.Done()
				r.result.Complete(r.in)
			}()
			continue
		case 2: // twice, from two goroutines
			go r.result.Complete(r.in)
		case 3:
			time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		case 4:
			runtime.Gosched()
		}
		switch rand.IntN(8) {
		case 0:
			r.result.Complete()
		case 1:
			r.result.CompleteExceptionally(errStress)
		case 2:
			r.result.Complete(r.in, r.in)
		default:
			r.result.Complete(r.in)
		}
	}
}

// AsyncInvoke passes most calls to the goroutines and ends some itself.
func (b *stressBackend) AsyncInvoke(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
	switch rand.IntN(10) {
	case 0:
		result.Complete(in)
	case 1:
		return errStress
	case 2:
		b.requests <- stressRequest{ctx, in, result}
		panic(errStress) // while another goroutine may be completing it
	default:
		b.requests <- stressRequest{ctx, in, result}
	}
	return nil
}

// call does the same for Blocking.
func (b *stressBackend) call(ctx context.Context, in int) (int, error) {
	switch rand.IntN(10) {
	case 0:
		<-ctx.Done()
		return 0, ctx.Err()
	case 1:
		return 0, asyncop.ErrNoResult
	case 2:
		panic(errStress)
	case 3:
		runtime.Goexit()
	case 4:
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
	}
	return in, nil
}

// TestStress starts and stops operators with random settings under random load, and
// checks the laws that hold in every case: A1, A2, Q1, Q2, F1. TestMain checks that all
// goroutines have ended.
func TestStress(t *testing.T) {
	operators := 1500
	if suite.Race || !suite.Full() {
		operators = 400
	}
	backend := newStressBackend(4)
	defer backend.close()
	slots := make(chan struct{}, 8) // at the same time
	var all sync.WaitGroup
	for range operators {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			stressOne(t, backend)
		})
	}
	all.Wait()
}

func stressOne(t *testing.T, backend *stressBackend) {
	elements := rand.IntN(60)
	ordered := rand.IntN(2) == 0
	capacity := 1 + rand.IntN(20)
	micros := func(n int) time.Duration { return time.Duration(1+rand.IntN(n)) * time.Microsecond }

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	opts := []asyncop.Option{
		asyncop.WithContext(ctx), asyncop.WithBuffer(rand.IntN(3) * 10), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
	}
	optional := func(opt asyncop.Option) {
		if rand.IntN(2) == 0 {
			opts = append(opts, opt)
		}
	}
	optional(asyncop.WithMaxConcurrentCalls(1 + rand.IntN(capacity)))
	optional(asyncop.WithAttemptTimeout(micros(500)))
	optional(asyncop.WithEarlyTimeout())
	optional(asyncop.WithDrainRetries())
	optional(asyncop.WithExhaustedAsFailure())
	var sided atomic.Int32
	switch rand.IntN(5) {
	case 0: // fail
	case 1, 2:
		opts = append(opts, asyncop.WithDropOnFailure())
	default:
		opts = append(opts, asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
			if rand.IntN(500) == 0 { // offered again, unless the operator ends
				return errStress
			}
			sided.Add(1)
			return nil
		}))
	}
	var fn asyncop.AsyncFunction[int, int] = backend
	if rand.IntN(3) == 0 {
		fn = asyncop.Blocking(backend.call)
	}
	if rand.IntN(2) == 0 {
		fn = optest.TimeoutMethod(fn, func(_ context.Context, in int) ([]int, error) {
			if in%3 == 0 {
				return nil, errStress
			}
			return []int{in}, nil
		})
	}
	start := asyncop.OrderedWaitWithRetry[int, int]
	if !ordered {
		start = asyncop.UnorderedWaitWithRetry[int, int]
	}
	op := start(fn, micros(3000), capacity, strategies.FixedDelay[int](rand.IntN(4), micros(200)).
		RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException), opts...)

	// Upstream sends a watermark after every tenth element, and closes in any case.
	go func() {
		defer close(op.In())
		for i := range elements {
			op.In() <- i
			if i%10 == 9 {
				op.In() <- asyncop.Watermark{Timestamp: time.Unix(int64(i), 0)}
			}
		}
	}()
	// The operator may be ended at a random time.
	ending := rand.IntN(6)
	go func() {
		time.Sleep(micros(2000))
		switch ending {
		case 0:
			cancel(errStress)
		case 1:
			_ = op.Stop(context.Background())
		case 2:
			soon, cancelSoon := context.WithTimeout(context.Background(), micros(500))
			defer cancelSoon()
			_ = op.Stop(soon)
		}
	}()
	// Downstream is sometimes slow.
	var out []any
	for v := range op.Out() {
		out = append(out, v)
		if rand.IntN(50) == 0 {
			time.Sleep(micros(500))
		}
		if s := op.Stats(); s.InFlight > int64(capacity) || s.InFlight < 0 {
			t.Errorf("Q2: %d in flight of %d", s.InFlight, capacity)
		}
	}
	err := op.Err()
	select {
	case <-op.Done():
	case <-time.After(time.Minute):
		t.Fatalf("no end: %+v", op.Stats())
	}
	stressCheck(t, op.Stats(), err, ordered, elements, out, int(sided.Load()))
}

func stressCheck(t *testing.T, s asyncop.Stats, err error, ordered bool, elements int, out []any, sided int) {
	t.Helper()
	describe := fmt.Sprintf("err %v, %+v, out %v", err, s, out)
	assert.Zero(t, s.InFlight, describe)
	assert.Zero(t, s.WaitingForRetry, describe)
	assert.Equal(t, s.Accepted, s.Completed+s.Dropped+s.HandedOver+s.Failed+s.Abandoned, describe)
	assert.LessOrEqual(t, s.Dropped+s.HandedOver+s.Failed, s.Failures, describe)
	if err == nil {
		assert.Equal(t, s.Failures, s.Dropped+s.HandedOver+s.Failed, describe)
	}
	assert.LessOrEqual(t, s.Accepted, int64(elements), describe)
	if s.Dropped+s.Failed == 0 && sided > 0 {
		assert.LessOrEqual(t, s.HandedOver, int64(sided), describe)
		assert.GreaterOrEqual(t, s.HandedOver+s.Abandoned, int64(sided), describe)
	}
	if err == nil {
		assert.Zero(t, s.Failed+s.Abandoned, describe)
	}
	last, wall, seen := -1, -1, map[int]bool{}
	emitted := int64(0)
	for _, v := range out {
		if w, ok := v.(asyncop.Watermark); ok {
			assert.Greater(t, int(w.Timestamp.Unix()), wall, describe)
			wall = int(w.Timestamp.Unix())
			for n := range seen {
				assert.LessOrEqual(t, n, wall, describe)
			}
			continue
		}
		emitted++
		n := v.(int)
		assert.Greater(t, n, wall, describe)
		assert.False(t, seen[n] && n != last, "A1, Q1: twice or apart: %s", describe)
		if ordered {
			assert.GreaterOrEqual(t, n, last, describe)
		}
		seen[n], last = true, n
	}
	assert.Equal(t, s.Emitted, emitted, describe)
	assert.LessOrEqual(t, s.Completed, int64(elements), describe)
}

// Laws A2, A3 under contention: attempts that are completed, twice, exactly at their
// timeout end once.
func TestStressCompletionsAgainstTimeouts(t *testing.T) {
	elements := 40_000
	if suite.Race || !suite.Full() {
		elements = 8_000
	}
	retry := strategies.FixedDelay[int](5, 0).RetryIfException(predicates.HasException)
	t.Run("of attempts", func(t *testing.T) {
		stressTimeouts(t, elements, 3*time.Millisecond, retry, false, asyncop.WithAttemptTimeout(time.Millisecond))
	})
	t.Run("of elements", func(t *testing.T) {
		stressTimeouts(t, elements, time.Millisecond, retry, false)
	})
	t.Run("with a handler", func(t *testing.T) {
		stressTimeouts(t, elements, time.Millisecond, retry, true)
	})
}

func stressTimeouts(
	t *testing.T, elements int, timeout time.Duration, retry strategies.Retry[int], handled bool,
	opts ...asyncop.Option,
) {
	t.Helper()
	type request struct {
		deadline time.Time
		result   asyncop.ResultFuture[int]
		in       int
	}
	requests := make(chan request, 4096)
	var answering sync.WaitGroup
	for range 4 {
		answering.Go(func() {
			for r := range requests {
				for wait := time.Until(r.deadline); wait > 0; wait = time.Until(r.deadline) {
					if wait > 100*time.Microsecond {
						time.Sleep(wait - 50*time.Microsecond)
					}
				}
				r.result.Complete(r.in)
				r.result.CompleteExceptionally(errStress)
			}
		})
	}
	fn := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		deadline, _ := ctx.Deadline()
		requests <- request{deadline, result, in}
		requests <- request{deadline, result, in}
		return nil
	})
	if handled {
		fn = optest.TimeoutMethod(fn, func(_ context.Context, in int) ([]int, error) { return []int{in}, nil })
	}
	opts = append(opts, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	op := asyncop.UnorderedWaitWithRetry(fn, timeout, 200, retry, opts...)
	go func() {
		defer close(op.In())
		for i := range elements {
			op.In() <- i
		}
	}()
	seen := make([]bool, elements)
	for v := range op.Out() {
		require.False(t, seen[v.(int)], "twice: %v", v)
		seen[v.(int)] = true
	}
	close(requests)
	answering.Wait()
	require.NoError(t, op.Wait())
	s := op.Stats()
	require.EqualValues(t, elements, s.Accepted)
	require.EqualValues(t, elements, s.Completed+s.Dropped)
	require.Equal(t, s.Completed, s.Emitted)
	require.Zero(t, s.Running)
	byHandler := int64(0)
	if handled {
		byHandler = s.Timeouts
	}
	require.Equal(t, 4*s.Attempts, s.Completed-byHandler+s.LateCompletions, "every completion counts or is late")
}
