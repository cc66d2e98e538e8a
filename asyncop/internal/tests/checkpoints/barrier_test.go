package checkpoints_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/strategies"
)

// Law C1.
func TestCheckpointHoldsWhatIsNotSettled(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(3, time.Hour),
			Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(2)),
		}, nil)
		r.Script("b#1", optest.Upper)                                             // completed
		r.Script("i#1", optest.Upper)                                             // completed
		r.Script("c#1", func(*optest.Call) error { return optest.ErrAgain })      // in back-off
		r.Script("d#1", optest.Empty)                                             // ended empty
		r.Script("e#1", optest.Fails)                                             // dropped
		r.Script("r#1", func(*optest.Call) error { return optest.ErrAgain })      // its retry waits for a permit
		r.Send("a", "b", optest.Mark(1), "i", "c", "d", "e", "r", optest.Mark(2)) // a runs
		r.Advance(30 * time.Minute)                                               //
		r.Send("x#")                                                              // runs
		r.Advance(30 * time.Minute)                                               //
		r.Send("f", optest.Mark(3), optest.Mark(4))                               // waits for a permit
		require.Equal(t, "a#1 b#1 i#1 c#1 d#1 e#1 r#1 x##1", r.Calls())
		r.Barrier(1, participant.Periodic)
		require.Equal(t, m.Pick("a b |1| i c#1 r#1 |2| x# f |3| |4|", "a |1| i c#1 r#1 |2| x# f |3| |4|"), r.State(1))
		require.Equal(t, m.Pick("<1>", "B <1>"), r.Outputs(), "the barrier passes at once, ahead of what is queued")

		r.Complete("a#1", "A")
		require.Equal(t, m.Pick("<1> A B |1| I", "B <1> A |1| I"), r.Outputs())
		r.Barrier(2, participant.Periodic) // c runs its retry now, under the permit of a
		require.Equal(t, "c#1 r#1 |2| x# f |3| |4|", r.State(2))
		for _, name := range []string{"c#2", "r#2", "x##1", "f#1"} {
			r.Complete(name, strings.ToUpper(name[:1]))
		}
		require.Equal(t, m.Pick("<1> A B |1| I <2>", "B <1> A |1| I <2>")+" C R |2| X F |3| |4|", r.Outputs())
		r.Barrier(3, participant.Drain)
		require.Empty(t, r.State(3))
		require.NoError(t, r.Wait())
		optest.CheckBalance(t, r.Stats())
	})
}

func TestCheckpointHoldsFailingAndHandledElements(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		answer := make(chan struct{})
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: time.Second,
			Opts:    optest.Options(asyncop.WithFailureSink(side.Take)),
			Wrap: optest.WithHandler(func(_ context.Context, in string) ([]string, error) {
				<-answer
				return []string{"late " + in}, nil
			}),
		}, nil)
		r.Send("h")
		r.Advance(time.Second) // its handler runs
		r.Script("x#1", optest.Fails)
		r.Script("y#1", optest.Fails)
		r.Send("x", "y", "a")
		r.Barrier(1, participant.Periodic)
		require.Equal(t, "h x y a", r.State(1))
		side.Unblock()
		require.Equal(t, "x y", side.Elements())
		r.Barrier(2, participant.Periodic)
		require.Equal(t, "h a", r.State(2))
		close(answer)
		synctest.Wait()
		r.Barrier(3, participant.Periodic)
		require.Equal(t, "a", r.State(3))
		require.Equal(t, "<1> <2> late h <3>", r.Outputs())
	})
}

// Law Q1: a barrier waits for an element that is partly emitted. It precedes an element
// of which no result was emitted.
func TestBarrierDoesNotSplitAnElement(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		r.Send("a", "b", "c")
		r.Complete("a#1", "A1", "A2", "A3")
		r.Complete("b#1", "B1", "B2")
		require.Equal(t, "A1", <-r.Op.Out())
		r.Barrier(1, participant.Periodic)
		require.Equal(t, "none", r.State(1))
		require.Equal(t, "A2", <-r.Op.Out())
		require.Equal(t, "none", r.State(1))
		require.Equal(t, "A3", <-r.Op.Out())
		require.Equal(t, "b c", r.State(1))
		require.Equal(t, uint64(1), (<-r.Op.Out()).(participant.Barrier).ID)
		synctest.Wait() // B1 is ready to be received
		r.Barrier(2, participant.Periodic)
		require.Equal(t, "b c", r.State(2))
		r.Barrier(3, participant.Periodic) // two wait for downstream
		require.Equal(t, "b c", r.State(3))
		r.Complete("c#1", "C")
		r.Unblock()
		require.Equal(t, "<2> <3> B1 B2 C", r.Outputs())
		r.Barrier(4, participant.Drain)
		require.NoError(t, r.Wait())
	})
}

func TestBarrierGoesBeforeAWatermarkOnOffer(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		r.Send(optest.Mark(1), "a")
		r.Barrier(1, participant.Periodic)
		require.Equal(t, "|1| a", r.State(1))
		r.Unblock()
		require.Equal(t, "<1> |1|", r.Outputs())
	})
}

// A barrier passes a full queue: a bounded number of elements overflow, are part of the
// checkpoint, and keep their order.
func TestFullQueueOverflowsForABarrier(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Overflow: 2}, Opts: optest.Options(asyncop.WithBuffer(0))}, store)
		r.Send("a", "b")
		sent := make(chan any)
		go func() {
			for v := range sent {
				r.Op.In() <- v
			}
		}()
		defer close(sent)
		offer := func(v any) bool {
			synctest.Wait()
			select {
			case sent <- v:
				synctest.Wait()
				return true
			default:
				return false
			}
		}
		require.True(t, offer("c"))
		require.False(t, offer("d"), "no barrier is expected: backpressure")
		b, done := r.Trigger(checkpoint.Periodic)
		require.True(t, offer(optest.Mark(1)))
		require.True(t, offer("d"))
		require.True(t, offer(b), "it waits: the overflow is full")
		synctest.Wait()
		require.Empty(t, done)
		require.Equal(t, "a#1 b#1", r.Calls(), "the overflow is not started")
		r.Complete("a#1", "A")
		require.NoError(t, <-done)
		require.Equal(t, m.Pick("b c |1| d", "b c |1| d"), optest.StateIn(t, store, nil))
		require.True(t, offer("e"))
		require.False(t, offer("f"), "backpressure again")
		r.Complete("c#1", "C")
		r.Complete("b#1", "B")
		r.Complete("d#1", "D")
		r.Complete("e#1", "E")
		require.Equal(t, m.Pick("A <1> B C |1| D E", "A <1> C B |1| D E"), r.Outputs())
	}, 2)
}

// A barrier passes a full queue behind as many elements as Overflow allows. In its place,
// one more element may be read.
func TestOverflowIsExact(t *testing.T) {
	for n := range 3 {
		t.Run(fmt.Sprintf("n=%d", n), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				overflow := cmp.Or(n, -1)
				setting := optest.Setup{State: asyncop.State[string, string]{Overflow: overflow}, Opts: optest.Options(asyncop.WithBuffer(0))}
				start := func() (r *optest.CheckRig, b participant.Barrier, done <-chan error) {
					r = optest.NewCheckRig(t, m, setting, nil)
					r.Send("a")
					b, done = r.Trigger(checkpoint.Periodic)
					for range n {
						r.Send("x")
					}
					return r, b, done
				}
				r, b, done := start()
				r.Send(b)
				require.NoError(t, <-done)
				require.NoError(t, r.Coordinator.Close())

				r, b, done = start()
				r.Send("y") // in place of the barrier
				sent := make(chan struct{})
				go func() { r.Op.In() <- b; close(sent) }()
				synctest.Wait()
				require.Empty(t, done)
				select {
				case <-sent:
					t.Fatal("read past the overflow")
				default:
				}
				r.Complete("a#1", "A")
				require.NoError(t, <-done)
				<-sent
				require.NoError(t, r.Coordinator.Close())
			}, 1)
		})
	}
}

func TestAbortedCheckpointEndsTheOverflow(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		r.Send("a")
		go func() { _, _ = r.Coordinator.Trigger(ctx) }()
		b := <-r.Pending
		r.Send("b", "c")
		cancel()
		synctest.Wait()
		sent := make(chan struct{})
		go func() { r.Op.In() <- "d"; r.Op.In() <- b; close(sent) }()
		synctest.Wait()
		select {
		case <-sent:
			t.Fatal("read past the capacity without a checkpoint")
		default:
		}
		for _, n := range []string{"a#1", "b#1", "c#1", "d#1"} {
			r.Complete(n, n)
		}
		<-sent
		require.Equal(t, "a#1 b#1 c#1 d#1 <1>", r.Outputs())
	}, 1)
}

func TestDrainWaitsForWhatIsInFlight(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, optest.Setup{}, store)
		r.Send("a", "b", optest.Mark(1))
		b, done := r.Trigger(checkpoint.Drain)
		r.Send("c", b) // c overflows
		require.Empty(t, done)
		r.Advance(24 * time.Hour) // not bounded
		require.Empty(t, done)
		r.Complete("b#1", "B")
		r.Complete("a#1", "A")
		r.Complete("c#1", "C")
		require.NoError(t, r.Finish(done))
		require.Equal(t, m.Pick("A B |1| C", "B A |1| C")+" <end> <2>", r.Outputs())
		require.NoError(t, r.Wait(), "it ends without In being closed")
		require.NoError(t, r.Coordinator.Err())
		require.Empty(t, optest.StateIn(t, store, nil))
	}, 3)
}

func TestSuspendBarrierLeavesEverythingToTheCheckpoint(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		side := optest.NewSideSink(true)
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.Take))}, store)
		r.Script("x#1", optest.Fails)
		r.Send("a", "x", "b")
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send("o", "p", b)
		require.NoError(t, <-done)
		side.Unblock()
		r.Complete("a#1", "A")
		r.Unblock()
		require.Equal(t, "<1>", r.Outputs(), "nothing follows the barrier")
		require.NoError(t, r.Wait())
		require.NoError(t, r.Coordinator.Err())
		require.Equal(t, "a x b o p", optest.StateIn(t, store, nil))
		require.Empty(t, side.Elements(), "they will be called again")

		again := optest.NewCheckRig(t, m, optest.Setup{}, store.Reopen())
		require.Equal(t, "a#1 x#1 b#1", again.Calls())
	}, 3)
}

// While a suspend barrier waits for downstream, no call starts, and events have no
// effect, because all elements are processed again after the restart.
func TestSuspend_NoCallAfterTheBarrier(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		handled := 0
		r := optest.NewCheckRig(t, m, optest.Setup{
			Blocked: true, Timeout: time.Minute, Strategy: optest.RetryAgain(3, time.Second),
			Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(2), asyncop.WithAttemptTimeout(5*time.Second)),
			Wrap: optest.WithHandler(func(context.Context, string) ([]string, error) { handled++; return nil, nil }),
		}, store)
		r.Script("r#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("r", "a", "b", "c") // r is in back-off, c waits for a permit
		require.Equal(t, "r#1 a#1 b#1", r.Calls())
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send(b)
		require.NoError(t, <-done)
		r.Complete("a#1", "A") // its permit is free now
		r.Fail("b#1", optest.ErrBroken)
		r.Advance(time.Hour)
		require.Equal(t, "r#1 a#1 b#1", r.Calls())
		require.Zero(t, handled)
		r.Unblock()
		require.NoError(t, r.Wait(), "b's failure came too late")
		require.Equal(t, "<1>", r.Outputs())
		require.EqualValues(t, 4, r.Stats().Abandoned)
		optest.CheckBalance(t, r.Stats())
		require.Equal(t, "r#1 a b c", optest.StateIn(t, store, nil))
	})
}

// Nor does a blocking call of an element that was accepted in the step of the barrier.
func TestSuspend_NoBlockingCallAfterTheBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		c.Host().Register("feed", optest.BarrierFeed{Barriers: make(chan participant.Barrier, 1)})
		var calls atomic.Int32
		busy, gate := make(chan struct{}), make(chan struct{})
		fn := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
			calls.Add(1)
			if in == "busy" {
				<-busy
			}
			return in, nil
		})
		hold := strategies.FixedDelay[string](1, time.Second).RetryIfResult(func(r []string) bool {
			if r[0] == "holds the loop" {
				<-gate
			}
			return false
		})
		op := asyncop.UnorderedWaitWithRetry(fn, time.Minute, 8, hold,
			asyncop.WithBuffer(3), asyncop.WithName("op"), asyncop.WithCheckpoints(c))
		require.NoError(t, c.Start())
		for _, in := range []string{"1", "2", "3", "busy", "holds the loop"} { // Out is full then
			op.In() <- in
			synctest.Wait()
		}
		r := &optest.Reports{T: t, States: map[uint64]string{}}
		op.In() <- "a"
		op.In() <- "b"
		op.In() <- participant.NewBarrier(1, participant.Suspend, r)
		close(gate)
		require.Equal(t, "busy holds the loop a b", r.State(1))
		close(busy) // its worker becomes free while the barrier waits for space in Out
		synctest.Wait()
		require.EqualValues(t, 5, calls.Load())
		close(op.In())
		for range op.Out() {
		}
		require.NoError(t, op.Wait())
		synctest.Wait()
		require.EqualValues(t, 5, calls.Load())
		require.Zero(t, op.Stats().Running)
		require.NoError(t, c.Close())
	})
}

func TestCancelWhileASuspendBarrierWaits(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		r.Send("a", participant.NewBarrier(1, participant.Suspend, r.Reports))
		require.Equal(t, "a", r.State(1))
		require.ErrorIs(t, r.Cut(optest.ErrBroken), optest.ErrBroken)
		require.ErrorIs(t, r.Coordinator.Wait(), optest.ErrBroken)
	})
}

// If its state cannot be encoded, a suspended operator has lost the elements in flight.
// It returns an error that reports this.
func TestSuspendWhoseStateCannotBeEncoded(t *testing.T) {
	for name, encode := range map[string]func() error{
		"broken":                func() error { return optest.ErrBroken },
		"asyncop: panic":        func() error { panic("no") },
		guard.ErrGoexit.Error(): func() error { runtime.Goexit(); return nil },
	} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			texts := failingCodec{codec.Default[string](), encode}
			r := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Inputs: texts}}, nil)
			r.Send("a", "b")
			b, done := r.Trigger(checkpoint.Periodic)
			r.Send(b)
			require.ErrorContains(t, <-done, name)
			require.NoError(t, r.Op.Err(), "the pipeline goes on")
			b, done = r.Trigger(checkpoint.Suspend)
			r.Send(b)
			require.ErrorContains(t, <-done, name)
			err := r.Wait()
			require.ErrorContains(t, err, "ended with 2 elements in flight: asyncop: state of final checkpoint 2: ")
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, r.Coordinator.Wait(), name)
			require.Equal(t, "<1> <2>", r.Outputs())
		})
	}
}

type failingCodec struct {
	codec.Codec[string]
	encode func() error
}

func (c failingCodec) Append([]byte, string) ([]byte, error) { return nil, c.encode() }

func TestBarrierWaitsItsTurnWithoutCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Send("a", participant.NewBarrier(1, participant.Periodic, nil), "b", participant.NewBarrier(2, participant.Drain, nil))
		r.Complete("b#1", "B")
		require.Empty(t, r.Outputs())
		r.Complete("a#1", "A")
		require.Equal(t, "A barrier 1 (periodic) B barrier 2 (drain)", r.Outputs())
		require.NoError(t, r.End())
	})
}

func TestOperatorFailureFailsTheCoordinator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		r.Script("x#1", optest.Fails)
		b, done := r.Trigger(checkpoint.Periodic)
		r.Send("a", b) // taken, but not sent on when x fails
		require.NoError(t, <-done)
		r.Send("x")
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.ErrorIs(t, r.Coordinator.Wait(), optest.ErrBroken)
		require.ErrorContains(t, r.Coordinator.Err(), `"op"`)
		require.Empty(t, r.Outputs(), "no barrier after a failure")
	})
}

func TestInputEndWithoutFinalBarrierFailsTheCoordinator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{}, nil)
		r.Script("a#1", optest.Upper)
		r.Send("a")
		require.ErrorContains(t, r.End(), "asyncop: the input ended without a final barrier")
		require.ErrorContains(t, r.Coordinator.Wait(), `"op" failed: asyncop: the input ended without a final barrier`)
	})
}

func TestCancelFailsTheCoordinator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{}, nil)
		r.Send("a")
		b, done := r.Trigger(checkpoint.Drain)
		r.Send(b)
		require.ErrorIs(t, r.Cut(optest.ErrBroken), optest.ErrBroken)
		require.ErrorIs(t, <-done, optest.ErrBroken)
		require.ErrorIs(t, r.Coordinator.Wait(), optest.ErrBroken)
	})
}

// If everything is cancelled, upstream may notice first and close In. The error of the
// run is still the cancel, not the closed input.
func TestCancelThatUpstreamNoticesFirst(t *testing.T) {
	for range 20 {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewCheckRig(t, m, optest.Setup{}, nil)
			synctest.Wait()            // parked
			r.Cancel(optest.ErrBroken) // a goroutine passes it on to the loop
			r.EndInputOnce()
			_ = r.Wait()
			require.ErrorIs(t, r.Coordinator.Wait(), optest.ErrBroken)
		})
	}
}

// unopened is a function that must be neither opened nor closed.
type unopened struct {
	optest.Function
	t *testing.T
}

func (u unopened) Open(context.Context) error { u.t.Error("it is opened"); return nil }
func (u unopened) Close() error               { u.t.Error("it is closed"); return nil }

// notStarted returns an operator whose coordinator is not started.
func notStarted(t *testing.T, ctx context.Context) (*optest.Operator, *checkpoint.Coordinator) {
	t.Helper()
	c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	op := asyncop.OrderedWait[string, string](unopened{optest.NewHand(t), t}, 0, 1, asyncop.WithName("op"), asyncop.WithCheckpoints(c),
		asyncop.WithContext(ctx))
	t.Cleanup(func() { close(op.In()); <-op.Done(); _ = c.Close() })
	return op, c
}

func TestOperatorThatIsNotStarted(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			op, c := notStarted(t, t.Context())
			op.In() <- "a"
			require.NoError(t, c.Close())
			require.ErrorIs(t, op.Wait(), checkpoint.ErrClosed)
			require.Zero(t, op.Stats().Accepted)
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			op, c := notStarted(t, ctx)
			synctest.Wait()
			cancel(optest.ErrBroken)
			require.ErrorIs(t, op.Wait(), optest.ErrBroken)
			require.ErrorIs(t, c.Wait(), optest.ErrBroken)
		})
	})
	t.Run("stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			op, _ := notStarted(t, t.Context())
			synctest.Wait()
			require.ErrorIs(t, op.Stop(t.Context()), asyncop.ErrStopped)
		})
	})
	t.Run("stopped at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			op, _ := notStarted(t, t.Context())
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, op.Stop(ctx))
		})
	})
}

func TestCheckpointsRefuseFlowsThatCannotPassBarriers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, _ := notStarted(t, t.Context())
		id := func(s string) string { return s }
		m := flow.NewMap(id, 1)
		require.PanicsWithValue(t, "asyncop: Via: a *flow.Map[string,string] cannot pass checkpoint barriers; "+
			"package weir/flow has flows that can", func() { op.Via(m) })
		close(m.In())
		require.Panics(t, func() { op.To(&extension.FileSink{}) })
		next := weirflow.NewMap(id)
		require.NotPanics(t, func() { op.Via(next) })
		require.Panics(t, func() { next.Via(m) })
	})
}

type plainStrategy struct {
	strategies.AsyncRetryStrategy[string]
}

type negativeStrategy struct {
	strategies.AsyncRetryStrategy[string]
}

func (negativeStrategy) MaxRetries() int { return -1 }

func TestCheckpointOptionsPanic(t *testing.T) {
	c := optest.Must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore()))
	build := func(s optest.Strategy, opts ...asyncop.Option) func() {
		return func() {
			asyncop.OrderedWaitWithRetry[string, string](optest.NewHand(t), time.Second, 1, s, append(opts, asyncop.WithCheckpoints(c))...)
		}
	}
	name := asyncop.WithName("op")
	ints := codec.Default[int]()
	for want, f := range map[string]func(){
		"needs WithName": build(optest.RetryAll(1, 0)),
		"LatencyFirst":   build(plainStrategy{optest.RetryAll(1, 0)}, name, asyncop.WithCheckpoints(c, asyncop.State[string, string]{Retries: asyncop.LatencyFirst})),
		"MaxRetries() of checkpoints_test.negativeStrategy is negative: -1": build(
			negativeStrategy{optest.RetryAll(1, 0)}, name, asyncop.WithCheckpoints(c, asyncop.State[string, string]{Retries: asyncop.LatencyFirst})),
		"not a codec for the inputs, of type string":  build(optest.RetryAll(1, 0), name, asyncop.WithCheckpoints(c, asyncop.State[int, string]{Inputs: ints})),
		"not a codec for the results, of type string": build(optest.RetryAll(1, 0), name, asyncop.WithCheckpoints(c, asyncop.State[string, int]{Results: ints})),
		"nil coordinator":              func() { asyncop.WithCheckpoints(nil) },
		"unknown choice RetryState(3)": build(optest.RetryAll(1, 0), name, asyncop.WithCheckpoints(c, asyncop.State[string, string]{Retries: 3})),
		"WithCheckpoints needs a codec for the inputs": func() {
			fn := asyncop.Func(func(context.Context, *func(), asyncop.ResultFuture[*func()]) error { return nil })
			asyncop.OrderedWait(fn, 0, 1, name, asyncop.WithCheckpoints(c))
		},
	} {
		func() {
			defer func() { require.Contains(t, recover(), want) }()
			f()
		}()
	}
	require.NoError(t, c.Close())
}

// The marker of the end of the input is read past the capacity until it arrives, even if
// checkpoints are aborted meanwhile. No back-off runs to its end after it.
func TestMarkerOverflowsAlthoughACheckpointIsAborted(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: time.Hour, Strategy: optest.RetryAgain(3, time.Minute), Opts: optest.Options(asyncop.WithBuffer(0)),
		}, nil)
		r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
		r.Send("a")
		marker, done := r.Trigger(checkpoint.Drain)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = r.Coordinator.Trigger(ctx) }()
		<-r.Pending
		synctest.Wait()
		cancel()
		synctest.Wait()
		r.Send("b", marker)
		require.Equal(t, "a#1 a#2", r.Calls(), "one last attempt, at once")
		r.Complete("a#2", "A")
		r.Complete("b#1", "B")
		require.NoError(t, r.Finish(done))
		require.NoError(t, r.Wait())
	}, 1)
}
