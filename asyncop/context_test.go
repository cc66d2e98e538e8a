package asyncop

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// attemptContext is the context of a call.
type attemptContext = call.Attempt[int]

// heldCall is a call that the test completes.
type heldCall struct {
	ctx    context.Context
	in     int
	result ResultFuture[int]
}

// callHolder is an operator whose calls the test completes, and which the test cancels.
type callHolder struct {
	*AsyncWaitOperator[int, int]
	calls  chan heldCall
	cancel context.CancelCauseFunc
}

func holdCalls(ctx context.Context, timeout time.Duration, opts ...Option) *callHolder {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &callHolder{calls: make(chan heldCall, 100), cancel: cancel}
	fn := Func(func(ctx context.Context, in int, result ResultFuture[int]) error {
		h.calls <- heldCall{ctx, in, result}
		return nil
	})
	strategy := strategies.NoRetry[int]()
	if timeout > 0 {
		strategy = strategies.FixedDelay[int](5, time.Second).RetryIfResult(predicates.EmptyResult)
	}
	opts = append([]Option{WithContext(ctx), WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	h.AsyncWaitOperator = OrderedWaitWithRetry(fn, timeout, 10, strategy, opts...)
	return h
}

// call sends an element and returns the call for it.
func (h *callHolder) call(in int) heldCall {
	h.In() <- in
	return <-h.calls
}

// end ends the operator in any state.
func (h *callHolder) end() {
	h.cancel(errDown)
	close(h.In())
	<-h.Done()
}

func isDone(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// The context of an attempt ends when the attempt has ended, however it ends, and not
// before. Everything that waits for the context ends with it.
func TestContextEndsWithTheAttempt(t *testing.T) {
	ended, cancelEnded := context.WithCancel(t.Context())
	cancelEnded()
	tests := []struct {
		name       string
		act        func(h *callHolder, c heldCall)
		err, cause error
		opts       []Option
	}{
		{
			"completed", func(_ *callHolder, c heldCall) { c.result.Complete(1) },
			context.Canceled, context.Canceled, nil,
		},
		{
			"completed with nothing", func(_ *callHolder, c heldCall) { c.result.Complete() },
			context.Canceled, context.Canceled, nil,
		},
		{
			"failed", func(_ *callHolder, c heldCall) { c.result.CompleteExceptionally(errDown) },
			context.Canceled, context.Canceled,
			[]Option{WithDropOnFailure()},
		},
		{
			"failed the pipeline", func(_ *callHolder, c heldCall) { c.result.CompleteExceptionally(errDown) },
			context.Canceled, context.Canceled, nil,
		},
		{
			"other element failed the pipeline", func(h *callHolder, _ heldCall) { h.call(2).result.CompleteExceptionally(errDown) },
			context.Canceled, errDown, nil,
		},
		{
			"attempt timed out", func(*callHolder, heldCall) { time.Sleep(time.Second) },
			context.DeadlineExceeded, context.DeadlineExceeded,
			[]Option{WithAttemptTimeout(time.Second), WithDropOnFailure()},
		},
		{
			"timed out", func(*callHolder, heldCall) { time.Sleep(time.Minute) },
			context.DeadlineExceeded, context.DeadlineExceeded,
			[]Option{WithDropOnFailure()},
		},
		{
			"cancelled", func(h *callHolder, _ heldCall) { h.cancel(errDown) },
			context.Canceled, errDown, nil,
		},
		{
			"stopped", func(h *callHolder, _ heldCall) { _ = h.Stop(ended) },
			context.Canceled, context.Canceled, nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := holdCalls(context.Background(), time.Minute, tt.opts...)
				defer h.end()
				c := h.call(1)
				derived, cancel := context.WithCancel(c.ctx)
				defer cancel()
				var after atomic.Int32
				context.AfterFunc(c.ctx, func() { after.Add(1) })
				context.AfterFunc(derived, func() { after.Add(1) })

				time.Sleep(time.Second - 1)
				synctest.Wait()
				assert.NoError(t, c.ctx.Err())
				assert.NoError(t, context.Cause(c.ctx))
				assert.False(t, isDone(c.ctx))
				assert.NoError(t, derived.Err())
				assert.Zero(t, after.Load())

				tt.act(h, c)
				synctest.Wait()
				assert.Equal(t, tt.err, c.ctx.Err())
				cause := context.Cause(c.ctx)
				assert.ErrorIs(t, cause, tt.cause)
				assert.True(t, isDone(c.ctx))
				assert.Equal(t, tt.err, derived.Err())
				assert.EqualValues(t, 2, after.Load())

				h.cancel(errors.New("later")) // has no effect
				synctest.Wait()
				assert.Equal(t, cause, context.Cause(c.ctx))
			})
		})
	}
}

// An ended context stays ended while the next attempt of the same element runs under its
// own context.
func TestContextBelongsToOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holdCalls(context.Background(), time.Minute)
		defer h.end()
		first := h.call(1)
		first.result.Complete() // is retried
		second := <-h.calls
		assert.True(t, isDone(first.ctx))
		assert.False(t, isDone(second.ctx))
		assert.Equal(t, 1, AttemptFromContext(first.ctx))
		assert.Equal(t, 2, AttemptFromContext(second.ctx))
		second.result.Complete(1)
		assert.True(t, isDone(second.ctx))
	})
}

func TestContextDeadline(t *testing.T) {
	const none = time.Duration(0)
	tests := []struct {
		name                    string
		parent, timeout, single time.Duration
		mock                    bool
		want                    time.Duration
	}{
		{"none", none, none, none, false, none},
		{"element", none, time.Minute, none, false, time.Minute},
		{"attempt", none, none, time.Second, false, time.Second},
		{"attempt before element", none, time.Minute, time.Second, false, time.Second},
		{"element before attempt", none, time.Second, time.Minute, false, time.Second},
		{"equal", none, time.Second, time.Second, false, time.Second},
		{"parent", time.Hour, none, none, false, time.Hour},
		{"parent before element", time.Second, time.Minute, none, false, time.Second},
		{"element before parent", time.Hour, time.Minute, none, false, time.Minute},
		{"parent before all", time.Millisecond, time.Minute, time.Second, false, time.Millisecond},
		{"none under a mock clock", none, time.Minute, time.Second, true, none},
		{"none of the parent either", time.Hour, time.Minute, time.Second, true, none},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				parent := context.Background()
				if tt.parent > 0 {
					p, cancel := context.WithDeadline(parent, begin.Add(tt.parent))
					defer cancel()
					parent = p
				}
				var opts []Option
				if tt.single > 0 {
					opts = append(opts, WithAttemptTimeout(tt.single))
				}
				if tt.mock {
					opts = append(opts, WithClock(clock.NewMock()))
				}
				h := holdCalls(parent, tt.timeout, opts...)
				defer h.end()
				deadline, ok := h.call(1).ctx.Deadline()
				assert.Equal(t, tt.want > 0, ok)
				if ok {
					assert.Equal(t, tt.want, deadline.Sub(begin))
				}
			})
		})
	}
}

// The element's deadline covers all its attempts. Each attempt has its own attempt
// timeout.
func TestContextDeadlineOfARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		h := holdCalls(context.Background(), 10*time.Second, WithAttemptTimeout(7*time.Second))
		defer h.end()
		first := h.call(1)
		time.Sleep(3 * time.Second)
		first.result.Complete()
		second := <-h.calls // after a second
		deadline, _ := first.ctx.Deadline()
		assert.Equal(t, 7*time.Second, deadline.Sub(begin))
		deadline, _ = second.ctx.Deadline()
		assert.Equal(t, 10*time.Second, deadline.Sub(begin))
	})
}

type contextKey string

func TestContextValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent := context.WithValue(context.Background(), contextKey("tenant"), "weir")
		h := holdCalls(parent, time.Minute)
		defer h.end()
		ctx := h.call(1).ctx
		assert.Equal(t, "weir", ctx.Value(contextKey("tenant")))
		assert.Nil(t, ctx.Value(contextKey("other")))
		assert.Nil(t, ctx.Value(42))

		derived, cancel := context.WithTimeout(context.WithValue(ctx, contextKey("request"), 7), time.Second)
		defer cancel()
		assert.Equal(t, "weir", derived.Value(contextKey("tenant")))
		assert.Equal(t, 1, AttemptFromContext(derived))
		assert.Equal(t, 1, AttemptFromContext(context.WithoutCancel(ctx)))
	})
}

func TestAttemptFromContext_OtherContexts(t *testing.T) {
	assert.Zero(t, AttemptFromContext(context.Background()))
	assert.Zero(t, AttemptFromContext(t.Context()))
	assert.Zero(t, AttemptFromContext(context.WithValue(t.Context(), contextKey("attempt"), 3)))
}

// Contexts derived from an attempt's context need no goroutine and end with it.
func TestContextSparesGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holdCalls(context.Background(), time.Minute)
		defer h.end()
		c := h.call(1)
		synctest.Wait()
		before := bubbleGoroutines()
		var derived []context.Context
		for range 100 {
			child, cancel := context.WithCancel(c.ctx)
			defer cancel()
			grandchild, cancel := context.WithTimeout(context.WithValue(child, contextKey("k"), 1), time.Hour)
			defer cancel()
			derived = append(derived, child, grandchild)
		}
		synctest.Wait()
		assert.Equal(t, before, bubbleGoroutines())
		c.result.Complete(1)
		synctest.Wait()
		for _, ctx := range derived {
			assert.Equal(t, context.Canceled, ctx.Err())
		}
		assert.Equal(t, before, bubbleGoroutines())
	})
}

// The Done channel is made only when it is asked for.
func TestContextMakesDoneWhenAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holdCalls(context.WithValue(context.Background(), contextKey("k"), 1), time.Minute)
		defer h.end()
		c := h.call(1)
		ctx := c.ctx.(*attemptContext)
		assert.NoError(t, ctx.Err())
		_, _ = ctx.Deadline()
		_ = ctx.Value(contextKey("k"))
		_ = AttemptFromContext(context.WithValue(ctx, contextKey("k"), 2))
		assert.False(t, ctx.Asked())

		done := ctx.Done()
		assert.True(t, ctx.Asked())
		assert.Equal(t, done, ctx.Done(), "always the same channel")
		c.result.Complete(1)
		assert.Equal(t, done, ctx.Done())
		<-done

		c = h.call(2)
		c.result.Complete(2)
		assert.False(t, c.ctx.(*attemptContext).Asked())
		<-c.ctx.Done() // made after the end, and closed
	})
}

func TestContextAfterFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holdCalls(context.Background(), time.Minute)
		defer h.end()
		c := h.call(1)
		var ran []string
		ran1 := func(name string) func() { return func() { ran = append(ran, name) } }
		kept := context.AfterFunc(c.ctx, ran1("kept"))
		stopped := context.AfterFunc(c.ctx, ran1("stopped"))
		direct := c.ctx.(interface{ AfterFunc(func()) func() bool }).AfterFunc(ran1("stopped too"))
		assert.True(t, stopped(), "prevented")
		assert.False(t, stopped(), "not again")
		assert.True(t, direct())
		assert.False(t, direct())

		c.result.Complete(1)
		synctest.Wait()
		assert.Equal(t, []string{"kept"}, ran)
		assert.False(t, kept(), "too late")
		assert.False(t, stopped())

		late := context.AfterFunc(c.ctx, ran1("late"))
		synctest.Wait()
		assert.Equal(t, []string{"kept", "late"}, ran, "at once")
		assert.False(t, late())
	})
}

// Functions of AfterFunc run on their own goroutines, so neither the completing goroutine
// nor the loop waits for them.
func TestContextAfterFuncDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holdCalls(context.Background(), time.Minute)
		defer h.end()
		c := h.call(1)
		gate := make(chan struct{})
		for range 3 {
			context.AfterFunc(c.ctx, func() { <-gate })
		}
		c.result.Complete(1)
		assert.Equal(t, 1, <-h.Out())
		close(gate)
	})
}

// In real time, concurrently, while the attempt ends.
func TestContextUnderContention(t *testing.T) {
	h := holdCalls(context.Background(), time.Minute)
	defer h.end()
	for i := range 200 {
		c := h.call(i)
		var all sync.WaitGroup
		var ran atomic.Int32
		for range 4 {
			all.Go(func() {
				all.Add(1)
				context.AfterFunc(c.ctx, func() { ran.Add(1); all.Done() })
			})
			all.Go(func() { <-c.ctx.Done() })
			all.Go(func() {
				derived, cancel := context.WithCancel(c.ctx)
				defer cancel()
				<-derived.Done()
			})
			done := c.ctx.Done()
			all.Go(func() {
				for c.ctx.Err() == nil {
					runtime.Gosched()
				}
				select {
				case <-done:
				default:
					assert.Fail(t, "Err said that the context is over, Done did not")
				}
			})
		}
		c.result.Complete(i)
		all.Wait()
		assert.EqualValues(t, 4, ran.Load())
		assert.Equal(t, i, <-h.Out())
	}
}

// Open and Close get the operator's context and no attempt's.
func TestContextOfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent := context.WithValue(context.Background(), contextKey("k"), "v")
		opened := errors.New("opened")
		op := OrderedWait(opener{func(ctx context.Context) error {
			assert.Equal(t, "v", ctx.Value(contextKey("k")))
			assert.Zero(t, AttemptFromContext(ctx))
			return opened
		}}, 0, 1, WithContext(parent))
		close(op.In())
		assert.ErrorIs(t, op.Wait(), opened)
	})
}

type opener struct {
	open func(ctx context.Context) error
}

func (o opener) Open(ctx context.Context) error { return o.open(ctx) }

func (opener) AsyncInvoke(context.Context, int, ResultFuture[int]) error { return nil }
