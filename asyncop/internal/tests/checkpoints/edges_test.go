package checkpoints_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/strategies"
)

// Checkpoints in rare situations: elements that emit nothing, user code that ends its
// goroutine, and each kind of end while elements wait outside of the slots.

// restart saves the elements, cancels their operator, and returns an operator that has
// restored them.
func restart(t *testing.T, m optest.Mode, elements string, s optest.Setup) *optest.CheckRig {
	t.Helper()
	store := checkpointtest.NewMemoryStore()
	r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 16}, optest.Setup{}, store)
	r.SendEach(elements)
	r.Save()
	_ = r.Cut(optest.ErrTestOver)
	r = optest.NewCheckRig(t, m, s, store.Reopen())
	synctest.Wait()
	return r
}

// endsEmpty are the ways in which an element can leave without a result.
var endsEmpty = map[string]func(r *optest.Rig, call string){
	"no result": func(r *optest.Rig, call string) { r.Complete(call) },
	"dropped":   func(r *optest.Rig, call string) { r.Fail(call, optest.ErrBroken) },
}

// An element that emits nothing frees its slot. Whatever waited for the slot happens
// immediately, because there may be no later event to wake the loop.
func TestElementsThatEmitNothingFreeTheLoop(t *testing.T) {
	for name, end := range endsEmpty {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				r := optest.NewCheckRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithDropOnFailure())}, nil)
				r.Send("a")
				b, done := r.Trigger(checkpoint.Drain)
				r.Send(b)
				end(r.Rig, "a#1")
				require.NoError(t, r.Finish(done))
				require.NoError(t, r.Wait(), "the end of the input behind it")

				r = optest.NewCheckRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithDropOnFailure())}, nil)
				r.Send("a")
				r.Barrier(1, participant.Drain) // without an earlier marker
				require.Equal(t, "none", r.State(1))
				end(r.Rig, "a#1")
				require.NoError(t, r.Wait(), "a drain barrier behind it")
			})
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				r := restart(t, m, "abc", optest.Setup{Opts: optest.Options(asyncop.WithDropOnFailure())})
				for _, call := range []string{"a#1", "b#1", "c#1"} {
					end(r.Rig, call)
				}
				r.Barrier(2, participant.Drain)
				require.NoError(t, r.Wait(), "restored elements behind it")
				require.Equal(t, "a#1 b#1 c#1", r.Calls())
			}, 1)
		})
	}
}

// Law A6: a panic does not prevent later events, here the end of the input, which waits
// until the backlog is empty.
func TestPanicInTheLastElementOfTheBacklog(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := restart(t, m, "ab", optest.Setup{Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Script("b#1", func(*optest.Call) error { panic("broken") })
		go func() { _ = r.Op.Stop(t.Context()) }()
		synctest.Wait()
		require.Equal(t, "a#1", r.Calls())
		r.Complete("a#1", "A")
		require.NoError(t, r.Wait())
		require.EqualValues(t, 1, r.Stats().Dropped)
		require.Equal(t, "A", r.Outputs())
	}, 1)
}

// Laws C1, Q1: a barrier waits only for the element that is being emitted, although
// downstream takes results faster than the loop checks for barriers.
func TestBarrierWaitsForOneElementOnly(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		slow := strategies.FixedDelay[string](1, 0).RetryIfResult(func(results []string) bool {
			if results[0] == "C" {
				time.Sleep(time.Second) // the loop is busy
			}
			return false
		})
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: time.Hour, Strategy: slow, Blocked: true, Opts: optest.Options(asyncop.WithBuffer(4)),
		}, nil)
		r.SendEach("abc")
		r.Complete("a#1", "A1", "A2", "A3", "A4", "A5", "A6")
		r.Complete("b#1", "B1", "B2")
		r.Barrier(1, participant.Periodic)
		require.Equal(t, "none", r.State(1))
		r.Call("c#1").Complete("C")
		synctest.Wait()
		for _, want := range []string{"A1", "A2", "A3", "A4"} { // four entries become free before the loop checks again
			require.Equal(t, want, <-r.Op.Out())
		}
		time.Sleep(time.Second)
		require.Equal(t, "b c", r.State(1))
		r.Unblock()
		require.Equal(t, "A5 A6 <1> B1 B2 C", r.Outputs())
	})
}

// codecOf returns a codec of strings that first calls encode or decode.
func codecOf(encode, decode func()) codec.Codec[string] {
	return codec.Func(
		func(dst []byte, v string) ([]byte, error) { encode(); return append(dst, v...), nil },
		func(b []byte) (string, error) { decode(); return string(b), nil },
	)
}

// Laws A1, D1: elements that a Suspend fails to save are abandoned. They are redelivered
// in the next run, so the failure sink does not get them.
func TestSuspendThatFailsAbandonsWhatIsInFlight(t *testing.T) {
	nothing := func() {}
	t.Run("not encoded", func(t *testing.T) {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			texts := codecOf(func() { panic("broken") }, nothing)
			r := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Inputs: texts}, Opts: optest.Options(asyncop.WithFailureSink(side.Take))}, nil)
			r.Send("a")
			b, done := r.Trigger(checkpoint.Suspend)
			r.Send(b)
			require.Error(t, <-done)
			require.ErrorContains(t, r.Wait(), "1 element in flight")
			require.Empty(t, side.Elements())
			require.EqualValues(t, 1, r.Stats().Abandoned)
			optest.CheckBalance(t, r.Stats())
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.Take))}, nil)
			r.Send("a")
			b, _ := r.Trigger(checkpoint.Suspend)
			r.Send(b) // cannot leave
			require.ErrorIs(t, r.Cut(optest.ErrBroken), optest.ErrBroken)
			require.Empty(t, side.Elements())
			require.EqualValues(t, 1, r.Stats().Abandoned)
			optest.CheckBalance(t, r.Stats())
		})
	})
}

// A codec that is slow to encode the final state does not keep calls running, nor does it
// prevent a cancel from ending them.
func TestSuspendEndsCallsBeforeItIsEncoded(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		release := make(chan struct{})
		texts := codecOf(func() { <-release }, func() {})
		r := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Inputs: texts}}, nil)
		r.Send("a")
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send(b)
		synctest.Wait()
		require.Error(t, r.Call("a#1").Ctx.Err())
		require.Nil(t, r.Op.Err())
		r.Cancel(optest.ErrTestOver)
		synctest.Wait()
		require.ErrorIs(t, r.Op.Err(), optest.ErrTestOver)
		close(release)
		require.Error(t, <-done)
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
	})
}

// Law C3: the cancel that follows from a lost final state does not hide it, although
// downstream holds the barrier back.
func TestWithCheckpoints_LostStateCancelsTheOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		texts := codecOf(func() { panic(optest.ErrBroken) }, func() {})
		r := optest.NewCheckRig(t, m, optest.Setup{
			Blocked: true, State: asyncop.State[string, string]{Inputs: texts}, Opts: optest.Options(asyncop.WithBuffer(0)),
		}, nil)
		r.Send("a")
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send(b) // cannot leave: the coordinator's run ends first and cancels the operator
		require.ErrorIs(t, <-done, optest.ErrBroken)
		err := r.Wait()
		require.ErrorContains(t, err, "asyncop: state of final checkpoint 1: ")
		require.NotContains(t, err.Error(), "asyncop: checkpoints: ", "what follows from it")
	})
}

// Law A6: a codec that breaks aborts the checkpoint, whose error names the operator. It
// has no other effect.
func TestCodecThatBreaksAbortsTheCheckpoint(t *testing.T) {
	nothing := func() {}
	for _, b := range optest.Breakages {
		for name, state := range map[string]func(c codec.Codec[string]) asyncop.State[string, string]{
			"input": func(c codec.Codec[string]) asyncop.State[string, string] {
				return asyncop.State[string, string]{Inputs: c}
			},
			"result": func(c codec.Codec[string]) asyncop.State[string, string] {
				return asyncop.State[string, string]{Results: c}
			},
		} {
			t.Run(name+"/"+b.Name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					breaks := b.Breaks
					texts := codecOf(func() { breaks() }, nothing)
					r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, State: state(texts), Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
					r.Send("a")
					r.Complete("a#1", "A")
					barrier, done := r.Trigger(checkpoint.Periodic)
					r.Send(barrier)
					err := <-done
					requireBroken(t, err, b.Value)
					breaks = nothing
					r.Save()
					r.Unblock()
					require.Equal(t, "<1> <2> A", r.Outputs())
				})
			})
		}
	}
}

// Law A6: a codec that breaks when the operator is built makes Start fail. It does not
// break the caller of the constructor.
func TestCodecThatBreaksRefusesStart(t *testing.T) {
	for _, b := range optest.Breakages {
		t.Run(b.Name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				store := checkpointtest.NewMemoryStore()
				plain := asyncop.State[string, string]{Inputs: codecOf(func() {}, func() {})}
				r := optest.NewCheckRig(t, m, optest.Setup{State: plain}, store)
				r.Send("a")
				r.Save()
				_ = r.Cut(optest.ErrTestOver)

				c := optest.Must(checkpoint.NewCoordinator(store.Reopen()))
				c.Host().Register("feed", optest.BarrierFeed{})
				broken := asyncop.State[string, string]{Inputs: codecOf(func() {}, b.Breaks)}
				op := optest.Construct[string, string](m, optest.NewHand(t), 0, nil, asyncop.WithName("op"), asyncop.WithCheckpoints(c, broken))
				requireBroken(t, c.Start(), b.Value)
				requireBroken(t, op.Wait(), b.Value)
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

// Law F1: elements that were read but never had a slot are counted as discarded when the
// operator ends. Watermarks and elements in a checkpoint are not counted.
func TestElementsWithoutASlotAreDiscarded(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := optest.NewTally(t)
		r := optest.NewCheckRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithObserver(o))}, nil)
		r.Send("a")
		_, done := r.Trigger(checkpoint.Periodic)
		r.Send("b", optest.Mark(1), "c") // read past the capacity
		require.ErrorIs(t, r.Cut(optest.ErrBroken), optest.ErrBroken)
		require.Error(t, <-done)
		require.Equal(t, map[observe.EndKind]int{observe.Abandoned: 1, observe.Discarded: 2}, o.Over, "law O1")
		require.EqualValues(t, 1, r.Stats().Accepted)
		require.EqualValues(t, 2, r.Stats().Discarded)
		optest.CheckBalance(t, r.Stats())
	}, 1)
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := restart(t, m, "abc", optest.Setup{})
		require.ErrorIs(t, r.Cut(optest.ErrBroken), optest.ErrBroken)
		require.EqualValues(t, 1, r.Stats().Accepted)
		require.EqualValues(t, 2, r.Stats().Discarded)
	}, 1)
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{}, nil)
		r.Send("a")
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send("b", b)
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())
		require.Zero(t, r.Stats().Discarded)
	}, 1)
}

// After a Suspend no element is in flight, whatever its phase was. The elements are in
// the checkpoint.
func TestStatsAfterASuspend(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: time.Hour, Strategy: optest.RetryAgain(3, time.Minute), Blocked: true,
			Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.Take)),
		}, nil)
		r.Script("f#1", optest.Fails)                                        // failing
		r.Script("b#1", func(*optest.Call) error { return optest.ErrAgain }) // in back-off
		r.Script("c#1", optest.Upper)                                        // complete
		r.Script("e#1", optest.Empty)                                        // complete, without a result
		r.Send("a", "f", "b", "c", "e")
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send(b)
		require.NoError(t, <-done)
		side.Unblock()
		require.NoError(t, r.Wait())
		s := r.Stats()
		require.Zero(t, s.InFlight)
		require.Zero(t, s.Running)
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.HandedOver)
		require.EqualValues(t, 4, s.Abandoned)
		require.EqualValues(t, 1, s.Completed)
		require.Zero(t, s.OldestAge)
		optest.CheckBalance(t, s)
	})
}

// The age of a restored element includes the time before the restart to the extent that
// its timeout does.
func TestOldestAgeOfRestoredElements(t *testing.T) {
	for choice, want := range map[asyncop.RetryState]time.Duration{
		asyncop.RetryState(0): time.Second, asyncop.TimeSpent: time.Hour + time.Second, asyncop.LatencyFirst: 2*time.Hour + time.Second,
	} {
		t.Run(choice.String(), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				store := checkpointtest.NewMemoryStore()
				s := optest.Setup{Timeout: 9 * time.Hour, Strategy: optest.RetryAgain(3, time.Minute), State: asyncop.State[string, string]{Retries: choice}}
				r := optest.NewCheckRig(t, m, s, store)
				r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
				r.Send("a")
				r.Advance(time.Hour)
				r.Save()
				_ = r.Cut(optest.ErrTestOver)
				r.Advance(time.Hour)
				r = optest.NewCheckRig(t, m, s, store.Reopen())
				r.Advance(time.Second)
				r.Send("b")
				require.Equal(t, want, r.Stats().OldestAge)
				require.EqualValues(t, 2, r.Stats().InFlight)
				require.True(t, strings.HasPrefix(r.Calls(), "a#"))
			})
		})
	}
}
