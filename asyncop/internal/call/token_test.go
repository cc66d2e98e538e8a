package call

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

var errTest = errors.New("test")

// stopped is a clock that stands at one time.
type stopped time.Duration

func (c *stopped) Now() time.Duration              { return time.Duration(*c) }
func (c *stopped) Time(at time.Duration) time.Time { return time.Unix(0, int64(at)) }

// newHost returns a host that runs jobs immediately, on goroutines.
func newHost(tb testing.TB) (*Host, *stopped) {
	tb.Helper()
	clock := new(stopped)
	h := &Host{
		User: context.Background(), Values: context.Background(), Clock: clock,
		Run:     func(task func()) { go task() },
		Sleeper: NewSleeper(),
	}
	h.Life, h.Cancel = context.WithCancelCause(h.User)
	tb.Cleanup(func() { h.Cancel(nil) })
	return h, clock
}

// newCalled returns an attempt whose function the loop calls.
func newCalled(h *Host) *Attempt[int] {
	a := NewRoomy[int]()
	a.start(h, Ref{Generation: 1}, 1, NoDeadline)
	return a
}

// newAttempt returns an attempt whose function has returned to the loop.
func newAttempt(h *Host) *Attempt[int] {
	a := newCalled(h)
	a.EndInvoke()
	return a
}

// Law A2: of two concurrent completions, the first that claims the attempt counts, even
// before its outcome is written.
func TestClaimIsForOne(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	require.True(t, a.claim())
	require.False(t, a.claim())
	require.EqualValues(t, 1, h.Late())
	require.False(t, a.Completed())
}

// Law D6: an element that is not a message has no history, even if its operator runs
// inside the call for a message and has ended.
func TestHistoryAroundTheOperator(t *testing.T) {
	around := context.WithValue(context.Background(), ctxkey.Message{}, "of another element")
	around = context.WithValue(around, ctxkey.Delivery{}, "of another element")
	h, _ := newHost(t)
	h.User, h.Values = around, ValuesOf(around)
	h.Life, h.Cancel = context.WithCancelCause(around)
	t.Cleanup(func() { h.Cancel(nil) })
	a := newAttempt(h)
	a.Cut()
	require.Nil(t, a.Value(ctxkey.Message{}))
	require.Nil(t, a.Value(ctxkey.Delivery{}))
	require.Nil(t, h.Values.Value(ctxkey.Delivery{}))
}

// Law A2: the first completion counts, the others are counted.
func TestFirstCompletionCounts(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	a.Complete(1, 2)
	a.CompleteExceptionally(errTest)
	a.Return(3, nil)
	l := h.Mail.Take()
	require.Same(t, &a.Letter, l)
	require.Nil(t, l.Unchain())
	results, err := a.Results, a.Failure
	require.Equal(t, []int{1, 2}, results)
	require.NoError(t, err)
	require.EqualValues(t, 2, h.Late())

	a = newAttempt(h)
	a.CompleteExceptionally(nil)
	err = a.Failure
	require.Equal(t, ErrNil, err)
}

// An attempt that is completed before its function has returned to the loop posts no
// letter, unless other letters precede it (law Q1).
func TestCompleteInPlace(t *testing.T) {
	h, _ := newHost(t)
	a := newCalled(h)
	a.Complete(1)
	require.True(t, a.Completed())
	require.True(t, h.Mail.Empty())
	require.True(t, a.EndInvoke())
	require.True(t, h.Mail.Empty())

	a = newCalled(h)
	require.False(t, a.EndInvoke())
	a.Complete(1)
	require.Same(t, &a.Letter, h.Mail.Take())

	a = newCalled(h)
	a.Refuse(ErrNil)
	require.True(t, h.Mail.Empty())
	require.True(t, a.EndInvoke())

	newAttempt(h).Post()
	a = newCalled(h)
	a.Complete(1)
	require.False(t, a.EndInvoke())
	l := h.Mail.Take()
	require.Same(t, &a.Letter, l.Unchain())

	for range 1000 {
		a = newCalled(h)
		var wg sync.WaitGroup
		wg.Go(func() { a.Complete(1) })
		complete := a.EndInvoke()
		wg.Wait()
		require.Equal(t, complete, h.Mail.Take() == nil)
	}
}

// Law A2: a completion after the end has no effect. A completion that was posted before
// the end and not handled yet is late, too.
func TestCompletionAfterTheEnd(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	a.Expire()
	a.Complete(1)
	require.True(t, h.Mail.Empty())
	require.EqualValues(t, 1, h.Late())

	a = newAttempt(h)
	a.Complete(1)
	a.Cut()
	require.False(t, h.Mail.Empty(), "its letter finds nobody: see slots in package core")
	require.EqualValues(t, 2, h.Late())
}

// An attempt whose function was not called is refused. This does not count as a
// completion by the function.
func TestRefuse(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	a.Refuse(errTest)
	require.True(t, a.Completed())
	require.Same(t, &a.Letter, h.Mail.Take())
	a = newAttempt(h)
	a.Cut()
	a.Refuse(errTest)
	require.True(t, h.Mail.Empty())
	require.Zero(t, h.Late())

	a = newAttempt(h) // ends before its letter is read
	a.Refuse(errTest)
	a.Cut()
	require.Zero(t, h.Late())
	require.Same(t, &a.Letter, h.Mail.Take())

	a = newAttempt(h) // ends while it is refused
	require.True(t, a.claimUncalled())
	a.Expire()
	a.publish()
	require.True(t, h.Mail.Empty())
	require.Zero(t, h.Late())
}

// A permit is returned exactly once, and not before the loop has released it and the
// function has returned, in whatever order an attempt is occupied, completed, cut off,
// handled and returned from.
func TestPermitComesBackOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := new(stopped)
		h := &Host{User: context.Background(), Life: context.Background(), Clock: clock, Sleeper: NewSleeper()}
		a := new(Attempt[int])
		a.start(h, Ref{Generation: 1}, 1, NoDeadline)
		waits := true // the element waits for the attempt
		var occupied, inside, let bool
		permits := 0
		completes := rapid.Bool().Draw(t, "completes by returning")
		if completes {
			a.Occupy(true)
			occupied, inside = true, true
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"occupy", "complete", "handle", "expire", "return"}).Draw(t, "step") {
			case "occupy":
				if a.tryOccupy() {
					occupied, inside = true, true
				}
			case "complete":
				if a.Complete(1); completes {
					inside = false
				}
			case "return":
				if inside {
					inside = false
					a.Returned()
				}
			case "handle":
				if l := h.Mail.Take(); l != nil && waits {
					waits, let = false, true
					if a.Release().OperatorPermit {
						permits++
					}
				}
			case "expire":
				if waits {
					waits, let = false, true
					if a.Expire().OperatorPermit {
						permits++
					}
				}
			}
			want := 0
			if let && (!occupied || !inside) {
				want = 1
			}
			if got := permits + int(h.Freed()); got != want {
				t.Fatalf("%d permits, want %d: let go %v, occupied %v, inside %v", got, want, let, occupied, inside)
			}
		}
	})
}

// The same test with real goroutines.
func TestPermitComesBackOnceInRaces(t *testing.T) {
	h, _ := newHost(t)
	permits := 0
	const n = 5000
	for i := range n {
		a := newAttempt(h)
		completes := i%3 != 0
		a.Occupy(completes)
		var returning sync.WaitGroup
		returning.Go(func() {
			if a.Return(1, nil); !completes {
				a.Returned()
			}
		})
		if i%2 == 0 {
			runtime.Gosched()
		}
		if l := h.Mail.Take(); l != nil {
			if a.Release().OperatorPermit {
				permits++
			}
		} else if a.Expire().OperatorPermit {
			permits++
		}
		returning.Wait()
		h.Mail.Take()
	}
	require.Equal(t, n, permits+h.TakeFreed())
}

// Law A6: whatever the task of a blocking call does, its attempt has an outcome and its
// permit is returned.
func TestRunBlocking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, want := range map[string]string{"panic": "boom", "goexit": guard.ErrGoexit.Error()} {
			h, _ := newHost(t)
			a := newAttempt(h)
			a.RunBlocking(a, func(late error) {
				assert.NoError(t, late)
				if what == "goexit" {
					runtime.Goexit()
				}
				panic("boom")
			})
			synctest.Wait()
			err := a.Failure
			assert.ErrorContains(t, err, "panic in user code: "+want)
			assert.True(t, a.Release().OperatorPermit)
			assert.Zero(t, h.Freed(), "it had returned")
		}
	})
}

// Law A5: a call does not begin after a cancel, in a suspended operator, at the deadline,
// or after the end.
func TestLate(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(h *Host, clock *stopped, a *Attempt[int])
		want error
	}{
		"in time":   {func(*Host, *stopped, *Attempt[int]) {}, nil},
		"cancelled": {func(h *Host, _ *stopped, _ *Attempt[int]) { h.Cancel(errTest) }, context.Canceled},
		"suspended": {func(h *Host, _ *stopped, _ *Attempt[int]) { h.Suspended.Store(true) }, context.Canceled},
		"deadline":  {func(_ *Host, c *stopped, _ *Attempt[int]) { *c = stopped(time.Second) }, context.DeadlineExceeded},
		"expired":   {func(_ *Host, _ *stopped, a *Attempt[int]) { a.Expire() }, context.DeadlineExceeded},
		"cut":       {func(_ *Host, _ *stopped, a *Attempt[int]) { a.Cut() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			h, clock := newHost(t)
			a := new(Attempt[int])
			a.start(h, Ref{Generation: 1}, 1, time.Second)
			tt.end(h, clock, a)
			require.Equal(t, tt.want, a.Late())
			called := false
			a.Occupy(true)
			synctest.Test(t, func(*testing.T) {
				w := NewWorkers(func(context.Context, int, Future[int], error) { called = true })
				w.Run(Job[int, int]{Attempt: a})
				w.Stop()
				synctest.Wait()
			})
			require.Equal(t, tt.want == nil, called)
			if !called {
				a.Cut()
				require.LessOrEqual(t, h.Freed(), int64(1))
			}
		})
	}
}

// Stages and requests are reported as long as the attempt runs.
func TestReports(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	s := (*Stages)(&a.Token)
	s.ReportStage(predicates.ClientDispatch)
	stage, inDoubt, _ := a.Report()
	require.Equal(t, predicates.ClientDispatch, stage)
	require.False(t, inDoubt)
	require.True(t, s.ReportSent(false))
	stage, inDoubt, _ = a.Report()
	require.Equal(t, predicates.NetworkTime, stage)
	require.True(t, inDoubt)
	end := a.Expire()
	s.ReportStage(predicates.ResponseReceived)
	s.ReportRefused(false)
	require.False(t, s.ReportSent(false))
	require.Equal(t, Released{Stage: predicates.NetworkTime, InDoubt: true, OperatorPermit: true, BackendPermit: true}, end)
	stage, inDoubt, _ = a.Report()
	require.Equal(t, predicates.NetworkTime, stage)
	require.True(t, inDoubt)
}

// Deduplicated requests and other requests are counted separately, up to numbers that no
// call reaches. The remaining requests decide whether a call is deduplicated (X1).
func TestDeduplicatedRequests(t *testing.T) {
	const most = 1<<11 - 1
	for name, tt := range map[string]struct {
		report                func(s *Stages)
		deduplicated, inDoubt bool
	}{
		"nothing":          {func(*Stages) {}, false, false},
		"deduplicated":     {func(s *Stages) { s.ReportSent(true) }, true, true},
		"not deduplicated": {func(s *Stages) { s.ReportSent(false) }, false, true},
		"both":             {func(s *Stages) { s.ReportSent(true); s.ReportSent(false) }, false, true},
		"the other first":  {func(s *Stages) { s.ReportSent(false); s.ReportSent(true) }, false, true},
		"refused":          {func(s *Stages) { s.ReportSent(true); s.ReportRefused(true) }, false, false},
		"one of two":       {func(s *Stages) { s.ReportSent(true); s.ReportSent(true); s.ReportRefused(true) }, true, true},
		"other refused":    {func(s *Stages) { s.ReportSent(true); s.ReportSent(false); s.ReportRefused(false) }, true, true},
		"wrong one":        {func(s *Stages) { s.ReportSent(false); s.ReportRefused(true) }, false, true},
		"dispatching":      {func(s *Stages) { s.ReportStage(predicates.ClientDispatch); s.ReportSent(true) }, true, true},
		"sent by function": {func(s *Stages) { s.ReportStage(predicates.NetworkTime); s.ReportSent(true) }, false, true},
		"answered":         {func(s *Stages) { s.ReportSent(true); s.ReportStage(predicates.ResponseReceived) }, true, true},
		"too many": {func(s *Stages) {
			for range most + 2 {
				s.ReportSent(true)
			}
			for range most + 2 {
				s.ReportRefused(true)
			}
		}, true, true},
		"too many others": {func(s *Stages) {
			for range most + 2 {
				s.ReportSent(false)
			}
			for range most + 2 {
				s.ReportRefused(false)
			}
			s.ReportSent(true)
		}, false, true},
	} {
		h, _ := newHost(t)
		a := newAttempt(h)
		s := (*Stages)(&a.Token)
		before := a.state.Load() & (request - 1)
		tt.report(s)
		_, inDoubt, _ := a.Report()
		require.Equal(t, tt.deduplicated, s.Deduplicated(), name)
		require.Equal(t, tt.inDoubt, inDoubt, name)
		require.Equal(t, before, a.state.Load()&(request-1)&^(dispatching|sent|answered), name)
		end := a.Expire()
		require.Equal(t, tt.inDoubt, end.InDoubt, name)
		require.False(t, s.ReportSent(false), name)
		require.False(t, s.ReportSent(true), name)
		s.ReportRefused(true)
		s.ReportRefused(false)
		require.Equal(t, tt.deduplicated, s.Deduplicated(), "%s: after the end nothing is reported", name)
	}
}

// The context of code that runs beside a call has neither the permit nor the stage of the
// call.
func TestContextsOfTokens(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	beside := &a.Token
	require.Equal(t, 1, beside.Value(NumberKey{}))
	require.Nil(t, beside.Value(AttemptKey{}))
	ctx := a
	require.Equal(t, 1, ctx.Value(NumberKey{}))
	require.Equal(t, a, ctx.Value(AttemptKey{}))
	derived, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.Cancel(errTest)
	a.Cut()
	<-derived.Done()
	require.Equal(t, context.Canceled, ctx.Err())
	require.Equal(t, errTest, context.Cause(derived))
}

// The reported end of a context does not change, although the loop may still time out an
// attempt that has just completed.
func TestContextErrIsFinal(t *testing.T) {
	h, _ := newHost(t)
	a := newAttempt(h)
	ctx := a
	require.NoError(t, ctx.Err())
	a.Complete(1)
	require.Equal(t, context.Canceled, ctx.Err())
	a.Expire()
	require.Equal(t, context.Canceled, ctx.Err())

	a = newAttempt(h)
	ctx = a
	a.Expire()
	require.Equal(t, context.DeadlineExceeded, ctx.Err())
	a.Complete(1)
	require.Equal(t, context.DeadlineExceeded, ctx.Err())
}
