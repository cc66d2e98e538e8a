package asyncop_test

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
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Restored elements are called in input order, before any new input, also in a smaller queue; a barrier that comes
// meanwhile includes those that have no slot yet.
func TestRestoreIntoSmallerCapacity(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 10}, setup{}, store)
		r.send("a", "b", mark(1), "c", "d")
		r.save()
		_ = r.cut(errBroken)

		store = store.Reopen()
		again := newCheckRig(t, m, setup{}, store)
		again.send("n") // in the buffer of In
		require.Equal(t, "a#1 b#1", again.calls())
		again.save()
		require.Equal(t, "a b |1| c d n", stateIn(t, store, nil))
		again.complete("a#1", "A")
		again.save()
		require.Equal(t, "b |1| c d n", stateIn(t, store, nil))
		for _, name := range []string{"b#1", "c#1", "d#1", "n#1"} {
			again.complete(name, name)
		}
		require.Equal(t, "<2> A <3> b#1 |1| c#1 d#1 n#1", again.outputs())
		require.Equal(t, "a#1 b#1 c#1 d#1 n#1", again.calls())
	}, 2)
}

// Restored elements do not count as overflow.
func TestRestoredElementsAreNoOverflow(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 10}, setup{}, store)
		r.send("a", "b", "c", "d")
		r.save()
		_ = r.cut(errBroken)

		store = store.Reopen()
		again := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Overflow: 2}}, store)
		b, done := again.trigger(checkpoint.Periodic)
		again.send("n", b)
		require.NoError(t, <-done)
		require.Equal(t, "a b c d n", stateIn(t, store, nil))
	}, 1)
}

// A clean end while restored elements wait for slots.
func TestDrainDuringRestore(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 10}, setup{}, store)
		r.send("a", "b", "c")
		r.save()
		_ = r.cut(errBroken)
		again := newCheckRig(t, m, setup{wrap: func(h *hand) function { h.answer = upper; return h }}, store.Reopen())
		b, done := again.trigger(checkpoint.Drain)
		again.send(b)
		require.NoError(t, again.finish(done))
		require.NoError(t, again.wait())
		require.Equal(t, "A B C <end> <3>", again.outputs())
	}, 1)
}

// The three choices of FLIP-232, with exact numbers: a was called at 0s and failed, called again at 1s, the checkpoint is
// at 3s.
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
			forEachMode(t, func(t *testing.T, m mode) {
				store := checkpointtest.NewMemoryStore()
				s := setup{timeout: timeout, strategy: retryAgain(3, time.Second)}
				r := newCheckRig(t, m, s, store)
				r.script("a#1", func(*call) error { return errAgain })
				r.send("a")
				r.advance(3 * time.Second)
				require.Equal(t, "a#1@0s a#2@1s", r.callTimes())
				r.save()
				require.Equal(t, "a#1", stateIn(t, store, nil))
				_ = r.cut(errBroken)
				r.advance(c.down)

				store = store.Reopen()
				side := newSideSink(false)
				s.state = asyncop.State[string, string]{Retries: c.choice}
				s.opts = options(asyncop.WithFailureSink(side.take))
				again := newCheckRig(t, m, s, store)
				require.Equal(t, c.calls, again.callTimes())
				again.send("n") // it has its whole timeout
				at := must(time.ParseDuration(c.outputs[len("a/1@"):]))
				again.advance(at - 1)
				require.Empty(t, side.got())
				again.advance(1)
				require.NotEmpty(t, side.got())
				f := side.got()[0]
				require.Equal(t, c.outputs, fmt.Sprintf("%s/%d@%v", f.Element, f.Attempts, again.now()))
				require.Equal(t, c.elapsed, f.Elapsed)
				again.advance(timeout - at)
				require.Len(t, side.got(), 2)
			})
		})
	}
}

// A4: a number of attempts that is the largest there is does not begin anew.
func TestMostAttemptsThereAre(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		state, err := stateWithAttempts[string, string]("a", math.MaxInt32)
		require.NoError(t, err)
		store := checkpointtest.NewMemoryStore()
		require.NoError(t, store.Save(t.Context(), &checkpoint.Snapshot{
			ID: 1, States: map[string]participant.State{"feed": nil, "op": state},
		}))
		side := newSideSink(false)
		r := newCheckRig(t, m, setup{
			timeout: time.Minute, strategy: retryAgain(3, 0),
			state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, opts: options(asyncop.WithFailureSink(side.take)),
		}, store)
		r.fail(fmt.Sprintf("a#%d", math.MaxInt32), errAgain)
		require.Equal(t, fmt.Sprintf("a#%d@0s", math.MaxInt32), r.callTimes())
		require.Len(t, side.got(), 1)
	})
}

// LatencyFirst asks whatever strategy there is how many retries it allows.
func TestLatencyFirstOfPolicies(t *testing.T) {
	classify := predicates.ByException[string](predicates.ErrorIs(errAgain), unsafeReason)
	for name, tt := range map[string]struct {
		strategy strategy
		want     string // at least: timeout/(maxRetries+1), and a tenth of the timeout
	}{
		"policy of FLIP":     {strategies.PolicyOf(retryAgain(3, time.Second)), "a/2@2.5s"},
		"policy that counts": {strategies.ReasonAware(classify, strategies.BestEffort[string]().WithMaxRetries(4)).Idempotent(), "a/2@2s"},
		"best effort":        {strategies.ReasonAware(classify, nil).Idempotent().WithMaxWaiting(1), "a/2@1s"},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				store := checkpointtest.NewMemoryStore()
				s := setup{timeout: 10 * time.Second, strategy: tt.strategy}
				r := newCheckRig(t, m, s, store)
				r.script("a#1", func(*call) error { return errAgain })
				r.send("a")
				r.advance(2 * time.Second)
				require.Equal(t, "a#1 a#2", r.calls())
				r.save()
				_ = r.cut(errBroken)
				r.advance(time.Minute)
				side := newSideSink(false)
				s.state = asyncop.State[string, string]{Retries: asyncop.LatencyFirst}
				s.opts = options(asyncop.WithFailureSink(side.take))
				r = newCheckRig(t, m, s, store.Reopen())
				for len(side.got()) == 0 {
					r.advance(time.Millisecond)
				}
				f := side.got()[0]
				require.Equal(t, tt.want, fmt.Sprintf("%s/%d@%v", f.Element, f.Attempts, r.now().Truncate(2*time.Millisecond)))
			})
		})
	}
}

// What was in back-off, which has passed meanwhile, competes at once, with its attempts; what no attempt was made of starts
// from scratch.
func TestRetryStateOfElementsInBackOffAndFresh(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: 10 * time.Second, strategy: retryAgain(3, time.Second),
			state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, opts: options(asyncop.WithMaxConcurrentCalls(1)),
		}
		r := newCheckRig(t, m, s, store)
		r.script("a#1", func(*call) error { return errAgain })
		r.send("a", "b", "c")
		r.save()
		require.Equal(t, "a#1 b c", stateIn(t, store, nil))
		_ = r.cut(errBroken)
		r.advance(time.Second)

		// Checkpoints of elements that wait for a permit after a restore do not lose attempts.
		for range 3 {
			store = store.Reopen()
			r = newCheckRig(t, m, setup{
				timeout: s.timeout, strategy: s.strategy, state: s.state, opts: s.opts,
			}, store)
			require.Equal(t, "a#2", r.calls())
			r.advance(time.Second)
			r.save()
			require.Equal(t, "a#1 b c", stateIn(t, store, nil))
			_ = r.cut(errBroken)
		}
		store = store.Reopen()
		r = newCheckRig(t, m, s, store)
		r.advance(7*time.Second - 1)
		require.Equal(t, "a#2", r.calls())
		r.advance(1)
		require.Error(t, r.wait(), "three seconds of it were spent")
	})
}

// A restored element that waits for a permit has brought its attempts along: the next checkpoint keeps them.
func TestRestoredElementWithoutPermitKeepsItsAttempts(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{timeout: time.Hour, strategy: retryAgain(3, time.Minute), state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}}
		r := newCheckRig(t, m, s, store)
		r.script("b#1", func(*call) error { return errAgain })
		r.send("a", "b")
		r.save()
		require.Equal(t, "a b#1", stateIn(t, store, nil))
		_ = r.cut(errBroken)
		r.advance(time.Minute)
		s.opts = append(s.opts, asyncop.WithMaxConcurrentCalls(1))
		store = store.Reopen()
		r = newCheckRig(t, m, s, store)
		require.Equal(t, "a#1", r.calls())
		r.save()
		require.Equal(t, "a b#1", stateIn(t, store, nil))
		r.complete("a#1", "A")
		require.Equal(t, "a#1 b#2", r.calls())
	})
}

// What counts is the time of the first attempt, not of the start.
func TestLatencyFirstOfALaterElement(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: 10 * time.Second, strategy: retryAgain(3, time.Minute),
			state: asyncop.State[string, string]{Retries: asyncop.LatencyFirst}, opts: options(asyncop.WithDropOnFailure()),
		}
		r := newCheckRig(t, m, s, store)
		r.advance(5 * time.Second)
		r.send("a")
		r.advance(2 * time.Second)
		r.save()
		_ = r.cut(errBroken)
		r = newCheckRig(t, m, s, store.Reopen())
		r.timeOutIn(8*time.Second, 1)
	})
}

// An element whose first attempt ran at the checkpoint, and which waits for a permit at the next one, keeps the time it had.
func TestRestoredElementWithoutAttemptsKeepsItsTime(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: 10 * time.Second, strategy: retryAgain(3, time.Minute),
			state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, opts: options(asyncop.WithDropOnFailure()),
		}
		r := newCheckRig(t, m, s, store)
		r.send("a", "b")
		r.advance(3 * time.Second)
		r.save()
		require.Equal(t, "a b", stateIn(t, store, nil))
		_ = r.cut(errBroken)
		store = store.Reopen()
		r = newCheckRig(t, m, setup{timeout: s.timeout, strategy: s.strategy, state: s.state, opts: append(s.opts[:1:1], asyncop.WithMaxConcurrentCalls(1))}, store)
		require.Equal(t, "a#1", r.calls())
		r.save()
		_ = r.cut(errBroken)
		r = newCheckRig(t, m, s, store.Reopen())
		r.timeOutIn(7*time.Second, 2)
	})
}

// Of whose timeout nothing is left, that has its timeout outcome at once, without an attempt.
func TestRestoredElementWithoutTimeLeft(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: time.Second,
			state:   asyncop.State[string, string]{Retries: asyncop.TimeSpent},
			wrap: withHandler(func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}),
		}
		r := newCheckRig(t, m, s, store)
		r.send("a")
		r.advance(time.Second) // its handler runs
		r.save()
		_ = r.cut(errBroken)
		s.wrap = withHandler(func(_ context.Context, in string) ([]string, error) { return []string{"late " + in}, nil })
		again := newCheckRig(t, m, s, store.Reopen())
		again.script("n#1", upper)
		again.send("n")
		require.Equal(t, "n#1", again.calls())
		require.Equal(t, m.pick("late a N", again.outputs()), again.outputs())
		require.EqualValues(t, 1, again.stats().Timeouts)
	})
}

// Law C1: results that leave while the state is being encoded are in it.
func TestResultsThatLeaveAreStored(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		release := make(chan struct{})
		texts := codecOf(func() { <-release }, func() {})
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, setup{blocked: true, state: asyncop.State[string, string]{Results: texts}, opts: options(asyncop.WithBuffer(0))}, store)
		r.answer = upper // at once
		r.send("a", "b")
		barrier, done := r.trigger(checkpoint.Periodic)
		r.send(barrier)
		r.unblock()
		require.Equal(t, "<1> A B", r.outputs())
		close(release)
		require.NoError(t, <-done)
		require.Equal(t, "a#1=[A] b#1=[B]", stateIn(t, store, texts))
	})
}

// With a codec for results calls are not repeated.
func TestResultsAreStored(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		texts := codec.Default[string]()
		store := checkpointtest.NewMemoryStore()
		s := setup{state: asyncop.State[string, string]{Results: texts}}
		r := newCheckRig(t, m, s, store)
		r.send("a", mark(1), "b", "c", "d")
		r.complete("b#1", "B1", "B2")
		r.complete("d#1")
		for range 2 {
			r.save()
			require.Equal(t, "a |1| b#1=[B1 B2] c", stateIn(t, store, texts))
			_ = r.cut(errBroken)
			store = store.Reopen()
			r = newCheckRig(t, m, s, store)
			require.Equal(t, "a#1 c#1", r.calls())
		}
		r.complete("c#1", "C")
		r.complete("a#1", "A")
		require.Equal(t, "A |1| B1 B2 C", r.outputs())
		_ = r.cut(errBroken)

		// Changed code: without the codec the results cannot be used, which is said.
		c := must(checkpoint.NewCoordinator(store.Reopen()))
		c.Host().Register("feed", barrierFeed{})
		op := asyncop.OrderedWait[string, string](newHand(t), 0, 1, asyncop.WithName("op"), asyncop.WithCheckpoints(c))
		require.ErrorContains(t, c.Start(), "State.Results")
		require.Error(t, op.Wait())
		close(op.In())
	})
}

func TestUndecodableStateRefusesStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, mode{ordered: true, capacity: 4}, setup{}, store)
		r.send("a")
		r.save()
		_ = r.cut(errBroken)
		c := must(checkpoint.NewCoordinator(store.Reopen()))
		c.Host().Register("feed", barrierFeed{})
		op := asyncop.OrderedWait[int, string](asyncop.Func(func(context.Context, int, future) error { panic("called") }),
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
		"error": func() error { return errBroken },
		"panic": func() error { panic(errBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				bad := true
				texts := codec.Func(func(dst []byte, v string) ([]byte, error) {
					if bad {
						return nil, fail()
					}
					return append(dst, v...), nil
				}, func(b []byte) (string, error) { return string(b), nil })
				r := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Inputs: texts}}, nil)
				r.send("a")
				b, done := r.trigger(checkpoint.Periodic)
				r.send(b)
				err := <-done
				require.ErrorContains(t, err, errBroken.Error())
				require.ErrorContains(t, err, `"op"`)
				bad = false
				r.save()
				r.complete("a#1", "A")
				require.Equal(t, "<1> <2> A", r.outputs())
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

// The aim of it all: two operators in a row, with failures and retries, cut at random moments and resumed, some with
// another capacity; the output is complete and has nothing twice. Time is virtual.
func TestKillAndResume(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 5
	}
	total := 0
	for seed := range seeds {
		for _, ordered := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/seed=%d", mode{ordered: ordered}.order(), seed), func(t *testing.T) {
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
		c := must(checkpoint.NewCoordinator(store, checkpoint.WithInterval(time.Duration(1+rnd.IntN(5))*time.Millisecond),
			checkpoint.WithTimeout(100*time.Millisecond), checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
		ctx, cancel := context.WithCancelCause(context.Background())
		build := func(name string, answer func(string) []string) *operator {
			answers := newRand(rnd.Uint64())
			fn := asyncop.Func(func(_ context.Context, s string, r future) error {
				fails := answers.IntN(5) == 0
				time.AfterFunc(time.Duration(answers.IntN(3000))*time.Microsecond, func() {
					if fails {
						r.CompleteExceptionally(errBroken)
						return
					}
					r.Complete(answer(s)...)
				})
				return nil
			})
			opts := options(asyncop.WithName(name), asyncop.WithContext(ctx), asyncop.WithDrainRetries(),
				asyncop.WithBuffer(rnd.IntN(3)), asyncop.WithMaxConcurrentCalls(1+rnd.IntN(20)), asyncop.WithCheckpoints(c, asyncop.State[string, string]{
					Results: texts, Retries: asyncop.RetryState(rnd.IntN(3)), Overflow: rnd.IntN(400) - 1,
				}))
			return construct[string, string](mode{ordered: ordered, capacity: 1 + rnd.IntN(40)}, fn, time.Hour,
				retryAll1000(time.Duration(rnd.IntN(3))*time.Millisecond), opts...)
		}
		src := checkpoint.NewSource(c, "src", checkpointtest.NewSliceInput(in))
		first := build("first", func(s string) []string { return []string{s + "?"} })
		second := build("second", func(s string) []string {
			return slices.Repeat([]string{s + "!"}, must(parseInt(s[:len(s)-1]))%3)
		})
		sink := checkpoint.NewSink(c, "sink", output)
		require.NoError(t, c.Start())
		if runs < 8 {
			time.AfterFunc(time.Duration(rnd.IntN(40))*time.Millisecond, func() { cancel(errTestOver) })
		}
		src.Via(weirflow.NewFilter(func(string) bool { return true })).Via(first).Via(second).To(sink)
		err := c.Wait()
		done = err == nil
		if !done {
			require.ErrorIs(t, err, errTestOver)
		}
		require.NoError(t, c.Close())
		<-first.Done()
		<-second.Done()
		cancel(nil)
		if ordered {
			require.True(t, slices.Equal(want[:output.visible], output.all[:output.visible]))
		}
		time.Sleep(time.Second) // calls that were cut complete into nowhere
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

func retryAll1000(delay time.Duration) strategy {
	return strategies.FixedDelay[string](1000, delay).RetryIfException(predicates.HasException)
}

// An element that was complete in time and waited for downstream, for longer than its timeout even, has not spent it: its
// call is made again, with the whole timeout.
func TestRestoredElementThatWasComplete(t *testing.T) {
	for _, choice := range []asyncop.RetryState{asyncop.RetryState(0), asyncop.LatencyFirst, asyncop.TimeSpent} {
		t.Run(choice.String(), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				store := checkpointtest.NewMemoryStore()
				s := setup{
					timeout: 10 * time.Second, strategy: retryAgain(3, time.Second), blocked: true,
					state: asyncop.State[string, string]{Retries: choice}, opts: options(asyncop.WithBuffer(0)),
				}
				r := newCheckRig(t, m, s, store)
				r.script("a#1", func(*call) error { return errAgain })
				r.script("a#2", upper)
				r.send("a")
				r.advance(time.Minute)
				require.Equal(t, "a#1 a#2", r.calls())
				r.save()
				_ = r.cut(errBroken)

				r = newCheckRig(t, m, s, store.Reopen())
				number := 2
				if choice == asyncop.RetryState(0) {
					number = 1
				}
				require.Equal(t, fmt.Sprintf("a#%d", number), r.calls())
				r.advance(10*time.Second - 1)
				r.complete(fmt.Sprintf("a#%d", number), "A")
				r.unblock()
				require.Equal(t, "<1> A", "<1> "+r.outputs())
				require.Zero(t, r.stats().Timeouts)
			})
		})
	}
}

// What a failure tells of attempts before a restart is not made up: only when the first one began is known.
func TestFailureOfARestoredElementWithoutAnotherAttempt(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		side := newSideSink(false)
		s := setup{
			timeout: 10 * time.Second, strategy: retryAgain(3, time.Second),
			state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, opts: options(asyncop.WithFailureSink(side.take)),
		}
		r := newCheckRig(t, m, s, store)
		began := time.Now()
		r.script("b#1", func(*call) error { return errAgain })
		r.send("a", "b")
		r.save()
		require.Equal(t, "a b#1", stateIn(t, store, nil))
		_ = r.cut(errBroken)
		r.advance(time.Hour)

		side = newSideSink(false)
		s.state = asyncop.State[string, string]{Retries: asyncop.TimeSpent}
		s.opts = options(asyncop.WithFailureSink(side.take), asyncop.WithMaxConcurrentCalls(1))
		s.wrap = func(*hand) function {
			return asyncop.Blocking(func(context.Context, string) (string, error) {
				time.Sleep(11 * time.Second) // a's keeps the permit from b
				return "", nil
			})
		}
		r = newCheckRig(t, m, s, store.Reopen())
		r.advance(10 * time.Second)
		require.Equal(t, "a b", side.elements())
		f := side.got()[1]
		require.Equal(t, 1, f.Attempts)
		require.True(t, f.FirstAttempt.Equal(began), f.FirstAttempt)
		require.Equal(t, f.FirstAttempt, f.LastAttempt)
		r.advance(time.Second)
	})
}

// The instant 0 of Unix is an instant like any other: a clock.Mock begins there.
func TestRetryStateAtTheEpoch(t *testing.T) {
	inBubble(t, mode{ordered: true, capacity: 4, mock: true}, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: 10 * time.Second, strategy: retryAgain(3, time.Second),
			state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}, opts: options(asyncop.WithDropOnFailure()),
		}
		r := newCheckRig(t, m, s, store)
		r.script("a#1", func(*call) error { return errAgain })
		r.send("a")
		r.advance(3 * time.Second)
		require.Equal(t, "a#1@0s a#2@1s", r.callTimes())
		r.save()
		_ = r.cut(errBroken)
		r = newCheckRig(t, m, s, store.Reopen())
		require.Equal(t, "a#2", r.calls())
		r.timeOutIn(7*time.Second, 1)
	})
}

// forEachRetryState is forEachMode for each choice of what a restored element keeps.
func forEachRetryState(t *testing.T, body func(t *testing.T, m mode, state asyncop.RetryState)) {
	t.Helper()
	for _, state := range []asyncop.RetryState{asyncop.RetryState(0), asyncop.LatencyFirst, asyncop.TimeSpent} {
		t.Run(state.String(), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) { body(t, m, state) })
		})
	}
}

// C3: a restored element waits for the rest of its back-off, however often the process is killed; the time it was down counts.
func TestBackOffOutlivesRestarts(t *testing.T) {
	forEachRetryState(t, func(t *testing.T, m mode, state asyncop.RetryState) {
		store := checkpointtest.NewMemoryStore()
		s := setup{timeout: time.Hour, strategy: retryAgain(3, time.Minute), state: asyncop.State[string, string]{Retries: state}}
		r := newCheckRig(t, m, s, store)
		r.script("a#1", func(*call) error { return errAgain })
		r.send("a")
		for range 3 {
			r.advance(time.Second)
			r.save()
			_ = r.cut(errBroken)
			r.advance(time.Second)
			store = store.Reopen()
			r = newCheckRig(t, m, s, store)
			r.advance(time.Second)
			require.Empty(t, r.calls())
			require.EqualValues(t, 1, r.stats().WaitingForRetry)
		}
		again := "a#2"
		if state == asyncop.RetryState(0) {
			again = "a#1"
		}
		r.advance(51*time.Second - 1)
		require.Empty(t, r.calls())
		r.advance(1)
		require.Equal(t, again, r.calls())
		require.Equal(t, state != asyncop.RetryState(0), r.stats().RetriesOnError == 1, "from scratch, it is a first attempt")
		require.Zero(t, r.stats().WaitingForRetry)
		r.complete(again, "A")
		require.Equal(t, "A", r.outputs())
	})
}

// C3: the same for what a server demanded, also if that is longer than the element has; after the end of the input it alone is
// waited for.
func TestDemandedWaitOutlivesRestarts(t *testing.T) {
	forEachRetryState(t, func(t *testing.T, m mode, state asyncop.RetryState) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: time.Minute,
			strategy: because(safeReason, strategies.HonorPushback(strategies.BestEffort[string]().WithMaxRetries(5).
				WithBackoff(func(int) time.Duration { return 50 * time.Second }))),
			state: asyncop.State[string, string]{Retries: state}, opts: options(asyncop.WithDropOnFailure()),
		}
		r := newCheckRig(t, m, s, store)
		r.script("a#1", func(*call) error { return demand{40 * time.Second} })
		r.script("b#1", func(*call) error { return errBroken })
		r.script("c#1", func(*call) error { return demand{time.Hour} })
		r.send("a", "b", "c")
		r.save()
		_ = r.cut(errBroken)
		r = newCheckRig(t, m, s, store.Reopen())
		r.advance(time.Second)
		require.Empty(t, r.calls())
		r.barrier(10, participant.EndOfInput)
		n := "#2"
		if state == asyncop.RetryState(0) {
			n = "#1"
		}
		require.Equal(t, "b"+n+"@1s", r.callTimes())
		r.complete("b"+n, "B")
		r.advance(39 * time.Second)
		require.Equal(t, "b"+n+"@1s a"+n+"@40s", r.callTimes())
		r.complete("a"+n, "A")
		r.advance(20*time.Second - 1)
		require.Zero(t, r.stats().Timeouts)
		r.advance(1)
		require.EqualValues(t, 1, r.stats().Timeouts, "c, which was not called")
		require.Equal(t, "b"+n+"@1s a"+n+"@40s", r.callTimes())
	})
}

// C3: if the wall clock was set back meanwhile, the wait is never longer than it was; a clock.Mock begins anew at the epoch.
func TestBackOffWithAClockThatWasSetBack(t *testing.T) {
	inBubble(t, mode{ordered: true, capacity: 4, mock: true}, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{timeout: 24 * time.Hour, strategy: retryAgain(3, time.Minute), state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}}
		r := newCheckRig(t, m, s, store)
		r.advance(10 * time.Hour)
		r.script("a#1", func(*call) error { return errAgain })
		r.send("a")
		r.advance(10 * time.Second)
		r.save()
		_ = r.cut(errBroken)
		r = newCheckRig(t, m, s, store.Reopen())
		r.advance(50*time.Second - 1)
		require.Empty(t, r.calls())
		r.advance(1)
		require.Equal(t, "a#2", r.calls())
	})
}

// C3: a back-off goes on while its element waits for a slot, and so it does in the checkpoint that is taken then.
func TestBackOffGoesOnWithoutASlot(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{timeout: time.Hour, strategy: retryAgain(3, time.Minute), state: asyncop.State[string, string]{Retries: asyncop.TimeSpent}}
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 2}, s, store)
		r.script("b#1", func(*call) error { return errAgain })
		r.send("a", "b")
		r.save()
		_ = r.cut(errBroken)
		for range 2 {
			store = store.Reopen()
			r = newCheckRig(t, m, s, store)
			require.Equal(t, "a#1", r.calls())
			r.advance(20 * time.Second)
			r.save()
			require.Equal(t, "a b#1", stateIn(t, store, nil))
			_ = r.cut(errBroken)
		}
		r = newCheckRig(t, m, s, store.Reopen())
		r.complete("a#1", "A")
		r.advance(20*time.Second - 1)
		require.Equal(t, "a#1", r.calls())
		r.advance(1)
		require.Equal(t, "a#1 b#2", r.calls())
	}, 1)
}

// C3: an element of whose time next to nothing is left has enough for an attempt, or no restart would get past it.
func TestRestoredElementHasTimeForAnAttempt(t *testing.T) {
	forEachRetryState(t, func(t *testing.T, m mode, state asyncop.RetryState) {
		for _, inBackOff := range []bool{false, true} {
			store := checkpointtest.NewMemoryStore()
			s := setup{
				timeout: 10 * time.Second, strategy: retryAgain(99, 9998*time.Millisecond), state: asyncop.State[string, string]{Retries: state},
			}
			r := newCheckRig(t, m, s, store)
			if inBackOff {
				r.script("a#1", func(*call) error { return errAgain })
				r.send("a")
			} else {
				r.send("a")
				r.advance(9999 * time.Millisecond)
			}
			r.save()
			_ = r.cut(errBroken)
			for range 2 {
				r = newCheckRig(t, m, s, store.Reopen())
				if inBackOff {
					r.advance(9998 * time.Millisecond) // longer than what is left of the wait
				}
				require.NotEmpty(t, r.calls())
				r.advance(time.Second - 1)
				require.Zero(t, r.stats().Timeouts)
				if state != asyncop.RetryState(0) || inBackOff {
					r.advance(time.Second)
					require.EqualValues(t, 1, r.stats().Timeouts)
				}
				_ = r.cut(errBroken)
				if inBackOff {
					break // it has passed
				}
			}
		}
	})
}

// A5, C3: what gets its slot after the end only waits for what a server demanded.
func TestRestoredWaitsAfterTheEnd(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		s := setup{
			timeout: time.Hour, state: asyncop.State[string, string]{Retries: asyncop.TimeSpent},
			strategy: because(safeReason, strategies.HonorPushback(strategies.BestEffort[string]().
				WithBackoff(func(int) time.Duration { return 50 * time.Second }))),
		}
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 3}, s, store)
		r.script("b#1", func(*call) error { return demand{40 * time.Second} })
		r.script("c#1", func(*call) error { return errBroken })
		r.send("a", "b", "c")
		r.save()
		_ = r.cut(errBroken)
		r = newCheckRig(t, m, s, store.Reopen())
		require.Equal(t, "a#1", r.calls())
		go func() { _ = r.op.Stop(t.Context()) }()
		r.complete("a#1", "A")
		r.advance(40*time.Second - 1)
		require.Equal(t, "a#1@0s", r.callTimes())
		r.advance(1)
		r.complete("b#2", "B")
		require.Equal(t, "a#1@0s b#2@40s c#2@40s", r.callTimes())
		r.complete("c#2", "C")
		require.Equal(t, "A B C", r.outputs())
	}, 1)
}
