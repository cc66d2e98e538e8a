package checkpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Restored elements are called in input order and before new input, even in a smaller
// queue. A barrier that comes meanwhile includes restored elements that have no slot yet.
func TestRestoreIntoSmallerCapacity(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 10}, optest.Setup{}, store)
		r.Send("a", "b", optest.Mark(1), "c", "d")
		r.Save()
		_ = r.Cut(optest.ErrBroken)

		store = store.Reopen()
		again := optest.NewCheckRig(t, m, optest.Setup{}, store)
		again.Send("n") // in the buffer of In
		require.Equal(t, "a#1 b#1", again.Calls())
		again.Save()
		require.Equal(t, "a b |1| c d n", optest.StateIn(t, store, nil))
		again.Complete("a#1", "A")
		again.Save()
		require.Equal(t, "b |1| c d n", optest.StateIn(t, store, nil))
		for _, name := range []string{"b#1", "c#1", "d#1", "n#1"} {
			again.Complete(name, name)
		}
		require.Equal(t, "<2> A <3> b#1 |1| c#1 d#1 n#1", again.Outputs())
		require.Equal(t, "a#1 b#1 c#1 d#1 n#1", again.Calls())
	}, 2)
}

func TestRestoredElementsAreNoOverflow(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 10}, optest.Setup{}, store)
		r.Send("a", "b", "c", "d")
		r.Save()
		_ = r.Cut(optest.ErrBroken)

		store = store.Reopen()
		again := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Overflow: 2}}, store)
		b, done := again.Trigger(checkpoint.Periodic)
		again.Send("n", b)
		require.NoError(t, <-done)
		require.Equal(t, "a b c d n", optest.StateIn(t, store, nil))
	}, 1)
}

func TestDrainDuringRestore(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 10}, optest.Setup{}, store)
		r.Send("a", "b", "c")
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		again := optest.NewCheckRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function { h.Answer = optest.Upper; return h }}, store.Reopen())
		b, done := again.Trigger(checkpoint.Drain)
		again.Send(b)
		require.NoError(t, again.Finish(done))
		require.NoError(t, again.Wait())
		require.Equal(t, "A B C <end> <3>", again.Outputs())
	}, 1)
}

// The three choices of FLIP-232, with exact numbers: a was called at 0s and failed,
// called again at 1s, the checkpoint is at 3s.
func TestRetryStateNumbers(t *testing.T) {
	const timeout = 10 * time.Second
	for _, c := range []struct {
		choice  asyncop.RetryState
		down    time.Duration
		calls   string // after the restart
		outputs string
		elapsed time.Duration
	}{
		{asyncop.RetryState(0), 20 * time.Second, "a#1@0s", "a/1@10s", 10 * time.Second},
		{asyncop.TimeSpent, 20 * time.Second, "a#2@0s", "a/2@7s", 10 * time.Second},
		{asyncop.LatencyFirst, 0, "a#2@0s", "a/2@7s", 10 * time.Second},
		{asyncop.LatencyFirst, time.Second, "a#2@0s", "a/2@6s", 10 * time.Second},
		{asyncop.LatencyFirst, time.Minute, "a#2@0s", "a/2@2.5s", 65500 * time.Millisecond}, // timeout/(maxRetries+1)
	} {
		t.Run(fmt.Sprintf("%v/down=%v", c.choice, c.down), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				store := checkpointtest.NewMemoryStore()
				s := optest.Setup{Timeout: timeout, Strategy: optest.RetryAgain(3, time.Second)}
				r := optest.NewCheckRig(t, m, s, store)
				r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
				r.Send("a")
				r.Advance(3 * time.Second)
				require.Equal(t, "a#1@0s a#2@1s", r.CallTimes())
				r.Save()
				require.Equal(t, "a#1", optest.StateIn(t, store, nil))
				_ = r.Cut(optest.ErrBroken)
				r.Advance(c.down)

				store = store.Reopen()
				side := optest.NewSideSink(false)
				s.State = asyncop.State[string, string]{Retries: c.choice}
				s.Opts = optest.Options(asyncop.WithFailureSink(side.Take))
				again := optest.NewCheckRig(t, m, s, store)
				require.Equal(t, c.calls, again.CallTimes())
				again.Send("n") // it has its full timeout
				at := optest.Must(time.ParseDuration(c.outputs[len("a/1@"):]))
				again.Advance(at - 1)
				require.Empty(t, side.Got())
				again.Advance(1)
				require.NotEmpty(t, side.Got())
				f := side.Got()[0]
				require.Equal(t, c.outputs, fmt.Sprintf("%s/%d@%v", f.Element, f.Attempts, again.Now()))
				require.Equal(t, c.elapsed, f.Elapsed)
				again.Advance(timeout - at)
				require.Len(t, side.Got(), 2)
			})
		})
	}
}

// Law A4: the largest possible number of attempts does not wrap around.
func TestRestore_LargestNumberOfAttempts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		state, err := stateWithAttempts[string, string]("a", math.MaxInt32)
		require.NoError(t, err)
		store := checkpointtest.NewMemoryStore()
		require.NoError(t, store.Save(t.Context(), &checkpoint.Snapshot{
			ID: 1, States: map[string]participant.State{"feed": nil, "op": state},
		}))
		side := optest.NewSideSink(false)
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAgain(3, 0),
			State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		}, store)
		r.Fail(fmt.Sprintf("a#%d", math.MaxInt32), optest.ErrAgain)
		require.Equal(t, fmt.Sprintf("a#%d@0s", math.MaxInt32), r.CallTimes())
		require.Len(t, side.Got(), 1)
	})
}

// LatencyFirst asks any kind of strategy how many retries it allows.
func TestLatencyFirstOfPolicies(t *testing.T) {
	classify := predicates.ByException[string](predicates.ErrorIs(optest.ErrAgain), optest.UnsafeReason)
	for name, tt := range map[string]struct {
		strategy optest.Strategy
		want     string // at least: timeout/(maxRetries+1), and a tenth of the timeout
	}{
		"policy of FLIP":     {strategies.PolicyOf(optest.RetryAgain(3, time.Second)), "a/2@2.5s"},
		"policy that counts": {strategies.ReasonAware(classify, strategies.BestEffort[string]().WithMaxRetries(4)).Idempotent(), "a/2@2s"},
		"best effort":        {strategies.ReasonAware(classify, nil).Idempotent().WithMaxWaiting(1), "a/2@1s"},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				store := checkpointtest.NewMemoryStore()
				s := optest.Setup{Timeout: 10 * time.Second, Strategy: tt.strategy}
				r := optest.NewCheckRig(t, m, s, store)
				r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
				r.Send("a")
				r.Advance(2 * time.Second)
				require.Equal(t, "a#1 a#2", r.Calls())
				r.Save()
				_ = r.Cut(optest.ErrBroken)
				r.Advance(time.Minute)
				side := optest.NewSideSink(false)
				s.State = asyncop.State[string, string]{Retries: asyncop.LatencyFirst}
				s.Opts = optest.Options(asyncop.WithFailureSink(side.Take))
				r = optest.NewCheckRig(t, m, s, store.Reopen())
				for len(side.Got()) == 0 {
					r.Advance(time.Millisecond)
				}
				f := side.Got()[0]
				require.Equal(t, tt.want, fmt.Sprintf("%s/%d@%v", f.Element, f.Attempts, r.Now().Truncate(2*time.Millisecond)))
			})
		})
	}
}

// An element whose back-off has passed meanwhile competes immediately, and keeps its
// attempts. An element without an attempt starts from scratch.
func TestRetryStateOfElementsInBackOffAndFresh(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAgain(3, time.Second),
			State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		}
		r := optest.NewCheckRig(t, m, s, store)
		r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a", "b", "c")
		r.Save()
		require.Equal(t, "a#1 b c", optest.StateIn(t, store, nil))
		_ = r.Cut(optest.ErrBroken)
		r.Advance(time.Second)

		// Checkpoints of elements that wait for a permit after a restore do not lose
		// attempts.
		for range 3 {
			store = store.Reopen()
			r = optest.NewCheckRig(t, m, optest.Setup{
				Timeout: s.Timeout, Strategy: s.Strategy, State: s.State, Opts: s.Opts,
			}, store)
			require.Equal(t, "a#2", r.Calls())
			r.Advance(time.Second)
			r.Save()
			require.Equal(t, "a#1 b c", optest.StateIn(t, store, nil))
			_ = r.Cut(optest.ErrBroken)
		}
		store = store.Reopen()
		r = optest.NewCheckRig(t, m, s, store)
		r.Advance(7*time.Second - 1)
		require.Equal(t, "a#2", r.Calls())
		r.Advance(1)
		require.Error(t, r.Wait(), "three seconds of it were spent")
	})
}

// A restored element that waits for a permit keeps its attempts in the next checkpoint.
func TestRestoredElementWithoutPermitKeepsItsAttempts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{Timeout: time.Hour, Strategy: optest.RetryAgain(3, time.Minute), State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}}
		r := optest.NewCheckRig(t, m, s, store)
		r.Script("b#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a", "b")
		r.Save()
		require.Equal(t, "a b#1", optest.StateIn(t, store, nil))
		_ = r.Cut(optest.ErrBroken)
		r.Advance(time.Minute)
		s.Opts = append(s.Opts, asyncop.WithMaxConcurrentCalls(1))
		store = store.Reopen()
		r = optest.NewCheckRig(t, m, s, store)
		require.Equal(t, "a#1", r.Calls())
		r.Save()
		require.Equal(t, "a b#1", optest.StateIn(t, store, nil))
		r.Complete("a#1", "A")
		require.Equal(t, "a#1 b#2", r.Calls())
	})
}

// The time counts from the first attempt, not from the start of the operator.
func TestLatencyFirstOfALaterElement(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAgain(3, time.Minute),
			State: asyncop.State[string, string]{Retries: asyncop.LatencyFirst}, Opts: optest.Options(asyncop.WithDropOnFailure()),
		}
		r := optest.NewCheckRig(t, m, s, store)
		r.Advance(5 * time.Second)
		r.Send("a")
		r.Advance(2 * time.Second)
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		r.TimeOutIn(8*time.Second, 1)
	})
}

// An element whose first attempt ran at the checkpoint, and which waits for a permit at
// the next checkpoint, keeps its time.
func TestRestoredElementWithoutAttemptsKeepsItsTime(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAgain(3, time.Minute),
			State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, Opts: optest.Options(asyncop.WithDropOnFailure()),
		}
		r := optest.NewCheckRig(t, m, s, store)
		r.Send("a", "b")
		r.Advance(3 * time.Second)
		r.Save()
		require.Equal(t, "a b", optest.StateIn(t, store, nil))
		_ = r.Cut(optest.ErrBroken)
		store = store.Reopen()
		r = optest.NewCheckRig(t, m, optest.Setup{Timeout: s.Timeout, Strategy: s.Strategy, State: s.State, Opts: append(s.Opts[:1:1], asyncop.WithMaxConcurrentCalls(1))}, store)
		require.Equal(t, "a#1", r.Calls())
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		r.TimeOutIn(7*time.Second, 2)
	})
}

// A restored element whose timeout has run out gets its timeout outcome immediately,
// without an attempt.
func TestRestoredElementWithoutTimeLeft(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: time.Second,
			State:   asyncop.State[string, string]{Retries: asyncop.TimeSpent},
			Wrap: optest.WithHandler(func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}),
		}
		r := optest.NewCheckRig(t, m, s, store)
		r.Send("a")
		r.Advance(time.Second) // its handler runs
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		s.Wrap = optest.WithHandler(func(_ context.Context, in string) ([]string, error) { return []string{"late " + in}, nil })
		again := optest.NewCheckRig(t, m, s, store.Reopen())
		again.Script("n#1", optest.Upper)
		again.Send("n")
		require.Equal(t, "n#1", again.Calls())
		require.Equal(t, m.Pick("late a N", again.Outputs()), again.Outputs())
		require.EqualValues(t, 1, again.Stats().Timeouts)
	})
}

// Law C1: results that leave while the state is being encoded are in the checkpoint.
func TestResultsThatLeaveAreStored(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		release := make(chan struct{})
		texts := codecOf(func() { <-release }, func() {})
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, State: asyncop.State[string, string]{Results: texts}, Opts: optest.Options(asyncop.WithBuffer(0))}, store)
		r.Answer = optest.Upper // immediately
		r.Send("a", "b")
		barrier, done := r.Trigger(checkpoint.Periodic)
		r.Send(barrier)
		r.Unblock()
		require.Equal(t, "<1> A B", r.Outputs())
		close(release)
		require.NoError(t, <-done)
		require.Equal(t, "a#1=[A] b#1=[B]", optest.StateIn(t, store, texts))
	})
}

// With a codec for results, calls are not repeated.
func TestResultsAreStored(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		texts := codec.Default[string]()
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{State: asyncop.State[string, string]{Results: texts}}
		r := optest.NewCheckRig(t, m, s, store)
		r.Send("a", optest.Mark(1), "b", "c", "d")
		r.Complete("b#1", "B1", "B2")
		r.Complete("d#1")
		for range 2 {
			r.Save()
			require.Equal(t, "a |1| b#1=[B1 B2] c", optest.StateIn(t, store, texts))
			_ = r.Cut(optest.ErrBroken)
			store = store.Reopen()
			r = optest.NewCheckRig(t, m, s, store)
			require.Equal(t, "a#1 c#1", r.Calls())
		}
		r.Complete("c#1", "C")
		r.Complete("a#1", "A")
		require.Equal(t, "A |1| B1 B2 C", r.Outputs())
		_ = r.Cut(optest.ErrBroken)

		// Changed code: without the codec the results cannot be used, and the error
		// reports it.
		c := optest.Must(checkpoint.NewCoordinator(store.Reopen()))
		c.Host().Register("feed", optest.BarrierFeed{})
		op := asyncop.OrderedWait[string, string](optest.NewHand(t), 0, 1, asyncop.WithName("op"), asyncop.WithCheckpoints(c))
		require.ErrorContains(t, c.Start(), "State.Results")
		require.Error(t, op.Wait())
		close(op.In())
	})
}

func TestUndecodableStateRefusesStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, optest.Mode{Ordered: true, Capacity: 4}, optest.Setup{}, store)
		r.Send("a")
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		c := optest.Must(checkpoint.NewCoordinator(store.Reopen()))
		c.Host().Register("feed", optest.BarrierFeed{})
		op := asyncop.OrderedWait[int, string](asyncop.Func(func(context.Context, int, optest.Future) error { panic("called") }),
			0, 1, asyncop.WithName("op"), asyncop.WithCheckpoints(c))
		err := c.Start()
		require.ErrorContains(t, err, `state of "op" in checkpoint 1: input 1: `)
		require.ErrorContains(t, op.Wait(), `state of "op" in checkpoint 1: input 1: `)
		close(op.In())
	})
}

// A codec that fails aborts the checkpoint, not the pipeline.
func TestCodecErrorAbortsTheCheckpoint(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return optest.ErrBroken },
		"panic": func() error { panic(optest.ErrBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				bad := true
				texts := codec.Func(func(dst []byte, v string) ([]byte, error) {
					if bad {
						return nil, fail()
					}
					return append(dst, v...), nil
				}, func(b []byte) (string, error) { return string(b), nil })
				r := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Inputs: texts}}, nil)
				r.Send("a")
				b, done := r.Trigger(checkpoint.Periodic)
				r.Send(b)
				err := <-done
				require.ErrorContains(t, err, optest.ErrBroken.Error())
				require.ErrorContains(t, err, `"op"`)
				bad = false
				r.Save()
				r.Complete("a#1", "A")
				require.Equal(t, "<1> <2> A", r.Outputs())
			})
		})
	}
}

// memOutput is an exactly-once output that outlives its runs.
type memOutput struct {
	all     []string
	visible int
}

func (o *memOutput) FreshStart(ctx context.Context) error { return o.Restore(ctx, make([]byte, 3)) }

func (o *memOutput) Restore(_ context.Context, state []byte) error {
	o.all = o.all[:len(o.all):len(o.all)]
	n := int(state[0])<<16 | int(state[1])<<8 | int(state[2])
	if n < o.visible {
		return fmt.Errorf("%d are visible, the state has %d", o.visible, n)
	}
	o.all, o.visible = o.all[:n], n
	return nil
}

func (o *memOutput) Write(_ context.Context, v string) error { o.all = append(o.all, v); return nil }

func (o *memOutput) Prepare(context.Context) ([]byte, error) {
	n := len(o.all)
	return []byte{byte(n >> 16), byte(n >> 8), byte(n)}, nil
}

func (o *memOutput) Commit(_ context.Context, s []byte) error {
	o.visible = int(s[0])<<16 | int(s[1])<<8 | int(s[2])
	return nil
}

func (o *memOutput) Close() error { return nil }

// The overall goal: two operators in a row, with failures and retries, are cut at random
// times and resumed, some with another capacity. The output is complete and has no
// duplicates. Time is virtual.
func TestKillAndResume(t *testing.T) {
	seeds := 30
	if !suite.Full() {
		seeds = 5
	}
	total := 0
	for seed := range seeds {
		for _, ordered := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/seed=%d", optest.Mode{Ordered: ordered}.Order(), seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { total += killAndResume(t, uint64(seed), ordered) })
			})
		}
	}
	t.Logf("%d runs", total)
	require.Greater(t, total, 3*seeds, "most are cut")
}

func killAndResume(t *testing.T, seed uint64, ordered bool) (runs int) {
	t.Helper()
	rnd := newRand(seed)
	const n = 400
	var in, want []string
	for i := range n {
		in = append(in, fmt.Sprint(i))
		for range i % 3 {
			want = append(want, fmt.Sprintf("%d?!", i))
		}
	}
	store, output := checkpointtest.NewMemoryStore(), &memOutput{}
	texts := codec.Default[string]()
	for done := false; !done; runs++ {
		store = store.Reopen()
		c := optest.Must(checkpoint.NewCoordinator(store, checkpoint.WithInterval(time.Duration(1+rnd.IntN(5))*time.Millisecond),
			checkpoint.WithTimeout(100*time.Millisecond), checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
		ctx, cancel := context.WithCancelCause(context.Background())
		build := func(name string, answer func(string) []string) *optest.Operator {
			answers := newRand(rnd.Uint64())
			fn := asyncop.Func(func(_ context.Context, s string, r optest.Future) error {
				fails := answers.IntN(5) == 0
				time.AfterFunc(time.Duration(answers.IntN(3000))*time.Microsecond, func() {
					if fails {
						r.CompleteExceptionally(optest.ErrBroken)
						return
					}
					r.Complete(answer(s)...)
				})
				return nil
			})
			opts := optest.Options(asyncop.WithName(name), asyncop.WithContext(ctx), asyncop.WithDrainRetries(),
				asyncop.WithBuffer(rnd.IntN(3)), asyncop.WithMaxConcurrentCalls(1+rnd.IntN(20)), asyncop.WithCheckpoints(c, asyncop.State[string, string]{
					Results: texts, Retries: asyncop.RetryState(rnd.IntN(3)), Overflow: rnd.IntN(400) - 1,
				}))
			return optest.Construct[string, string](optest.Mode{Ordered: ordered, Capacity: 1 + rnd.IntN(40)}, fn, time.Hour,
				retryAll1000(time.Duration(rnd.IntN(3))*time.Millisecond), opts...)
		}
		src := checkpoint.NewSource(c, "src", checkpointtest.NewSliceInput(in))
		first := build("first", func(s string) []string { return []string{s + "?"} })
		second := build("second", func(s string) []string {
			return slices.Repeat([]string{s + "!"}, optest.Must(parseInt(s[:len(s)-1]))%3)
		})
		sink := checkpoint.NewSink(c, "sink", output)
		require.NoError(t, c.Start())
		if runs < 8 {
			time.AfterFunc(time.Duration(rnd.IntN(40))*time.Millisecond, func() { cancel(optest.ErrTestOver) })
		}
		src.Via(weirflow.NewFilter(func(string) bool { return true })).Via(first).Via(second).To(sink)
		err := c.Wait()
		done = err == nil
		if !done {
			require.ErrorIs(t, err, optest.ErrTestOver)
		}
		require.NoError(t, c.Close())
		<-first.Done()
		<-second.Done()
		cancel(nil)
		if ordered {
			require.True(t, slices.Equal(want[:output.visible], output.all[:output.visible]))
		}
		time.Sleep(time.Second) // calls that were cut complete without effect
	}
	got := slices.Clone(output.all[:output.visible])
	if !ordered {
		slices.Sort(got)
		slices.Sort(want)
	}
	require.Equal(t, want, got)
	return runs
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

func parseInt(s string) (int, error) { return strconv.Atoi(s) }

func retryAll1000(delay time.Duration) optest.Strategy {
	return strategies.FixedDelay[string](1000, delay).RetryIfException(predicates.HasException)
}

// An element that was complete in time and waited for downstream, even for longer than
// its timeout, has not spent this time: its call is made again, with the full timeout.
func TestRestoredElementThatWasComplete(t *testing.T) {
	for _, choice := range []asyncop.RetryState{asyncop.RetryState(0), asyncop.LatencyFirst, asyncop.TimeSpent} {
		t.Run(choice.String(), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				store := checkpointtest.NewMemoryStore()
				s := optest.Setup{
					Timeout: 10 * time.Second, Strategy: optest.RetryAgain(3, time.Second), Blocked: true,
					State: asyncop.State[string, string]{Retries: choice}, Opts: optest.Options(asyncop.WithBuffer(0)),
				}
				r := optest.NewCheckRig(t, m, s, store)
				r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
				r.Script("a#2", optest.Upper)
				r.Send("a")
				r.Advance(time.Minute)
				require.Equal(t, "a#1 a#2", r.Calls())
				r.Save()
				_ = r.Cut(optest.ErrBroken)

				r = optest.NewCheckRig(t, m, s, store.Reopen())
				number := 2
				if choice == asyncop.RetryState(0) {
					number = 1
				}
				require.Equal(t, fmt.Sprintf("a#%d", number), r.Calls())
				r.Advance(10*time.Second - 1)
				r.Complete(fmt.Sprintf("a#%d", number), "A")
				r.Unblock()
				require.Equal(t, "<1> A", "<1> "+r.Outputs())
				require.Zero(t, r.Stats().Timeouts)
			})
		})
	}
}

// A failure reports of attempts before a restart only the known fact: the time when the
// first attempt began.
func TestFailureOfARestoredElementWithoutAnotherAttempt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		side := optest.NewSideSink(false)
		s := optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAgain(3, time.Second),
			State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		}
		r := optest.NewCheckRig(t, m, s, store)
		began := time.Now()
		r.Script("b#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a", "b")
		r.Save()
		require.Equal(t, "a b#1", optest.StateIn(t, store, nil))
		_ = r.Cut(optest.ErrBroken)
		r.Advance(time.Hour)

		side = optest.NewSideSink(false)
		s.State = asyncop.State[string, string]{Retries: asyncop.TimeSpent}
		s.Opts = optest.Options(asyncop.WithFailureSink(side.Take), asyncop.WithMaxConcurrentCalls(1))
		s.Wrap = func(*optest.Hand) optest.Function {
			return asyncop.Blocking(func(context.Context, string) (string, error) {
				time.Sleep(11 * time.Second) // a's call keeps the permit from b
				return "", nil
			})
		}
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		r.Advance(10 * time.Second)
		require.Equal(t, "a b", side.Elements())
		f := side.Got()[1]
		require.Equal(t, 1, f.Attempts)
		require.True(t, f.FirstAttempt.Equal(began), f.FirstAttempt)
		require.Equal(t, f.FirstAttempt, f.LastAttempt)
		r.Advance(time.Second)
	})
}

// The Unix time 0 is treated like any other time. A clock.Mock begins there.
func TestRetryStateAtTheEpoch(t *testing.T) {
	optest.InBubble(t, optest.Mode{Ordered: true, Capacity: 4, Mock: true}, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAgain(3, time.Second),
			State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, Opts: optest.Options(asyncop.WithDropOnFailure()),
		}
		r := optest.NewCheckRig(t, m, s, store)
		r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a")
		r.Advance(3 * time.Second)
		require.Equal(t, "a#1@0s a#2@1s", r.CallTimes())
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		require.Equal(t, "a#2", r.Calls())
		r.TimeOutIn(7*time.Second, 1)
	})
}

// forEachRetryState runs body with ForEachMode for each choice of the state that restored
// elements keep.
func forEachRetryState(t *testing.T, body func(t *testing.T, m optest.Mode, state asyncop.RetryState)) {
	t.Helper()
	for _, state := range []asyncop.RetryState{asyncop.RetryState(0), asyncop.LatencyFirst, asyncop.TimeSpent} {
		t.Run(state.String(), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) { body(t, m, state) })
		})
	}
}

// Law C3: a restored element waits for the rest of its back-off, however often the
// process is killed. The downtime counts.
func TestBackOffOutlivesRestarts(t *testing.T) {
	forEachRetryState(t, func(t *testing.T, m optest.Mode, state asyncop.RetryState) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{Timeout: time.Hour, Strategy: optest.RetryAgain(3, time.Minute), State: asyncop.State[string, string]{Retries: state}}
		r := optest.NewCheckRig(t, m, s, store)
		r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a")
		for range 3 {
			r.Advance(time.Second)
			r.Save()
			_ = r.Cut(optest.ErrBroken)
			r.Advance(time.Second)
			store = store.Reopen()
			r = optest.NewCheckRig(t, m, s, store)
			r.Advance(time.Second)
			require.Empty(t, r.Calls())
			require.EqualValues(t, 1, r.Stats().WaitingForRetry)
		}
		again := "a#2"
		if state == asyncop.RetryState(0) {
			again = "a#1"
		}
		r.Advance(51*time.Second - 1)
		require.Empty(t, r.Calls())
		r.Advance(1)
		require.Equal(t, again, r.Calls())
		require.Equal(t, state != asyncop.RetryState(0), r.Stats().RetriesOnError == 1, "from scratch, it is a first attempt")
		require.Zero(t, r.Stats().WaitingForRetry)
		r.Complete(again, "A")
		require.Equal(t, "A", r.Outputs())
	})
}

// Law C3: the same applies to a delay that a server demanded, even if it is longer than
// the element's time. After the end of the input, only such delays are waited for.
func TestDemandedWaitOutlivesRestarts(t *testing.T) {
	forEachRetryState(t, func(t *testing.T, m optest.Mode, state asyncop.RetryState) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: time.Minute,
			Strategy: optest.Because(optest.SafeReason, strategies.HonorPushback(strategies.BestEffort[string]().WithMaxRetries(5).
				WithBackoff(func(int) time.Duration { return 50 * time.Second }))),
			State: asyncop.State[string, string]{Retries: state}, Opts: optest.Options(asyncop.WithDropOnFailure()),
		}
		r := optest.NewCheckRig(t, m, s, store)
		r.Script("a#1", func(*optest.Call) error { return optest.Demand{Delay: 40 * time.Second} })
		r.Script("b#1", func(*optest.Call) error { return optest.ErrBroken })
		r.Script("c#1", func(*optest.Call) error { return optest.Demand{Delay: time.Hour} })
		r.Send("a", "b", "c")
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		r.Advance(time.Second)
		require.Empty(t, r.Calls())
		r.Barrier(10, participant.EndOfInput)
		n := "#2"
		if state == asyncop.RetryState(0) {
			n = "#1"
		}
		require.Equal(t, "b"+n+"@1s", r.CallTimes())
		r.Complete("b"+n, "B")
		r.Advance(39 * time.Second)
		require.Equal(t, "b"+n+"@1s a"+n+"@40s", r.CallTimes())
		r.Complete("a"+n, "A")
		r.Advance(20*time.Second - 1)
		require.Zero(t, r.Stats().Timeouts)
		r.Advance(1)
		require.EqualValues(t, 1, r.Stats().Timeouts, "c, which was not called")
		require.Equal(t, "b"+n+"@1s a"+n+"@40s", r.CallTimes())
	})
}

// Law C3: if the wall clock was set back meanwhile, the wait is not longer than before. A
// clock.Mock begins at the epoch again.
func TestBackOffWithAClockThatWasSetBack(t *testing.T) {
	optest.InBubble(t, optest.Mode{Ordered: true, Capacity: 4, Mock: true}, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(3, time.Minute), State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}}
		r := optest.NewCheckRig(t, m, s, store)
		r.Advance(10 * time.Hour)
		r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a")
		r.Advance(10 * time.Second)
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		r.Advance(50*time.Second - 1)
		require.Empty(t, r.Calls())
		r.Advance(1)
		require.Equal(t, "a#2", r.Calls())
	})
}

// Law C3: a back-off continues while its element waits for a slot, also in the checkpoint
// that is taken then.
func TestBackOffGoesOnWithoutASlot(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{Timeout: time.Hour, Strategy: optest.RetryAgain(3, time.Minute), State: asyncop.State[string, string]{Retries: asyncop.TimeSpent}}
		r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 2}, s, store)
		r.Script("b#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a", "b")
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		for range 2 {
			store = store.Reopen()
			r = optest.NewCheckRig(t, m, s, store)
			require.Equal(t, "a#1", r.Calls())
			r.Advance(20 * time.Second)
			r.Save()
			require.Equal(t, "a b#1", optest.StateIn(t, store, nil))
			_ = r.Cut(optest.ErrBroken)
		}
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		r.Complete("a#1", "A")
		r.Advance(20*time.Second - 1)
		require.Equal(t, "a#1", r.Calls())
		r.Advance(1)
		require.Equal(t, "a#1 b#2", r.Calls())
	}, 1)
}

// Law C3: an element that has almost no time left gets enough time for an attempt.
// Otherwise no restart would get past it.
func TestRestoredElementHasTimeForAnAttempt(t *testing.T) {
	forEachRetryState(t, func(t *testing.T, m optest.Mode, state asyncop.RetryState) {
		for _, inBackOff := range []bool{false, true} {
			store := checkpointtest.NewMemoryStore()
			s := optest.Setup{
				Timeout: 10 * time.Second, Strategy: optest.RetryAgain(99, 9998*time.Millisecond), State: asyncop.State[string, string]{Retries: state},
			}
			r := optest.NewCheckRig(t, m, s, store)
			if inBackOff {
				r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
				r.Send("a")
			} else {
				r.Send("a")
				r.Advance(9999 * time.Millisecond)
			}
			r.Save()
			_ = r.Cut(optest.ErrBroken)
			for range 2 {
				r = optest.NewCheckRig(t, m, s, store.Reopen())
				if inBackOff {
					r.Advance(9998 * time.Millisecond) // longer than the rest of the wait
				}
				require.NotEmpty(t, r.Calls())
				r.Advance(time.Second - 1)
				require.Zero(t, r.Stats().Timeouts)
				if state != asyncop.RetryState(0) || inBackOff {
					r.Advance(time.Second)
					require.EqualValues(t, 1, r.Stats().Timeouts)
				}
				_ = r.Cut(optest.ErrBroken)
				if inBackOff {
					break // the wait has passed
				}
			}
		}
	})
}

// Laws A5, C3: an element that gets its slot after the end of the input waits only for a
// delay that a server demanded.
func TestRestoredWaitsAfterTheEnd(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		s := optest.Setup{
			Timeout: time.Hour, State: asyncop.State[string, string]{Retries: asyncop.TimeSpent},
			Strategy: optest.Because(optest.SafeReason, strategies.HonorPushback(strategies.BestEffort[string]().
				WithBackoff(func(int) time.Duration { return 50 * time.Second }))),
		}
		r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 3}, s, store)
		r.Script("b#1", func(*optest.Call) error { return optest.Demand{Delay: 40 * time.Second} })
		r.Script("c#1", func(*optest.Call) error { return optest.ErrBroken })
		r.Send("a", "b", "c")
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		r = optest.NewCheckRig(t, m, s, store.Reopen())
		require.Equal(t, "a#1", r.Calls())
		go func() { _ = r.Op.Stop(t.Context()) }()
		r.Complete("a#1", "A")
		r.Advance(40*time.Second - 1)
		require.Equal(t, "a#1@0s", r.CallTimes())
		r.Advance(1)
		r.Complete("b#2", "B")
		require.Equal(t, "a#1@0s b#2@40s c#2@40s", r.CallTimes())
		r.Complete("c#2", "C")
		require.Equal(t, "A B C", r.Outputs())
	}, 1)
}

// stateWithAttempts returns the state of an operator with one element that was called
// attempts times.
func stateWithAttempts[IN, OUT any](in IN, attempts int32) (participant.State, error) {
	return drive.StateCodec[IN, OUT]{Inputs: codec.Default[IN]()}.Encode(drive.Snapshot[IN, OUT]{
		Items: []core.Item[IN, OUT]{{In: in, Attempts: attempts, First: 1}},
	})
}
