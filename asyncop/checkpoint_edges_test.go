package asyncop_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/strategies"
)

// Where checkpoints meet what is rare: elements that emit nothing, user code that ends its goroutine, and ends of all
// kinds while elements wait outside of the slots.

// restart saves the elements of s, cuts their operator off, and returns one that has them restored.
func restart(t *testing.T, m mode, elements string, s setup) *checkRig {
	t.Helper()
	store := checkpointtest.NewMemoryStore()
	r := newCheckRig(t, mode{ordered: m.ordered, capacity: 16}, setup{}, store)
	r.sendEach(elements)
	r.save()
	_ = r.cut(errTestOver)
	r = newCheckRig(t, m, s, store.Reopen())
	synctest.Wait()
	return r
}

// endsEmpty is how an element can leave without emitting anything.
var endsEmpty = map[string]func(r *rig, call string){
	"no result": func(r *rig, call string) { r.complete(call) },
	"dropped":   func(r *rig, call string) { r.fail(call, errBroken) },
}

// An element that emits nothing frees its slot, and whatever waited for that happens at once: nothing else may come to
// wake the loop.
func TestElementsThatEmitNothingFreeTheLoop(t *testing.T) {
	for name, end := range endsEmpty {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				r := newCheckRig(t, m, setup{opts: options(asyncop.WithDropOnFailure())}, nil)
				r.send("a")
				b, done := r.trigger(checkpoint.Drain)
				r.send(b)
				end(r.rig, "a#1")
				require.NoError(t, r.finish(done))
				require.NoError(t, r.wait(), "the end of the input behind it")

				r = newCheckRig(t, m, setup{opts: options(asyncop.WithDropOnFailure())}, nil)
				r.send("a")
				r.barrier(1, participant.Drain) // without a marker before it
				require.Equal(t, "none", r.state(1))
				end(r.rig, "a#1")
				require.NoError(t, r.wait(), "a drain barrier behind it")
			})
			forEachMode(t, func(t *testing.T, m mode) {
				r := restart(t, m, "abc", setup{opts: options(asyncop.WithDropOnFailure())})
				for _, call := range []string{"a#1", "b#1", "c#1"} {
					end(r.rig, call)
				}
				r.barrier(2, participant.Drain)
				require.NoError(t, r.wait(), "restored elements behind it")
				require.Equal(t, "a#1 b#1 c#1", r.calls())
			}, 1)
		})
	}
}

// A6: code that ends its goroutine does not take along what was to be done after it, here the end of the input, which was
// put off until the backlog is empty.
func TestGoexitInTheLastElementOfTheBacklog(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := restart(t, m, "ab", setup{opts: options(asyncop.WithDropOnFailure())})
		r.script("b#1", func(*call) error { runtime.Goexit(); return nil })
		go func() { _ = r.op.Stop(t.Context()) }()
		synctest.Wait()
		require.Equal(t, "a#1", r.calls())
		r.complete("a#1", "A")
		require.NoError(t, r.wait())
		require.EqualValues(t, 1, r.stats().Dropped)
		require.Equal(t, "A", r.outputs())
	}, 1)
}

// C1, Q1: a barrier waits for the element that is being emitted, and for no other, although downstream takes results
// faster than the loop looks for barriers.
func TestBarrierWaitsForOneElementOnly(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		slow := strategies.FixedDelay[string](1, 0).RetryIfResult(func(results []string) bool {
			if results[0] == "C" {
				time.Sleep(time.Second) // the loop is away
			}
			return false
		})
		r := newCheckRig(t, m, setup{
			timeout: time.Hour, strategy: slow, blocked: true, opts: options(asyncop.WithBuffer(4)),
		}, nil)
		r.sendEach("abc")
		r.complete("a#1", "A1", "A2", "A3", "A4", "A5", "A6")
		r.complete("b#1", "B1", "B2")
		r.barrier(1, participant.Periodic)
		require.Equal(t, "none", r.state(1))
		r.call("c#1").Complete("C")
		synctest.Wait()
		for _, want := range []string{"A1", "A2", "A3", "A4"} { // four places come free before the loop looks again
			require.Equal(t, want, <-r.op.Out())
		}
		time.Sleep(time.Second)
		require.Equal(t, "b c", r.state(1))
		r.unblock()
		require.Equal(t, "A5 A6 <1> B1 B2 C", r.outputs())
	})
}

// codecOf returns a codec of strings that calls encode or decode first.
func codecOf(encode, decode func()) codec.Codec[string] {
	return codec.Func(
		func(dst []byte, v string) ([]byte, error) { encode(); return append(dst, v...), nil },
		func(b []byte) (string, error) { decode(); return string(b), nil },
	)
}

// A1, D1: what a Suspend was to keep, and does not, is abandoned. It comes again in the next run, so the failure sink does not get it.
func TestSuspendThatFailsAbandonsWhatIsInFlight(t *testing.T) {
	nothing := func() {}
	t.Run("not encoded", func(t *testing.T) {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			texts := codecOf(func() { panic("broken") }, nothing)
			r := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Inputs: texts}, opts: options(asyncop.WithFailureSink(side.take))}, nil)
			r.send("a")
			b, done := r.trigger(checkpoint.Suspend)
			r.send(b)
			require.Error(t, <-done)
			require.ErrorContains(t, r.wait(), "1 element in flight")
			require.Empty(t, side.elements())
			require.EqualValues(t, 1, r.stats().Abandoned)
			checkBalance(t, r.stats())
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.take))}, nil)
			r.send("a")
			b, _ := r.trigger(checkpoint.Suspend)
			r.send(b) // cannot leave
			require.ErrorIs(t, r.cut(errBroken), errBroken)
			require.Empty(t, side.elements())
			require.EqualValues(t, 1, r.stats().Abandoned)
			checkBalance(t, r.stats())
		})
	})
}

// Nor does a codec that takes its time over the final state keep calls running, or a cancel from ending them.
func TestSuspendEndsCallsBeforeItIsEncoded(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		release := make(chan struct{})
		texts := codecOf(func() { <-release }, func() {})
		r := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Inputs: texts}}, nil)
		r.send("a")
		b, done := r.trigger(checkpoint.Suspend)
		r.send(b)
		synctest.Wait()
		require.Error(t, r.call("a#1").ctx.Err())
		require.Nil(t, r.op.Err())
		r.cancel(errTestOver)
		synctest.Wait()
		require.ErrorIs(t, r.op.Err(), errTestOver)
		close(release)
		require.Error(t, <-done)
		require.ErrorIs(t, r.wait(), errTestOver)
	})
}

// A codec that takes its time holds up neither Stop nor a cancel, only Done.
func TestStopDoesNotWaitForACodec(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		release := make(chan struct{})
		texts := codecOf(func() { <-release }, func() {})
		r := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Inputs: texts}}, nil)
		r.send("a")
		b, done := r.trigger(checkpoint.Periodic)
		r.send(b)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.op.Stop(ctx), context.Canceled)
		synctest.Wait()
		select {
		case <-r.op.Done():
			t.Error("done, and a codec is at work")
		default:
		}
		close(release)
		require.Error(t, <-done)
		require.ErrorIs(t, r.wait(), context.Canceled)
	})
}

// A6: a codec that breaks aborts the checkpoint, whose error names the operator, and harms nothing else.
func TestCodecThatBreaksAbortsTheCheckpoint(t *testing.T) {
	nothing := func() {}
	for _, b := range breakages {
		for name, state := range map[string]func(c codec.Codec[string]) asyncop.State[string, string]{
			"input": func(c codec.Codec[string]) asyncop.State[string, string] {
				return asyncop.State[string, string]{Inputs: c}
			},
			"result": func(c codec.Codec[string]) asyncop.State[string, string] {
				return asyncop.State[string, string]{Results: c}
			},
		} {
			t.Run(name+"/"+b.name, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					breaks := b.breaks
					texts := codecOf(func() { breaks() }, nothing)
					r := newCheckRig(t, m, setup{blocked: true, state: state(texts), opts: options(asyncop.WithBuffer(0))}, nil)
					r.send("a")
					r.complete("a#1", "A")
					barrier, done := r.trigger(checkpoint.Periodic)
					r.send(barrier)
					err := <-done
					requireBroken(t, err, b.value)
					breaks = nothing
					r.save()
					r.unblock()
					require.Equal(t, "<1> <2> A", r.outputs())
				})
			})
		}
	}
}

// A6: a codec that breaks when the operator is built makes Start fail. It does not break the caller of the constructor.
func TestCodecThatBreaksRefusesStart(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				store := checkpointtest.NewMemoryStore()
				plain := asyncop.State[string, string]{Inputs: codecOf(func() {}, func() {})}
				r := newCheckRig(t, m, setup{state: plain}, store)
				r.send("a")
				r.save()
				_ = r.cut(errTestOver)

				c := must(checkpoint.NewCoordinator(store.Reopen()))
				c.Host().Register("feed", barrierFeed{})
				broken := asyncop.State[string, string]{Inputs: codecOf(func() {}, b.breaks)}
				op := construct[string, string](m, newHand(t), 0, nil, asyncop.WithName("op"), asyncop.WithCheckpoints(c, broken))
				requireBroken(t, c.Start(), b.value)
				requireBroken(t, op.Wait(), b.value)
				close(op.In())
			})
		})
	}
}

// requireBroken checks that err names the operator, and reports what broke.
func requireBroken(t *testing.T, err error, value any) {
	t.Helper()
	require.ErrorContains(t, err, `"op"`)
	if panicked, ok := errors.AsType[*asyncop.PanicError](err); ok {
		require.Equal(t, value, panicked.Value)
		return
	}
	require.ErrorIs(t, err, guard.ErrGoexit)
	require.Equal(t, guard.ErrGoexit, value)
}

// F1: elements that were read, and never had a slot, are counted as discarded when the operator ends. Watermarks are not,
// nor is what a checkpoint holds.
func TestElementsWithoutASlotAreDiscarded(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		o := newTally(t)
		r := newCheckRig(t, m, setup{opts: options(asyncop.WithObserver(o))}, nil)
		r.send("a")
		_, done := r.trigger(checkpoint.Periodic)
		r.send("b", mark(1), "c") // read past the capacity
		require.ErrorIs(t, r.cut(errBroken), errBroken)
		require.Error(t, <-done)
		require.Equal(t, map[observe.EndKind]int{observe.Abandoned: 1, observe.Discarded: 2}, o.ended, "law O1")
		require.EqualValues(t, 1, r.stats().Accepted)
		require.EqualValues(t, 2, r.stats().Discarded)
		checkBalance(t, r.stats())
	}, 1)
	forEachMode(t, func(t *testing.T, m mode) {
		r := restart(t, m, "abc", setup{})
		require.ErrorIs(t, r.cut(errBroken), errBroken)
		require.EqualValues(t, 1, r.stats().Accepted)
		require.EqualValues(t, 2, r.stats().Discarded)
	}, 1)
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{}, nil)
		r.send("a")
		b, done := r.trigger(checkpoint.Suspend)
		r.send("b", b)
		require.NoError(t, <-done)
		require.NoError(t, r.wait())
		require.Zero(t, r.stats().Discarded)
	}, 1)
}

// After a Suspend nothing is in flight, whatever it was doing: it is in the checkpoint.
func TestStatsAfterASuspend(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := newCheckRig(t, m, setup{
			timeout: time.Hour, strategy: retryAgain(3, time.Minute), blocked: true,
			opts: options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.take)),
		}, nil)
		r.script("f#1", fails)                                 // failing
		r.script("b#1", func(*call) error { return errAgain }) // in back-off
		r.script("c#1", upper)                                 // complete
		r.script("e#1", empty)                                 // complete, with nothing to emit
		r.send("a", "f", "b", "c", "e")
		b, done := r.trigger(checkpoint.Suspend)
		r.send(b)
		require.NoError(t, <-done)
		side.unblock()
		require.NoError(t, r.wait())
		s := r.stats()
		require.Zero(t, s.InFlight)
		require.Zero(t, s.Running)
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.HandedOver)
		require.EqualValues(t, 4, s.Abandoned)
		require.EqualValues(t, 1, s.Completed)
		require.Zero(t, s.OldestAge)
		checkBalance(t, s)
	})
}

// The age of a restored element counts the time before the restart, as far as its timeout does.
func TestOldestAgeOfRestoredElements(t *testing.T) {
	for choice, want := range map[asyncop.RetryState]time.Duration{
		asyncop.RetryState(0): time.Second, asyncop.TimeSpent: time.Hour + time.Second, asyncop.LatencyFirst: 2*time.Hour + time.Second,
	} {
		t.Run(choice.String(), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				store := checkpointtest.NewMemoryStore()
				s := setup{timeout: 9 * time.Hour, strategy: retryAgain(3, time.Minute), state: asyncop.State[string, string]{Retries: choice}}
				r := newCheckRig(t, m, s, store)
				r.script("a#1", func(*call) error { return errAgain })
				r.send("a")
				r.advance(time.Hour)
				r.save()
				_ = r.cut(errTestOver)
				r.advance(time.Hour)
				r = newCheckRig(t, m, s, store.Reopen())
				r.advance(time.Second)
				r.send("b")
				require.Equal(t, want, r.stats().OldestAge)
				require.EqualValues(t, 2, r.stats().InFlight)
				require.True(t, strings.HasPrefix(r.calls(), "a#"))
			})
		})
	}
}
