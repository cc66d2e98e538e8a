package asyncop_test

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
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
)

// Checkpoints go on after the end of the input, for as long as what is in flight needs.

// longWaits is of an operator whose elements are in back-off for an hour, also at the end of the input.
func longWaits(opts ...asyncop.Option) setup {
	return setup{
		timeout: 24 * time.Hour, strategy: retryAgain(9, time.Hour),
		opts: append(opts, asyncop.WithDrainRetries()),
	}
}

func again(*call) error { return errAgain }

// Law C1.
func TestCheckpointsDuringADrain(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, longWaits(asyncop.WithDropOnFailure()), store)
		r.script("a#1", again)
		r.script("b#1", upper)
		r.script("d#1", fails)
		r.script("e#1", empty)
		r.send("a", "b", mark(1), "c", "d", "e")
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		r.save()
		require.Equal(t, m.pick("a#1 b |1| c", "a#1 |1| c"), stateIn(t, store, nil))
		r.advance(time.Hour)
		r.complete("a#2", "A")
		r.save()
		require.Equal(t, "c", stateIn(t, store, nil))
		r.complete("c#1", "C")
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
		require.NoError(t, r.coordinator.Err())
		require.Equal(t, m.pick("<2> A B |1| <3> C", "B <2> A |1| <3> C")+" <end> <4>", r.outputs())
		require.Empty(t, stateIn(t, store, nil))
		checkBalance(t, r.stats())
	})
}

// A5: without WithDrainRetries, the marker is the end of the input as far as retries are concerned. It is read also if no slot
// is free.
func TestEndOfInputMarkerEndsRetries(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, setup{
			timeout: 24 * time.Hour, strategy: retryAgain(9, time.Hour),
			opts: options(asyncop.WithDropOnFailure(), asyncop.WithBuffer(0)),
		}, store)
		r.script("a#1", again)
		r.script("b#1", again)
		r.send("a", "b")
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		require.Equal(t, "a#1 b#1 a#2 b#2", r.calls(), "one last attempt, at once")
		r.save()
		require.Equal(t, "a b", strings.ReplaceAll(stateIn(t, store, nil), "#1", ""))
		r.fail("a#2", errAgain)
		r.complete("b#2", "B")
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
		require.Equal(t, "a#1 b#1 a#2 b#2", r.calls())
		require.Equal(t, "<2> B <end> <3>", r.outputs())
		require.EqualValues(t, 1, r.stats().Dropped)
	}, 2, 16)
}

// Restored elements wait for their slots, and the marker behind them; it is in no checkpoint.
func TestEndOfInputBehindRestoredElements(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 9}, longWaits(), store)
		r.sendEach("abc")
		r.save()
		_ = r.cut(errTestOver)
		store = store.Reopen()
		r = newCheckRig(t, m, longWaits(), store)
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		r.save()
		require.Equal(t, "a b c", stateIn(t, store, nil))
		for _, name := range []string{"a", "b"} {
			r.complete(name+"#1", name)
		}
		r.save()
		require.Equal(t, "c", stateIn(t, store, nil))
		r.complete("c#1", "c")
		require.NoError(t, r.finish(done))
		require.Equal(t, "<3> a b <4> c <end> <5>", r.outputs())
		require.NoError(t, r.wait())
	}, 1, 2)
}

// A5: the input has ended for elements without a slot, too.
func TestEndOfInputMarkerEndsRetriesOfTheBacklog(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := setup{timeout: 24 * time.Hour, strategy: retryAgain(9, time.Hour), opts: options(asyncop.WithDropOnFailure())}
		r := restart(t, m, "abc", s)
		r.fail("a#1", errAgain)
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		require.Equal(t, "a#1 a#2", r.calls())
		for _, name := range []string{"a#2", "b#1", "c#1"} {
			r.fail(name, errAgain)
		}
		require.NoError(t, r.finish(done))
		require.Equal(t, "a#1 a#2 b#1 c#1", r.calls())
	}, 1)
}

// A5: so does Stop.
func TestStopEndsRetriesOfTheBacklog(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := restart(t, m, "abc", setup{
			timeout: 24 * time.Hour, strategy: retryAgain(9, time.Hour), opts: options(asyncop.WithDropOnFailure()),
		})
		r.fail("a#1", errAgain)
		go func() { _ = r.op.Stop(context.Background()) }()
		synctest.Wait()
		require.Equal(t, "a#1 a#2", r.calls())
		for _, name := range []string{"a#2", "b#1", "c#1"} {
			r.fail(name, errAgain)
		}
		require.Equal(t, "a#1 a#2 b#1 c#1", r.calls())
		require.EqualValues(t, 3, r.stats().Dropped)
		require.NoError(t, r.wait())
		require.ErrorContains(t, r.coordinator.Err(), "use the Coordinator's Finish")
	}, 1)
}

// Barriers overtake the marker also when it waits for downstream. It is reported when downstream has it.
func TestBarrierOvertakesTheEndOfInput(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))}, nil)
		r.barrier(1, participant.EndOfInput)
		r.barrier(2, participant.Periodic)
		require.Empty(t, r.state(2))
		require.Equal(t, "none", r.state(1))
		r.unblock()
		require.Equal(t, "<2> <end>", r.outputs())
		require.Equal(t, "passed", r.state(1))
		r.barrier(3, participant.Drain)
		require.NoError(t, r.wait())
	})
}

func TestDrainWhileACheckpointIsPending(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, longWaits(), store)
		r.script("a#1", again)
		r.script("a#2", upper)
		r.send("a")
		b, first := r.trigger(checkpoint.Periodic)
		r.coordinator.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		require.Empty(t, r.pending, "its turn is after the checkpoint's")
		r.send(b)
		require.NoError(t, <-first)
		r.send(<-r.pending)
		r.save()
		require.Equal(t, "a#1", stateIn(t, store, nil))
		r.advance(time.Hour)
		r.send(<-r.pending)
		require.NoError(t, r.coordinator.Wait())
		require.NoError(t, r.wait())
		require.Equal(t, "<1> <3> A <end> <4>", r.outputs())
	})
}

func TestSuspendDuringADrain(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, longWaits(), store)
		r.script("a#1", again)
		r.send("a", "b")
		marker, drained := r.trigger(checkpoint.Drain)
		r.send(marker)
		b, done := r.trigger(checkpoint.Suspend)
		r.send(b)
		require.NoError(t, <-done)
		require.NoError(t, r.wait())
		require.NoError(t, r.coordinator.Err())
		require.ErrorContains(t, <-drained, "the stream has ended")
		require.Equal(t, "<2>", r.outputs(), "the marker is behind what is in flight")
		require.Equal(t, "a#1 b", stateIn(t, store, nil))

		r = newCheckRig(t, m, longWaits(), store.Reopen())
		require.Equal(t, "b#1", r.calls())
		r.advance(time.Hour) // a's back-off (law C3)
		require.Equal(t, "b#1 a#1", r.calls())
	})
}

func TestFailureDuringADrain(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := newCheckRig(t, m, setup{opts: options(asyncop.WithUpstreamCancel(cancel))}, nil)
		r.send("a", "b")
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		r.complete("b#1", "B")
		r.fail("a#1", errBroken)
		require.ErrorIs(t, r.wait(), errBroken)
		require.ErrorIs(t, <-done, errBroken)
		require.ErrorIs(t, r.coordinator.Wait(), errBroken)
		require.ErrorIs(t, context.Cause(ctx), errBroken, "upstream still has barriers to send")
		require.Equal(t, m.pick("", "B"), r.outputs())
	})
}

// Stop has nothing to end that is not ending already, and does not take the final checkpoint away.
func TestStopDuringADrain(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{}, nil)
		r.send("a")
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		stopped := make(chan error, 1)
		go func() { stopped <- r.op.Stop(t.Context()) }()
		synctest.Wait()
		r.save()
		r.complete("a#1", "A")
		require.NoError(t, r.finish(done))
		require.NoError(t, <-stopped)
		require.NoError(t, r.coordinator.Err())
		require.Equal(t, "<2> A <end> <3>", r.outputs())
	})
}

// Closed behind the marker, without a final barrier, the stream was aborted.
func TestInputEndDuringADrain(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{}, nil)
		r.send("a")
		r.barrier(1, participant.EndOfInput)
		require.ErrorContains(t, r.end(), "without a final barrier")
		require.Empty(t, r.outputs(), "a comes again in the next run")
		require.ErrorContains(t, r.coordinator.Wait(), "without a final barrier")
	})
}

// D1: a Suspend is not the end of the input for an operator that takes no part in checkpoints either: what waits for a retry goes on.
func TestSuspendWithoutCheckpoints(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: 24 * time.Hour, strategy: retryAgain(9, time.Hour), opts: options(asyncop.WithDropOnFailure())})
		r.script("a#1", again)
		r.script("a#2", again)
		r.script("a#3", upper)
		r.send("a", participant.NewBarrier(1, participant.Suspend, nil))
		r.endInput()
		require.Equal(t, "a#1", r.calls())
		r.advance(2 * time.Hour)
		require.Equal(t, "a#1 a#2 a#3", r.calls())
		require.NoError(t, r.wait())
		require.Equal(t, "A barrier 1 (suspend)", r.outputs())
	})
}

// C2: an operator that takes no part in checkpoints refuses a barrier that comes twice, too.
func TestBarrierTwiceWithoutCheckpoints(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Hour})
		r.send(participant.NewBarrier(1, participant.Periodic, nil), participant.NewBarrier(1, participant.Periodic, nil))
		r.endInput()
		require.ErrorContains(t, r.wait(), "barrier 1 has come after barrier 1")
	})
}

// A5: also an operator that takes no part in checkpoints learns of the end of the input.
func TestEndOfInputWithoutCheckpoints(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: 24 * time.Hour, strategy: retryAgain(9, time.Hour), opts: options(asyncop.WithDropOnFailure())})
		r.script("a#1", again)
		r.script("b#1", upper)
		r.send("a", "b", participant.NewBarrier(1, participant.EndOfInput, nil), participant.NewBarrier(2, participant.Periodic, nil))
		require.Equal(t, "a#1 b#1 a#2", r.calls())
		stopped := make(chan error, 1)
		go func() { stopped <- r.op.Stop(t.Context()) }()
		r.fail("a#2", errAgain)
		r.send(participant.NewBarrier(3, participant.Drain, nil))
		require.Equal(t, "B barrier 1 (end of input) barrier 2 (periodic) barrier 3 (drain)", r.outputs())
		require.NoError(t, r.end())
		require.NoError(t, <-stopped)
	})
}

// drainRun is one run of a pipeline whose elements all wait for something, long after the input has ended.
type drainRun struct {
	m      mode
	store  *checkpointtest.MemoryStore
	output *memOutput
	plain  bool                                // an operator without checkpoints is in the row
	ready  func(operator, element string) bool // whose call succeeds; the others are in back-off
	kill   time.Duration                       // 0: it comes to its end
}

// run returns the calls that were made, in the order of the alphabet.
func (d *drainRun) run(t *testing.T) (calls string, err error) {
	t.Helper()
	c := must(checkpoint.NewCoordinator(d.store, checkpoint.WithInterval(time.Minute), checkpoint.WithTimeout(10*time.Second),
		checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var mu sync.Mutex
	made := map[string]bool{}
	build := func(name string, opts ...asyncop.Option) *operator {
		fn := asyncop.Func(func(_ context.Context, in string, r future) error {
			mu.Lock()
			made[name+in[:1]] = true
			mu.Unlock()
			if !d.ready(name, in[:1]) {
				return errAgain
			}
			r.Complete(in + name)
			return nil
		})
		return construct[string, string](d.m, fn, 24*time.Hour, retryAgain(99, time.Hour), append(opts, asyncop.WithName(name),
			asyncop.WithContext(ctx), asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))...)
	}
	checked := options(asyncop.WithCheckpoints(c, asyncop.State[string, string]{Results: codec.Default[string]()}))
	src := checkpoint.NewSource(c, "src", checkpointtest.NewSliceInput([]string{"a", "b", "c", "d", "e"}))
	operators := []*operator{build("1", checked...), build("2", checked...)}
	if d.plain {
		operators = slices.Insert(operators, 1, build("0"))
	}
	sink := checkpoint.NewSink(c, "sink", d.output)
	require.NoError(t, c.Start())
	if d.kill > 0 {
		time.AfterFunc(d.kill, func() { cancel(errTestOver) })
	}
	var last interface {
		Via(flow streams.Flow) streams.Flow
	} = src
	for _, op := range operators {
		last = last.Via(op)
	}
	last.(*operator).To(sink)
	err = c.Wait()
	require.NoError(t, c.Close())
	for _, op := range operators {
		<-op.Done()
	}
	d.store = d.store.Reopen()
	time.Sleep(time.Hour) // back-offs go on meanwhile
	mu.Lock()
	defer mu.Unlock()
	var names []string
	for name := range made {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " "), err
}

// A job that is killed again and again while it drains makes progress: only what was not settled is called again, and
// nothing is lost or comes out twice.
func TestKilledDuringADrain(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
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
				require.ErrorIs(t, err, errTestOver)
				require.Equal(t, checkpoint.Periodic, kind())
				require.Equal(t, through("ab"), published())
				// Ordered, d waits behind c in the first operator.
				require.Equal(t, m.pick(strings.ReplaceAll(zeros, "0d ", "")+"1a 1b 1c 1d 1e 2a 2b", zeros+"1a 1b 1c 1d 1e 2a 2b 2d"), calls)

				d.ready = func(op, e string) bool { return e != "e" && (op != "2" || e != "d") }
				calls, err = d.run(t)
				require.ErrorIs(t, err, errTestOver)
				require.Equal(t, through("abc"), published())
				zeros = ""
				if plain {
					zeros = m.pick("0c 0d ", "0c ")
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

// What comes behind the marker all the same meets the usual backpressure, and is finished before the final barrier.
func TestElementsBehindTheEndOfInput(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{opts: options(asyncop.WithBuffer(0))}, nil)
		r.send("a")
		marker, done := r.trigger(checkpoint.Drain)
		r.send(marker)
		sent := make(chan struct{})
		go func() { r.op.In() <- "late"; close(sent) }()
		synctest.Wait()
		select {
		case <-sent:
			t.Fatal("read past the capacity")
		default:
		}
		r.complete("a#1", "A")
		<-sent
		r.send(<-r.pending)
		require.Empty(t, done)
		r.complete("late#1", "L")
		require.NoError(t, <-done)
		require.NoError(t, r.wait())
		require.Equal(t, "A <end> L <2>", r.outputs())
	}, 1)
}
