package backend_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

var (
	errThrottled    = &httpretry.StatusError{StatusCode: 429}
	errThrottledIn3 = predicates.WithPushback(errThrottled, 3*time.Second)
)

// meteredRun sends elements through an operator in virtual time.
type meteredRun struct {
	elements int
	latency  time.Duration
	timeout  time.Duration // 0 means an hour
	options  []backend.Option
	answer   func(call int, at time.Duration) error // nil answers every call
	retries  int                                    // 0 means no limit
}

// meteredSums is the result of a meteredRun.
type meteredSums struct {
	started map[int]int // answered calls by the second of their start
	refused int
	took    time.Duration
	stats   backend.Stats
	failed  []error
}

func (m meteredRun) do(t *testing.T) (sums meteredSums) {
	t.Helper()
	sums.started = map[int]int{}
	if m.timeout == 0 {
		m.timeout = time.Hour
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := 0
		begun := time.Now()
		call := asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			mu.Lock()
			calls++
			at := time.Since(begun)
			var err error
			if m.answer != nil {
				err = m.answer(calls, at)
			}
			if err != nil {
				sums.refused++
			} else {
				sums.started[int(at/time.Second)]++
			}
			mu.Unlock()
			if err != nil {
				return 0, err
			}
			time.Sleep(m.latency)
			return in, nil
		})
		quiet := backend.WithLogger(slog.New(slog.DiscardHandler))
		b := backend.New("service", append([]backend.Option{quiet}, m.options...)...)
		var retry strategies.ReasonStrategy[int]
		if m.retries > 0 {
			retry = strategies.ReasonStrategyFunc[int](func(_ context.Context, a *predicates.Attempt[int]) (strategies.Action, error) {
				return strategies.Action{Retry: a.Number <= m.retries, Delay: 10 * time.Millisecond}, nil
			})
		}
		policy := strategies.ReasonAware(httpretry.Classifier[int](), retry).Idempotent()
		op := asyncop.UnorderedWaitWithRetry(call, m.timeout, m.elements, policy,
			asyncop.WithBackend(b), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
				sums.failed = append(sums.failed, f.Err)
				return nil
			}))
		for _, err := range op.Results(func(yield func(int) bool) {
			for i := range m.elements {
				if !yield(i) {
					return
				}
			}
		}) {
			require.NoError(t, err)
		}
		sums.took = time.Since(begun)
		sums.stats = b.Stats()
	})
	return sums
}

// Law B6: one 429 of 3,000 calls delays the others by hardly more than it demands,
// however long a call takes.
func TestBackend_One429(t *testing.T) {
	for _, latency := range []time.Duration{300 * time.Millisecond, 8 * time.Second, 30 * time.Second} {
		t.Run(latency.String(), func(t *testing.T) {
			sums := meteredRun{
				elements: 3000, latency: latency, options: []backend.Option{backend.Rate(200, time.Second)},
				answer: func(call int, _ time.Duration) error {
					if call == 1000 {
						return predicates.WithPushback(errThrottled, time.Millisecond)
					}
					return nil
				},
			}.do(t)
			assert.LessOrEqual(t, sums.took, 15*time.Second+2*latency+time.Second)
			assert.EqualValues(t, 1, sums.stats.Throttled)
			assert.Zero(t, sums.stats.Lost)
			assert.Zero(t, sums.stats.Trips)
		})
	}
}

// Law B4: the ramp is paced by time, however long a call takes. Of the refused calls 51
// show that the service is down (LossShare), about ten start in the same instant from the
// bucket of the rate, and the others are probes. All of them start during the outage: a
// call that was in flight when it began is answered. The starts are counted by the
// second, so the last second may be part of a second late.
func TestRamp_DoesNotDependOnLatency(t *testing.T) {
	for _, latency := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 8 * time.Second} {
		t.Run(latency.String(), func(t *testing.T) {
			sums := meteredRun{
				elements: 20000, latency: latency, options: []backend.Option{backend.Rate(200, time.Second)},
				answer: func(_ int, at time.Duration) error {
					if at > 20*time.Second && at < 40*time.Second {
						return &httpretry.StatusError{StatusCode: 503}
					}
					return nil
				},
			}.do(t)
			full := 0
			for i := 40; i < 400 && full == 0; i++ {
				if sums.started[i] >= 180 {
					full = i
				}
			}
			t.Logf("full in second %d, %d refused, %v", full, sums.refused, sums.took)
			assert.LessOrEqual(t, full, 49+int(latency/time.Second), "nine tenths of the rate within ten seconds of the outage and one latency")
			assert.LessOrEqual(t, sums.refused, 100, "refused calls")
			assert.EqualValues(t, 1, sums.stats.Trips)
		})
	}
}

// Answers to calls that began before an outage do not hide it.
func TestLossShare_AnswersOfEarlierCalls(t *testing.T) {
	o := newBench(t).attach()
	var early []*call
	for range 1000 {
		early = append(early, o.start())
	}
	lost := 0
	for o.clock.Add(time.Second); o.Stats().State == backend.Up && lost < 100; lost++ {
		o.call(errBusy)
		early[lost].end(nil)
		o.clock.Add(time.Millisecond)
	}
	require.Equal(t, backend.Down, o.Stats().State)
	require.Equal(t, 52, lost, "the first loss, and more than half of the hundred calls after it")
	require.Contains(t, o.Stats().Reason, "51 of 51 calls that started after a loss were lost")
}

// A service that loses every third call is up, although losses are noticed long before
// answers.
func TestLossShare_SlowAnswers(t *testing.T) {
	calls := 1500
	if suite.Full() {
		calls = 3000
	}
	o := newBench(t).attach()
	var running []*call
	for range 1000 {
		running = append(running, o.start())
	}
	for i := range calls {
		c := o.start()
		if i%3 == 0 {
			c.end(errBusy)
		} else {
			running = append(running, c)
			running[0].end(nil)
			running = running[1:]
		}
		o.clock.Add(5 * time.Millisecond)
	}
	require.Equal(t, backend.Up, o.Stats().State)
}

// The pauses between probes grow with the outage: an eighth of the time since its
// beginning, from 250 ms to 10 s.
func TestBackend_ProbesOfALongOutage(t *testing.T) {
	o := newBench(t).attach()
	o.lose()
	begun := o.clock.Now()
	for probes := 0; ; probes++ {
		pause := o.wait()
		passed := o.clock.Since(begun)
		require.Equal(t, min(max(250*time.Millisecond, passed/8), 10*time.Second), pause)
		if passed > 3*time.Minute {
			require.LessOrEqual(t, probes, 50)
			break
		}
		require.True(t, begun.Equal(gate.Of(o.bench).Report().Since), "people see when the outage began")
		o.clock.Add(pause)
		o.call(errBusy)
	}
	o.Resume() // a person resumes, so the pauses are short again
	o.call(errBusy)
	require.Equal(t, 250*time.Millisecond, o.wait())
}

// Law B6: a throttle delays all calls until the demanded time; then they start at the
// same rate, from an empty bucket, without a probe or ramp.
func TestBackend_Throttled(t *testing.T) {
	o := newBench(t, backend.Rate(100, time.Second)).attach()
	require.Equal(t, gate.Throttled, o.start().effect(errThrottledIn3))
	require.Equal(t, backend.Up, o.Stats().State)
	require.Equal(t, 3*time.Second, o.wait())
	require.Equal(t, "the service asks to wait 3s", o.Stats().Reason)
	why, wait := o.seat.WhyWaiting(o.clock.Now(), &gate.Late{})
	require.EqualError(t, why, "backend payments is paused: the service asks to wait 3s")
	require.Equal(t, 3*time.Second, wait)
	o.clock.Add(3 * time.Second)
	require.Equal(t, 10*time.Millisecond, o.wait(), "an empty bucket")
	o.clock.Add(10 * time.Millisecond)
	o.call(nil)
	require.Equal(t, backend.Up, o.Stats().State)
	o.clock.Add(10 * time.Millisecond)
	o.call(nil)
	require.Equal(t, 10*time.Millisecond, o.wait(), "the same rate as before")
	require.Empty(t, o.Stats().Reason)
	require.EqualValues(t, 1, o.Stats().Throttled)
}

// Law B6: throttles are no evidence of an outage, however many there are.
func TestBackend_ThrottledWithoutADelay(t *testing.T) {
	for name, err := range map[string]error{"429": errThrottled, "RESOURCE_EXHAUSTED": predicates.WithReason(errors.New("quota"), grpcretry.ResourceExhausted)} {
		t.Run(name, func(t *testing.T) {
			o := newBench(t).attach()
			for range 300 {
				early := o.start()
				require.Equal(t, gate.Throttled, o.start().effect(err))
				require.Equal(t, 100*time.Millisecond, o.wait(), "a short pause")
				o.clock.Add(50 * time.Millisecond)
				require.Equal(t, gate.Throttled, early.effect(err))
				require.Equal(t, 50*time.Millisecond, o.wait(), "a call that began before the pause does not prolong it")
				o.clock.Add(50 * time.Millisecond)
			}
			require.Equal(t, backend.Up, o.Stats().State)
			require.Zero(t, o.Stats().Trips)
			require.Zero(t, o.Stats().Lost)
		})
	}
}

// A throttle that answers a probe shows that the service works: the ramp begins after the
// demanded time.
func TestBackend_ProbeIsThrottled(t *testing.T) {
	o := newBench(t).attach()
	o.lose()
	o.clock.Add(time.Second)
	require.Equal(t, gate.Throttled, o.start().effect(errThrottledIn3))
	require.Equal(t, backend.Ramping, o.Stats().State)
	require.Equal(t, 3*time.Second, o.wait())
	o.clock.Add(3 * time.Second)
	o.start()
	require.Less(t, 100*time.Millisecond, o.wait(), "the ramp is at its beginning")
}

// 503 with a delay: the time is obeyed, and the call counts as lost.
func TestBackend_OverloadedWithADelay(t *testing.T) {
	o := newBench(t).attach()
	require.Equal(t, gate.Counts, o.start().effect(errIn3), "one lost call uses up a retry")
	require.Equal(t, backend.Up, o.Stats().State)
	require.Equal(t, 3*time.Second, o.wait())
	require.EqualValues(t, 1, o.Stats().Lost)
	for range 4 {
		o.clock.Add(3 * time.Second)
		o.call(errIn3)
	}
	require.Equal(t, backend.Down, o.Stats().State)
	require.Equal(t, 3*time.Second, o.wait(), "not before the demanded time")
	for range 3 { // the demanded delay bounds the pauses of lost probes
		o.clock.Add(3 * time.Second)
		o.call(errIn3)
		require.Equal(t, backend.Down, o.Stats().State)
		require.Equal(t, 3*time.Second, o.wait())
	}
}

// Law B4: relapses do not double the pause, and calls start at the former pace after the
// ramp.
func TestRamp_Relapses(t *testing.T) {
	o := newBench(t, backend.Ramp(2*time.Second)).attach()
	o.lose()
	o.clock.Add(4 * time.Second)
	o.call(nil)
	for range 5 {
		require.Equal(t, backend.Ramping, o.Stats().State)
		for range 3 {
			for o.Stats().State == backend.Ramping {
				c, _ := o.ask(gate.Request{})
				if c != nil {
					c.end(errBusy)
					break
				}
				o.clock.Add(10 * time.Millisecond)
			}
		}
		require.Equal(t, backend.Down, o.Stats().State)
		require.Equal(t, 250*time.Millisecond, o.wait(), "the pause after a relapse")
		o.clock.Add(250 * time.Millisecond)
		o.call(nil)
	}
	o.clock.Add(2 * time.Second)
	require.Equal(t, backend.Up, o.Stats().State)
}

// The rate of starts grows in proportion to the time, from 0 to its value before the
// outage; only the limit bounds running calls.
func TestRamp_Pace(t *testing.T) {
	o := newBench(t, backend.Ramp(4*time.Second)).attach()
	for range 100 { // 100 calls a second, for ten seconds
		for range 10 {
			o.call(nil)
		}
		o.clock.Add(100 * time.Millisecond)
	}
	o.lose()
	o.clock.Add(8 * time.Second) // twice as long as the ramp
	o.call(nil)
	starts := make([]int, 4)
	for i := range 400 {
		for {
			c, _ := o.ask(gate.Request{}) // it never ends
			if c == nil {
				break
			}
			starts[i/100]++
		}
		o.clock.Add(10 * time.Millisecond)
	}
	for i, want := range []float64{12.5, 37.5, 62.5, 87.5} {
		require.InDelta(t, want, starts[i], 4, "%v", starts)
	}
	require.Equal(t, backend.Up, o.Stats().State)
}

// After a short outage the ramp takes half as long as the outage. Outages that follow
// each other within the length of a whole ramp count as one.
func TestRamp_LengthAfterShortOutages(t *testing.T) {
	o := newBench(t, backend.Ramp(4*time.Second)).attach()
	ramp := func(outage time.Duration) time.Duration {
		o.lose()
		o.clock.Add(outage)
		o.call(nil)
		begun := o.clock.Now()
		for o.Stats().State == backend.Ramping {
			o.clock.Add(10 * time.Millisecond)
			c, _ := o.ask(gate.Request{})
			if c != nil {
				c.end(nil)
			}
		}
		return o.clock.Since(begun)
	}
	const within = float64(20 * time.Millisecond)
	require.InDelta(t, time.Second, ramp(2*time.Second), within)
	o.clock.Add(4 * time.Second)
	require.InDelta(t, time.Second, ramp(2*time.Second), within, "it was well for long enough")
	o.clock.Add(time.Second)
	require.InDelta(t, 3*time.Second, ramp(2*time.Second), within, "2 s, a ramp of 1 s, 1 s up and 2 s again")
	require.InDelta(t, 4*time.Second, ramp(2*time.Second), within, "a whole ramp at most")
	o.clock.Add(4 * time.Second)
	require.InDelta(t, 125*time.Millisecond, ramp(250*time.Millisecond), within)
}

// A client that assumes a limit 25 % too high finds the rate of the service: at least
// nine tenths of it, and one call in fifty is refused.
func TestAdaptiveRate(t *testing.T) {
	for name, delay := range map[string]time.Duration{"without a delay": 0, "with a delay": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			const limit = 200.0 // calls a second that the service accepts
			level, filled := limit/20, time.Duration(0)
			sums := meteredRun{
				elements: 12000, latency: 300 * time.Millisecond,
				options: []backend.Option{backend.AdaptiveRate(10, 1.25*limit, time.Second)},
				answer: func(_ int, at time.Duration) error {
					level = min(limit/20, level+limit*(at-filled).Seconds())
					filled = at
					if level < 1 {
						return predicates.WithPushback(errThrottled, delay)
					}
					level--
					return nil
				},
			}.do(t)
			share := 12000 / limit / sums.took.Seconds()
			t.Logf("%.1f %% of the limit, %d refused, %v", 100*share, sums.refused, sums.took)
			assert.GreaterOrEqual(t, share, 0.9)
			assert.LessOrEqual(t, sums.refused, 240)
			assert.Zero(t, sums.stats.Trips)
		})
	}
}

// Calls and cost are limited side by side.
func TestCallRate_BesideRate(t *testing.T) {
	o := newBench(t, backend.CallRate(10, time.Second), backend.Rate(1000, time.Second)).attach()
	o.start()
	require.Equal(t, 100*time.Millisecond, o.wait(), "the number of calls")
	o.clock.Add(100 * time.Millisecond)
	c, _ := o.ask(gate.Request{Cost: 500})
	require.NotNil(t, c)
	_, answer := o.ask(gate.Request{Cost: 500})
	require.NotZero(t, answer.Wait)
	require.Greater(t, o.sleep(), 400*time.Millisecond, "the cost")
}

// Law B6: throttles use up no attempt and no retry; the timeout of the element bounds
// them.
func TestThrottles_UseUpNoRetry(t *testing.T) {
	sums := meteredRun{
		elements: 1, retries: 1, timeout: time.Minute,
		answer: func(call int, _ time.Duration) error {
			if call <= 20 {
				return predicates.WithPushback(errThrottled, 100*time.Millisecond)
			}
			return nil
		},
	}.do(t)
	assert.Empty(t, sums.failed)
	assert.Equal(t, 20, sums.refused)

	sums = meteredRun{
		elements: 1, retries: 1, timeout: time.Minute,
		answer: func(int, time.Duration) error { return predicates.WithPushback(errThrottled, time.Second) },
	}.do(t)
	require.Len(t, sums.failed, 1)
	require.ErrorIs(t, sums.failed[0], context.DeadlineExceeded)
	require.ErrorIs(t, sums.failed[0], asyncop.ErrBackendDown, "a worker releases its message")
}

// Cost is called once for each attempt, however often the attempt has to wait.
func TestCost_OncePerAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		costs, calls := 0, 0
		b := backend.New("service", backend.Rate(100, time.Second))
		op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in int, done asyncop.ResultFuture[int]) error {
			calls++
			time.AfterFunc(time.Millisecond, func() { done.Complete(in) })
			return nil
		}), time.Minute, 100,
			asyncop.WithBackend(b, asyncop.Cost(func(int) float64 { costs++; return 1 })), asyncop.WithMaxConcurrentCalls(3))
		for _, err := range op.Results(func(yield func(int) bool) {
			for i := range 200 {
				if !yield(i) {
					return
				}
			}
		}) {
			require.NoError(t, err)
		}
		require.Equal(t, 200, calls)
		require.Equal(t, calls, costs)
	})
}

// A second backend is refused: it would not apply beside the first.
func TestWithBackend_Twice(t *testing.T) {
	call := asyncop.Blocking(func(_ context.Context, in int) (int, error) { return in, nil })
	require.PanicsWithValue(t, "asyncop: WithBackend: the operator already has a backend: give one backend all limits and rates of the service", func() {
		asyncop.OrderedWait(call, time.Minute, 1, asyncop.WithBackend(backend.New("a")), asyncop.WithBackend(backend.New("b")))
	})
}
