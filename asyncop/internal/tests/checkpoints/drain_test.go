package checkpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
)

// After the end of the input, checkpoints continue as long as elements are in flight.

// longWaits configures an operator whose elements are in back-off for an hour, even at
// the end of the input.
func longWaits(opts ...asyncop.Option) optest.Setup {
	return optest.Setup{
		Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(9, time.Hour),
		Opts: append(opts, asyncop.WithDrainRetries()),
	}
}

func again(*optest.Call) error { return optest.ErrAgain }

// Law C1.
func TestCheckpointsDuringADrain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, longWaits(asyncop.WithDropOnFailure()), store)
		r.Script("a#1", again)
		r.Script("b#1", optest.Upper)
		r.Script("d#1", optest.Fails)
		r.Script("e#1", optest.Empty)
		r.Send("a", "b", optest.Mark(1), "c", "d", "e")
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		r.Save()
		require.Equal(t, m.Pick("a#1 b |1| c", "a#1 |1| c"), optest.StateIn(t, store, nil))
		r.Advance(time.Hour)
		r.Complete("a#2", "A")
		r.Save()
		require.Equal(t, "c", optest.StateIn(t, store, nil))
		r.Complete("c#1", "C")
		require.NoError(t, r.Finish(done))
		require.NoError(t, r.Wait())
		require.NoError(t, r.Coordinator.Err())
		require.Equal(t, m.Pick("<2> A B |1| <3> C", "B <2> A |1| <3> C")+" <end> <4>", r.Outputs())
		require.Empty(t, optest.StateIn(t, store, nil))
		optest.CheckBalance(t, r.Stats())
	})
}

// Law A5: without WithDrainRetries, the marker counts as the end of the input for
// retries. It is read even if no slot is free.
func TestEndOfInputMarkerEndsRetries(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, optest.Setup{
			Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(9, time.Hour),
			Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithBuffer(0)),
		}, store)
		r.Script("a#1", again)
		r.Script("b#1", again)
		r.Send("a", "b")
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		require.Equal(t, "a#1 b#1 a#2 b#2", r.Calls(), "one last attempt, at once")
		r.Save()
		require.Equal(t, "a b", strings.ReplaceAll(optest.StateIn(t, store, nil), "#1", ""))
		r.Fail("a#2", optest.ErrAgain)
		r.Complete("b#2", "B")
		require.NoError(t, r.Finish(done))
		require.NoError(t, r.Wait())
		require.Equal(t, "a#1 b#1 a#2 b#2", r.Calls())
		require.Equal(t, "<2> B <end> <3>", r.Outputs())
		require.EqualValues(t, 1, r.Stats().Dropped)
	}, 2, 16)
}

// Restored elements wait for their slots, and the marker waits behind them. The marker is
// in no checkpoint.
func TestEndOfInputBehindRestoredElements(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 9}, longWaits(), store)
		r.SendEach("abc")
		r.Save()
		_ = r.Cut(optest.ErrTestOver)
		store = store.Reopen()
		r = optest.NewCheckRig(t, m, longWaits(), store)
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		r.Save()
		require.Equal(t, "a b c", optest.StateIn(t, store, nil))
		for _, name := range []string{"a", "b"} {
			r.Complete(name+"#1", name)
		}
		r.Save()
		require.Equal(t, "c", optest.StateIn(t, store, nil))
		r.Complete("c#1", "c")
		require.NoError(t, r.Finish(done))
		require.Equal(t, "<3> a b <4> c <end> <5>", r.Outputs())
		require.NoError(t, r.Wait())
	}, 1, 2)
}

// Law A5: the input has ended for elements without a slot, too.
func TestEndOfInputMarkerEndsRetriesOfTheBacklog(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := optest.Setup{Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(9, time.Hour), Opts: optest.Options(asyncop.WithDropOnFailure())}
		r := restart(t, m, "abc", s)
		r.Fail("a#1", optest.ErrAgain)
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		require.Equal(t, "a#1 a#2", r.Calls())
		for _, name := range []string{"a#2", "b#1", "c#1"} {
			r.Fail(name, optest.ErrAgain)
		}
		require.NoError(t, r.Finish(done))
		require.Equal(t, "a#1 a#2 b#1 c#1", r.Calls())
	}, 1)
}

// Barriers overtake the marker even while it waits for downstream. The marker is reported
// when downstream has it.
func TestBarrierOvertakesTheEndOfInput(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		r.Barrier(1, participant.EndOfInput)
		r.Barrier(2, participant.Periodic)
		require.Empty(t, r.State(2))
		require.Equal(t, "none", r.State(1))
		r.Unblock()
		require.Equal(t, "<2> <end>", r.Outputs())
		require.Equal(t, "passed", r.State(1))
		r.Barrier(3, participant.Drain)
		require.NoError(t, r.Wait())
	})
}

func TestDrainWhileACheckpointIsPending(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, longWaits(), store)
		r.Script("a#1", again)
		r.Script("a#2", optest.Upper)
		r.Send("a")
		b, first := r.Trigger(checkpoint.Periodic)
		r.Coordinator.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		require.Empty(t, r.Pending, "its turn is after the checkpoint's")
		r.Send(b)
		require.NoError(t, <-first)
		r.Send(<-r.Pending)
		r.Save()
		require.Equal(t, "a#1", optest.StateIn(t, store, nil))
		r.Advance(time.Hour)
		r.Send(<-r.Pending)
		require.NoError(t, r.Coordinator.Wait())
		require.NoError(t, r.Wait())
		require.Equal(t, "<1> <3> A <end> <4>", r.Outputs())
	})
}

func TestSuspendDuringADrain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, longWaits(), store)
		r.Script("a#1", again)
		r.Send("a", "b")
		marker, drained := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send(b)
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())
		require.NoError(t, r.Coordinator.Err())
		require.ErrorContains(t, <-drained, "the stream has ended")
		require.Equal(t, "<2>", r.Outputs(), "the marker is behind what is in flight")
		require.Equal(t, "a#1 b", optest.StateIn(t, store, nil))

		r = optest.NewCheckRig(t, m, longWaits(), store.Reopen())
		require.Equal(t, "b#1", r.Calls())
		r.Advance(time.Hour) // a's back-off (law C3)
		require.Equal(t, "b#1 a#1", r.Calls())
	})
}

func TestFailureDuringADrain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := optest.NewCheckRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithUpstreamCancel(cancel))}, nil)
		r.Send("a", "b")
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		r.Complete("b#1", "B")
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.ErrorIs(t, <-done, optest.ErrBroken)
		require.ErrorIs(t, r.Coordinator.Wait(), optest.ErrBroken)
		require.ErrorIs(t, context.Cause(ctx), optest.ErrBroken, "upstream still has barriers to send")
		require.Equal(t, m.Pick("", "B"), r.Outputs())
	})
}

// If the input is closed after the marker, without a final barrier, the stream was
// aborted.
func TestInputEndDuringADrain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{}, nil)
		r.Send("a")
		r.Barrier(1, participant.EndOfInput)
		require.ErrorContains(t, r.End(), "without a final barrier")
		require.Empty(t, r.Outputs(), "a comes again in the next run")
		require.ErrorContains(t, r.Coordinator.Wait(), "without a final barrier")
	})
}

// Law D1: for an operator without checkpoints, too, a Suspend is not the end of the
// input. Elements that wait for a retry continue.
func TestSuspendWithoutCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(9, time.Hour), Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Script("a#1", again)
		r.Script("a#2", again)
		r.Script("a#3", optest.Upper)
		r.Send("a", participant.NewBarrier(1, participant.Suspend, nil))
		r.EndInput()
		require.Equal(t, "a#1", r.Calls())
		r.Advance(2 * time.Hour)
		require.Equal(t, "a#1 a#2 a#3", r.Calls())
		require.NoError(t, r.Wait())
		require.Equal(t, "A barrier 1 (suspend)", r.Outputs())
	})
}

// Law C2: an operator without checkpoints also refuses a barrier that arrives twice.
func TestBarrierTwiceWithoutCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Hour})
		r.Send(participant.NewBarrier(1, participant.Periodic, nil), participant.NewBarrier(1, participant.Periodic, nil))
		r.EndInput()
		require.ErrorContains(t, r.Wait(), "barrier 1 has come after barrier 1")
	})
}

// Law A5: the end of the input also reaches an operator without checkpoints.
func TestEndOfInputWithoutCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(9, time.Hour), Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Script("a#1", again)
		r.Script("b#1", optest.Upper)
		r.Send("a", "b", participant.NewBarrier(1, participant.EndOfInput, nil), participant.NewBarrier(2, participant.Periodic, nil))
		require.Equal(t, "a#1 b#1 a#2", r.Calls())
		stopped := make(chan error, 1)
		go func() { stopped <- r.Op.Stop(t.Context()) }()
		r.Fail("a#2", optest.ErrAgain)
		r.Send(participant.NewBarrier(3, participant.Drain, nil))
		require.Equal(t, "B barrier 1 (end of input) barrier 2 (periodic) barrier 3 (drain)", r.Outputs())
		require.NoError(t, r.End())
		require.NoError(t, <-stopped)
	})
}

// drainRun is one run of a pipeline in which every element waits for something, long
// after the end of the input.
type drainRun struct {
	m      optest.Mode
	store  *checkpointtest.MemoryStore
	output *memOutput
	plain  bool                                // one operator in the row has no checkpoints
	ready  func(operator, element string) bool // whether the call succeeds; the other elements are in back-off
	kill   time.Duration                       // 0 means the run reaches its end
}

// run returns the calls that were made, in alphabetical order.
func (d *drainRun) run(t *testing.T) (calls string, err error) {
	t.Helper()
	c := optest.Must(checkpoint.NewCoordinator(d.store, checkpoint.WithInterval(time.Minute), checkpoint.WithTimeout(10*time.Second),
		checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var mu sync.Mutex
	made := map[string]bool{}
	build := func(name string, opts ...asyncop.Option) *optest.Operator {
		fn := asyncop.Func(func(_ context.Context, in string, r optest.Future) error {
			mu.Lock()
			made[name+in[:1]] = true
			mu.Unlock()
			if !d.ready(name, in[:1]) {
				return optest.ErrAgain
			}
			r.Complete(in + name)
			return nil
		})
		return optest.Construct[string, string](d.m, fn, 24*time.Hour, optest.RetryAgain(99, time.Hour), append(opts, asyncop.WithName(name),
			asyncop.WithContext(ctx), asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))...)
	}
	checked := optest.Options(asyncop.WithCheckpoints(c, asyncop.State[string, string]{Results: codec.Default[string]()}))
	src := checkpoint.NewSource(c, "src", checkpointtest.NewSliceInput([]string{"a", "b", "c", "d", "e"}))
	operators := []*optest.Operator{build("1", checked...), build("2", checked...)}
	if d.plain {
		operators = slices.Insert(operators, 1, build("0"))
	}
	sink := checkpoint.NewSink(c, "sink", d.output)
	require.NoError(t, c.Start())
	if d.kill > 0 {
		time.AfterFunc(d.kill, func() { cancel(optest.ErrTestOver) })
	}
	var last interface {
		Via(flow streams.Flow) streams.Flow
	} = src
	for _, op := range operators {
		last = last.Via(op)
	}
	last.(*optest.Operator).To(sink)
	err = c.Wait()
	require.NoError(t, c.Close())
	for _, op := range operators {
		<-op.Done()
	}
	d.store = d.store.Reopen()
	time.Sleep(time.Hour) // back-offs continue meanwhile
	mu.Lock()
	defer mu.Unlock()
	var names []string
	for name := range made {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " "), err
}

// A job that is killed repeatedly while it drains makes progress: only elements that were
// not settled are called again. Each result comes out exactly once.
func TestKilledDuringADrain(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				d := &drainRun{m: m, store: checkpointtest.NewMemoryStore(), output: &memOutput{}, plain: plain}
				published := func() string { return strings.Join(d.output.all[:d.output.visible], " ") }
				kind := func() checkpoint.Kind {
					s, _, err := checkpoint.Latest(t.Context(), d.store)
					require.NoError(t, err)
					return s.Kind
				}
				through := func(elements string) (out string) {
					for i, e := range elements {
						if i > 0 {
							out += " "
						}
						out += string(e) + "1"
						if plain {
							out += "0"
						}
						out += "2"
					}
					return out
				}
				zeros := ""
				if plain {
					zeros = "0a 0b 0d "
				}

				d.ready = func(op, e string) bool {
					return op != "1" && e != "d" || strings.Contains("abd", e) && op == "1" || op == "0"
				}
				d.kill = 10*time.Minute + time.Second
				calls, err := d.run(t)
				require.ErrorIs(t, err, optest.ErrTestOver)
				require.Equal(t, checkpoint.Periodic, kind())
				require.Equal(t, through("ab"), published())
				// In ordered mode, d waits behind c in the first operator.
				require.Equal(t, m.Pick(strings.ReplaceAll(zeros, "0d ", "")+"1a 1b 1c 1d 1e 2a 2b", zeros+"1a 1b 1c 1d 1e 2a 2b 2d"), calls)

				d.ready = func(op, e string) bool { return e != "e" && (op != "2" || e != "d") }
				calls, err = d.run(t)
				require.ErrorIs(t, err, optest.ErrTestOver)
				require.Equal(t, through("abc"), published())
				zeros = ""
				if plain {
					zeros = m.Pick("0c 0d ", "0c ")
				}
				require.Equal(t, zeros+"1c 1e 2c 2d", calls, "results that wait are kept")

				d.ready = func(string, string) bool { return true }
				d.kill = 0
				calls, err = d.run(t)
				require.NoError(t, err)
				require.Equal(t, checkpoint.Drain, kind())
				if plain {
					zeros = "0e "
				}
				require.Equal(t, zeros+"1e 2d 2e", calls)
				require.Equal(t, through("abcde"), published())

				calls, err = d.run(t)
				require.NoError(t, err)
				require.Empty(t, calls)
				require.Equal(t, through("abcde"), published())
			})
		})
	}
}

// Elements behind the marker meet the usual backpressure and are finished before the
// final barrier.
func TestElementsBehindTheEndOfInput(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithBuffer(0))}, nil)
		r.Send("a")
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		sent := make(chan struct{})
		go func() { r.Op.In() <- "late"; close(sent) }()
		synctest.Wait()
		select {
		case <-sent:
			t.Fatal("read past the capacity")
		default:
		}
		r.Complete("a#1", "A")
		<-sent
		r.Send(<-r.Pending)
		require.Empty(t, done)
		r.Complete("late#1", "L")
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())
		require.Equal(t, "A <end> L <2>", r.Outputs())
	}, 1)
}
