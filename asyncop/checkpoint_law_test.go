package asyncop_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// reports is a Reporter of a test. It decodes the states of operators of strings.
type reports struct {
	t       *testing.T
	results codec.Codec[string]

	mu     sync.Mutex
	states map[uint64]string // guarded by mu
}

func (r *reports) Report(id uint64, name string, state participant.State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.NoError(r.t, err)
	assert.Equal(r.t, "op", name)
	assert.NotContains(r.t, r.states, id, "reported twice")
	if state == nil {
		r.states[id] = "passed"
		return
	}
	text, err := stateText[string](state.Bytes(), r.results)
	assert.NoError(r.t, err)
	r.states[id] = text
}

// state returns the state reported for a checkpoint, or "none".
func (r *reports) state(id uint64) string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.states[id]; ok {
		return s
	}
	return "none"
}

// checkRig is a rig whose operator takes part in checkpoints.
type checkRig struct {
	*rig
	*reports
	coordinator *checkpoint.Coordinator
	pending     chan participant.Barrier // of the coordinator: the test sends them
}

// barrierFeed is the source of a checkRig, as a participant.
type barrierFeed struct{ pending chan participant.Barrier }

func (f barrierFeed) Pending(b participant.Barrier) {
	b.Report("feed", participant.State{}, nil)
	f.pending <- b
}
func (f barrierFeed) Completed(uint64)      {}
func (f barrierFeed) Aborted(uint64, error) {}

func newCheckRig(t *testing.T, m mode, s setup, store *checkpointtest.MemoryStore) *checkRig {
	t.Helper()
	if store == nil {
		store = checkpointtest.NewMemoryStore()
	}
	c, err := checkpoint.NewCoordinator(store, checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	r := &checkRig{
		coordinator: c, pending: make(chan participant.Barrier, 1),
		reports: &reports{t: t, states: map[uint64]string{}},
	}
	c.Host().Register("feed", barrierFeed{r.pending})
	s.opts = append(s.opts, asyncop.WithName("op"), asyncop.WithCheckpoints(c, s.state))
	r.rig = newRig(t, m, s)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Start())
	return r
}

// barrier sends a barrier whose reports come to the test.
func (r *checkRig) barrier(id uint64, kind participant.Kind) {
	r.send(participant.NewBarrier(id, kind, r.reports))
}

// trigger starts a checkpoint of the coordinator and returns its barrier, which the test has to send. For a Drain that is
// the marker of the end of the input; finish does the rest.
func (r *checkRig) trigger(kind checkpoint.Kind) (b participant.Barrier, done <-chan error) {
	errs := make(chan error, 1)
	go func() {
		if kind != checkpoint.Periodic {
			errs <- r.coordinator.Finish(context.Background(), kind)
			return
		}
		_, err := r.coordinator.Trigger(context.Background())
		errs <- err
	}()
	b = <-r.pending
	synctest.Wait()
	return b, errs
}

// finish sends the final barrier of a Drain when it is announced, and returns how its checkpoint went.
func (r *checkRig) finish(done <-chan error) error {
	select {
	case b := <-r.pending:
		r.send(b)
		return <-done
	case err := <-done:
		return err
	}
}

// save takes a checkpoint, with the barrier sent at once.
func (r *checkRig) save() {
	r.rig.t.Helper()
	b, done := r.trigger(checkpoint.Periodic)
	r.send(b)
	require.NoError(r.rig.t, <-done)
}

var (
	barrierText = regexp.MustCompile(`barrier (\d+) \(\w+\)`)
	markerText  = regexp.MustCompile(`barrier \d+ \(end of input\)`)
)

// outputs shows barriers as <1>, and the marker of the end of the input as <end>.
func (r *checkRig) outputs() string {
	return barrierText.ReplaceAllString(markerText.ReplaceAllString(r.rig.outputs(), "<end>"), "<$1>")
}

// stateIn returns the state of the operator in the newest checkpoint of a store.
func stateIn(t *testing.T, store checkpoint.Store, results codec.Codec[string]) string {
	t.Helper()
	s, _, err := checkpoint.Latest(t.Context(), store)
	require.NoError(t, err)
	text, err := stateText[string](s.States["op"].Bytes(), results)
	require.NoError(t, err)
	return text
}

var errAgain = errors.New("again")

// retryAgain retries errAgain only.
func retryAgain(maxRetries int, delay time.Duration) strategy {
	return strategies.FixedDelay[string](maxRetries, delay).RetryIfException(predicates.ErrorIs(errAgain))
}

// handHandler is a hand-driven function with a timeout handler.
type handHandler struct {
	*hand
	timeout func(ctx context.Context, in string) ([]string, error)
}

func (h handHandler) Timeout(ctx context.Context, in string) ([]string, error) {
	return h.timeout(ctx, in)
}

func withHandler(timeout func(ctx context.Context, in string) ([]string, error)) func(*hand) function {
	return func(h *hand) function { return handHandler{h, timeout} }
}

// Law C1.
func TestCheckpointHoldsWhatIsNotSettled(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{
			timeout: 24 * time.Hour, strategy: retryAgain(3, time.Hour),
			opts: options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(2)),
		}, nil)
		r.script("b#1", upper)                                      // completed
		r.script("i#1", upper)                                      // completed
		r.script("c#1", func(*call) error { return errAgain })      // in back-off
		r.script("d#1", empty)                                      // ended empty
		r.script("e#1", fails)                                      // dropped
		r.script("r#1", func(*call) error { return errAgain })      // its retry waits for a permit
		r.send("a", "b", mark(1), "i", "c", "d", "e", "r", mark(2)) // a runs
		r.advance(30 * time.Minute)                                 //
		r.send("x#")                                                // runs
		r.advance(30 * time.Minute)                                 //
		r.send("f", mark(3), mark(4))                               // waits for a permit
		require.Equal(t, "a#1 b#1 i#1 c#1 d#1 e#1 r#1 x##1", r.calls())
		r.barrier(1, participant.Periodic)
		require.Equal(t, m.pick("a b |1| i c#1 r#1 |2| x# f |3| |4|", "a |1| i c#1 r#1 |2| x# f |3| |4|"), r.state(1))
		require.Equal(t, m.pick("<1>", "B <1>"), r.outputs(), "the barrier passes at once, ahead of what is queued")

		r.complete("a#1", "A")
		require.Equal(t, m.pick("<1> A B |1| I", "B <1> A |1| I"), r.outputs())
		r.barrier(2, participant.Periodic) // c runs its retry now, under the permit of a
		require.Equal(t, "c#1 r#1 |2| x# f |3| |4|", r.state(2))
		for _, name := range []string{"c#2", "r#2", "x##1", "f#1"} {
			r.complete(name, strings.ToUpper(name[:1]))
		}
		require.Equal(t, m.pick("<1> A B |1| I <2>", "B <1> A |1| I <2>")+" C R |2| X F |3| |4|", r.outputs())
		r.barrier(3, participant.Drain)
		require.Empty(t, r.state(3))
		require.NoError(t, r.wait())
		checkBalance(t, r.stats())
	})
}

func TestCheckpointHoldsFailingAndHandledElements(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		answer := make(chan struct{})
		r := newCheckRig(t, m, setup{
			timeout: time.Second,
			opts:    options(asyncop.WithFailureSink(side.take)),
			wrap: withHandler(func(_ context.Context, in string) ([]string, error) {
				<-answer
				return []string{"late " + in}, nil
			}),
		}, nil)
		r.send("h")
		r.advance(time.Second) // its handler runs
		r.script("x#1", fails)
		r.script("y#1", fails)
		r.send("x", "y", "a")
		r.barrier(1, participant.Periodic)
		require.Equal(t, "h x y a", r.state(1))
		side.unblock()
		require.Equal(t, "x y", side.elements())
		r.barrier(2, participant.Periodic)
		require.Equal(t, "h a", r.state(2))
		close(answer)
		synctest.Wait()
		r.barrier(3, participant.Periodic)
		require.Equal(t, "a", r.state(3))
		require.Equal(t, "<1> <2> late h <3>", r.outputs())
	})
}

// Law Q1: a barrier waits for an element that is partly emitted, and goes before one that is not.
func TestBarrierDoesNotSplitAnElement(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))}, nil)
		r.send("a", "b", "c")
		r.complete("a#1", "A1", "A2", "A3")
		r.complete("b#1", "B1", "B2")
		require.Equal(t, "A1", <-r.op.Out())
		r.barrier(1, participant.Periodic)
		require.Equal(t, "none", r.state(1))
		require.Equal(t, "A2", <-r.op.Out())
		require.Equal(t, "none", r.state(1))
		require.Equal(t, "A3", <-r.op.Out())
		require.Equal(t, "b c", r.state(1))
		require.Equal(t, uint64(1), (<-r.op.Out()).(participant.Barrier).ID)
		synctest.Wait() // B1 is on offer
		r.barrier(2, participant.Periodic)
		require.Equal(t, "b c", r.state(2))
		r.barrier(3, participant.Periodic) // two wait for downstream
		require.Equal(t, "b c", r.state(3))
		r.complete("c#1", "C")
		r.unblock()
		require.Equal(t, "<2> <3> B1 B2 C", r.outputs())
		r.barrier(4, participant.Drain)
		require.NoError(t, r.wait())
	})
}

func TestBarrierGoesBeforeAWatermarkOnOffer(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))}, nil)
		r.send(mark(1), "a")
		r.barrier(1, participant.Periodic)
		require.Equal(t, "|1| a", r.state(1))
		r.unblock()
		require.Equal(t, "<1> |1|", r.outputs())
	})
}

// A full queue does not hold a barrier back: elements overflow, bounded, are part of the checkpoint and keep their order.
func TestFullQueueOverflowsForABarrier(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Overflow: 2}, opts: options(asyncop.WithBuffer(0))}, store)
		r.send("a", "b")
		sent := make(chan any)
		go func() {
			for v := range sent {
				r.op.In() <- v
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
		b, done := r.trigger(checkpoint.Periodic)
		require.True(t, offer(mark(1)))
		require.True(t, offer("d"))
		require.True(t, offer(b), "it waits: the overflow is full")
		synctest.Wait()
		require.Empty(t, done)
		require.Equal(t, "a#1 b#1", r.calls(), "the overflow is not started")
		r.complete("a#1", "A")
		require.NoError(t, <-done)
		require.Equal(t, m.pick("b c |1| d", "b c |1| d"), stateIn(t, store, nil))
		require.True(t, offer("e"))
		require.False(t, offer("f"), "backpressure again")
		r.complete("c#1", "C")
		r.complete("b#1", "B")
		r.complete("d#1", "D")
		r.complete("e#1", "E")
		require.Equal(t, m.pick("A <1> B C |1| D E", "A <1> C B |1| D E"), r.outputs())
	}, 2)
}

// A barrier gets through a full queue behind as many elements as Overflow says; one element more may be read.
func TestOverflowIsExact(t *testing.T) {
	for n := range 3 {
		t.Run(fmt.Sprintf("n=%d", n), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				overflow := cmp.Or(n, -1)
				setting := setup{state: asyncop.State[string, string]{Overflow: overflow}, opts: options(asyncop.WithBuffer(0))}
				start := func() (r *checkRig, b participant.Barrier, done <-chan error) {
					r = newCheckRig(t, m, setting, nil)
					r.send("a")
					b, done = r.trigger(checkpoint.Periodic)
					for range n {
						r.send("x")
					}
					return r, b, done
				}
				r, b, done := start()
				r.send(b)
				require.NoError(t, <-done)
				require.NoError(t, r.coordinator.Close())

				r, b, done = start()
				r.send("y") // in place of the barrier
				sent := make(chan struct{})
				go func() { r.op.In() <- b; close(sent) }()
				synctest.Wait()
				require.Empty(t, done)
				select {
				case <-sent:
					t.Fatal("read past the overflow")
				default:
				}
				r.complete("a#1", "A")
				require.NoError(t, <-done)
				<-sent
				require.NoError(t, r.coordinator.Close())
			}, 1)
		})
	}
}

// An aborted checkpoint ends the overflow.
func TestAbortedCheckpointEndsTheOverflow(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{opts: options(asyncop.WithBuffer(0))}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		r.send("a")
		go func() { _, _ = r.coordinator.Trigger(ctx) }()
		b := <-r.pending
		r.send("b", "c")
		cancel()
		synctest.Wait()
		sent := make(chan struct{})
		go func() { r.op.In() <- "d"; r.op.In() <- b; close(sent) }()
		synctest.Wait()
		select {
		case <-sent:
			t.Fatal("read past the capacity without a checkpoint")
		default:
		}
		for _, n := range []string{"a#1", "b#1", "c#1", "d#1"} {
			r.complete(n, n)
		}
		<-sent
		require.Equal(t, "a#1 b#1 c#1 d#1 <1>", r.outputs())
	}, 1)
}

func TestDrainWaitsForWhatIsInFlight(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, m, setup{}, store)
		r.send("a", "b", mark(1))
		b, done := r.trigger(checkpoint.Drain)
		r.send("c", b) // c overflows
		require.Empty(t, done)
		r.advance(24 * time.Hour) // not bounded
		require.Empty(t, done)
		r.complete("b#1", "B")
		r.complete("a#1", "A")
		r.complete("c#1", "C")
		require.NoError(t, r.finish(done))
		require.Equal(t, m.pick("A B |1| C", "B A |1| C")+" <end> <2>", r.outputs())
		require.NoError(t, r.wait(), "it ends without In being closed")
		require.NoError(t, r.coordinator.Err())
		require.Empty(t, stateIn(t, store, nil))
	}, 3)
}

func TestSuspendBarrierLeavesEverythingToTheCheckpoint(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		side := newSideSink(true)
		r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.take))}, store)
		r.script("x#1", fails)
		r.send("a", "x", "b")
		b, done := r.trigger(checkpoint.Suspend)
		r.send("o", "p", b)
		require.NoError(t, <-done)
		side.unblock()
		r.complete("a#1", "A")
		r.unblock()
		require.Equal(t, "<1>", r.outputs(), "nothing follows the barrier")
		require.NoError(t, r.wait())
		require.NoError(t, r.coordinator.Err())
		require.Equal(t, "a x b o p", stateIn(t, store, nil))
		require.Empty(t, side.elements(), "they will be called again")

		again := newCheckRig(t, m, setup{}, store.Reopen())
		require.Equal(t, "a#1 x#1 b#1", again.calls())
	}, 3)
}

// While a suspend barrier waits for downstream, no call starts and nothing that happens has an effect: it is all to be done
// again.
func TestNothingBeginsAfterASuspendBarrier(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		handled := 0
		r := newCheckRig(t, m, setup{
			blocked: true, timeout: time.Minute, strategy: retryAgain(3, time.Second),
			opts: options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(2), asyncop.WithAttemptTimeout(5*time.Second)),
			wrap: withHandler(func(context.Context, string) ([]string, error) { handled++; return nil, nil }),
		}, store)
		r.script("r#1", func(*call) error { return errAgain })
		r.send("r", "a", "b", "c") // r is in back-off, c waits for a permit
		require.Equal(t, "r#1 a#1 b#1", r.calls())
		b, done := r.trigger(checkpoint.Suspend)
		r.send(b)
		require.NoError(t, <-done)
		r.complete("a#1", "A") // its permit is free now
		r.fail("b#1", errBroken)
		r.advance(time.Hour)
		require.Equal(t, "r#1 a#1 b#1", r.calls())
		require.Zero(t, handled)
		r.unblock()
		require.NoError(t, r.wait(), "b's failure came too late")
		require.Equal(t, "<1>", r.outputs())
		require.EqualValues(t, 4, r.stats().Abandoned)
		checkBalance(t, r.stats())
		require.Equal(t, "r#1 a b c", stateIn(t, store, nil))
	})
}

// Nor does a blocking call of an element that was accepted in the turn of the barrier.
func TestNoBlockingCallBeginsAfterASuspendBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		c.Host().Register("feed", barrierFeed{make(chan participant.Barrier, 1)})
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
		r := &reports{t: t, states: map[uint64]string{}}
		op.In() <- "a"
		op.In() <- "b"
		op.In() <- participant.NewBarrier(1, participant.Suspend, r)
		close(gate)
		require.Equal(t, "busy holds the loop a b", r.state(1))
		close(busy) // its worker comes free, while the barrier waits for a place
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
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))}, nil)
		r.send("a", participant.NewBarrier(1, participant.Suspend, r.reports))
		require.Equal(t, "a", r.state(1))
		require.ErrorIs(t, r.cut(errBroken), errBroken)
		require.ErrorIs(t, r.coordinator.Wait(), errBroken)
	})
}

// Without its state, a suspended operator has lost what was in flight, and says so.
func TestSuspendWhoseStateCannotBeEncoded(t *testing.T) {
	for name, encode := range map[string]func() error{
		"broken":                func() error { return errBroken },
		"asyncop: panic":        func() error { panic("no") },
		guard.ErrGoexit.Error(): func() error { runtime.Goexit(); return nil },
	} {
		forEachMode(t, func(t *testing.T, m mode) {
			texts := failingCodec{codec.Default[string](), encode}
			r := newCheckRig(t, m, setup{state: asyncop.State[string, string]{Inputs: texts}}, nil)
			r.send("a", "b")
			b, done := r.trigger(checkpoint.Periodic)
			r.send(b)
			require.ErrorContains(t, <-done, name)
			require.NoError(t, r.op.Err(), "the pipeline goes on")
			b, done = r.trigger(checkpoint.Suspend)
			r.send(b)
			require.ErrorContains(t, <-done, name)
			err := r.wait()
			require.ErrorContains(t, err, "ended with 2 elements in flight: asyncop: state of final checkpoint 2: ")
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, r.coordinator.Wait(), name)
			require.Equal(t, "<1> <2>", r.outputs())
		})
	}
}

type failingCodec struct {
	codec.Codec[string]
	encode func() error
}

func (c failingCodec) Append([]byte, string) ([]byte, error) { return nil, c.encode() }

func TestBarrierWaitsItsTurnWithoutCheckpoints(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.send("a", participant.NewBarrier(1, participant.Periodic, nil), "b", participant.NewBarrier(2, participant.Drain, nil))
		r.complete("b#1", "B")
		require.Empty(t, r.outputs())
		r.complete("a#1", "A")
		require.Equal(t, "A barrier 1 (periodic) B barrier 2 (drain)", r.outputs())
		require.NoError(t, r.end())
	})
}

func TestOperatorFailureFailsTheCoordinator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))}, nil)
		r.script("x#1", fails)
		b, done := r.trigger(checkpoint.Periodic)
		r.send("a", b) // taken, but not sent on when x fails
		require.NoError(t, <-done)
		r.send("x")
		require.ErrorIs(t, r.wait(), errBroken)
		require.ErrorIs(t, r.coordinator.Wait(), errBroken)
		require.ErrorContains(t, r.coordinator.Err(), `"op"`)
		require.Empty(t, r.outputs(), "no barrier after a failure")
	})
}

func TestInputEndWithoutFinalBarrierFailsTheCoordinator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{}, nil)
		r.script("a#1", upper)
		r.send("a")
		require.ErrorContains(t, r.end(), "asyncop: the input ended without a final barrier")
		require.ErrorContains(t, r.coordinator.Wait(), `"op" failed: asyncop: the input ended without a final barrier`)
	})
}

func TestCancelFailsTheCoordinator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{}, nil)
		r.send("a")
		b, done := r.trigger(checkpoint.Drain)
		r.send(b)
		require.ErrorIs(t, r.cut(errBroken), errBroken)
		require.ErrorIs(t, <-done, errBroken)
		require.ErrorIs(t, r.coordinator.Wait(), errBroken)
	})
}

// When everything is cancelled, upstream may notice first and close In: the run has failed for the cancel all the same, not
// for that.
func TestCancelThatUpstreamNoticesFirst(t *testing.T) {
	for range 20 {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newCheckRig(t, m, setup{}, nil)
			synctest.Wait()     // parked
			r.cancel(errBroken) // which the loop is told by a goroutine
			r.endInputOnce()
			_ = r.wait()
			require.ErrorIs(t, r.coordinator.Wait(), errBroken)
		})
	}
}

// unopened is a function that is neither opened nor closed.
type unopened struct {
	function
	t *testing.T
}

func (u unopened) Open(context.Context) error { u.t.Error("it is opened"); return nil }
func (u unopened) Close() error               { u.t.Error("it is closed"); return nil }

// notStarted returns an operator whose coordinator is not started.
func notStarted(t *testing.T, ctx context.Context) (*operator, *checkpoint.Coordinator) {
	t.Helper()
	c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	op := asyncop.OrderedWait[string, string](unopened{newHand(t), t}, 0, 1, asyncop.WithName("op"), asyncop.WithCheckpoints(c),
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
			cancel(errBroken)
			require.ErrorIs(t, op.Wait(), errBroken)
			require.ErrorIs(t, c.Wait(), errBroken)
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

type plainStrategy struct{ strategy }

type negativeStrategy struct{ strategy }

func (negativeStrategy) MaxRetries() int { return -1 }

func TestCheckpointOptionsPanic(t *testing.T) {
	c := must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore()))
	build := func(s strategy, opts ...asyncop.Option) func() {
		return func() {
			asyncop.OrderedWaitWithRetry[string, string](newHand(t), time.Second, 1, s, append(opts, asyncop.WithCheckpoints(c))...)
		}
	}
	name := asyncop.WithName("op")
	ints := codec.Default[int]()
	for want, f := range map[string]func(){
		"needs WithName": build(retryAll(1, 0)),
		"LatencyFirst":   build(plainStrategy{retryAll(1, 0)}, name, asyncop.WithCheckpoints(c, asyncop.State[string, string]{Retries: asyncop.LatencyFirst})),
		"MaxRetries() of asyncop_test.negativeStrategy is negative: -1": build(
			negativeStrategy{retryAll(1, 0)}, name, asyncop.WithCheckpoints(c, asyncop.State[string, string]{Retries: asyncop.LatencyFirst})),
		"no codec for the inputs, of type string":  build(retryAll(1, 0), name, asyncop.WithCheckpoints(c, asyncop.State[int, string]{Inputs: ints})),
		"no codec for the results, of type string": build(retryAll(1, 0), name, asyncop.WithCheckpoints(c, asyncop.State[string, int]{Results: ints})),
		"nil coordinator":                          func() { asyncop.WithCheckpoints(nil) },
		"unknown choice RetryState(3)":             build(retryAll(1, 0), name, asyncop.WithCheckpoints(c, asyncop.State[string, string]{Retries: 3})),
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

// The marker of the end of the input is read past the capacity as long as it has not come, whatever becomes of checkpoints
// meanwhile: no back-off runs its course after it.
func TestMarkerOverflowsAlthoughACheckpointIsAborted(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newCheckRig(t, m, setup{
			timeout: time.Hour, strategy: retryAgain(3, time.Minute), opts: options(asyncop.WithBuffer(0)),
		}, nil)
		r.script("a#1", func(*call) error { return errAgain })
		r.send("a")
		marker, done := r.trigger(checkpoint.Drain)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = r.coordinator.Trigger(ctx) }()
		<-r.pending
		synctest.Wait()
		cancel()
		synctest.Wait()
		r.send("b", marker)
		require.Equal(t, "a#1 a#2", r.calls(), "one last attempt, at once")
		r.complete("a#2", "A")
		r.complete("b#1", "B")
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
	}, 1)
}
