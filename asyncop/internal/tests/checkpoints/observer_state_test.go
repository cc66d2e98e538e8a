package checkpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	weirflow "github.com/weirflow/weir/flow"
)

// numberer is an observer that numbers the elements 1, 2, … and keeps the next number in
// its state. It records its calls.
type numberer struct {
	breaks string      // the method that panics
	exits  string      // the method that ends its goroutine
	gate   func() bool // nil means open
	atOnce bool        // calls the function passed to Notify immediately
	fails  error       // returned by Restore

	mu      sync.Mutex
	next    int64    // guarded by mu
	log     []string // guarded by mu
	request func()   // guarded by mu
	notify  func()   // guarded by mu
}

type numberKey struct{}

func (o *numberer) write(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	switch {
	case o.breaks != "" && strings.HasPrefix(line, o.breaks):
		panic("the observer breaks")
	case o.exits != "" && strings.HasPrefix(line, o.exits):
		runtime.Goexit()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.log = append(o.log, line)
}

func (o *numberer) took() string {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	s := strings.Join(o.log, "; ")
	o.log = nil
	return s
}

func (o *numberer) Restore(state []byte, numbers []int64, request func()) error {
	o.next, o.request = 1, request
	if state != nil {
		if _, err := fmt.Sscanf(string(state), "next %d", &o.next); err != nil {
			return err
		}
	}
	o.write("restore %q %v", state, numbers)
	return o.fails
}

func (o *numberer) Accepted(ctx context.Context, element any, restored bool) context.Context {
	n := o.next
	o.next++
	o.write("%v is %d", element, n)
	if restored {
		o.write("%v was restored", element)
	}
	return context.WithValue(ctx, numberKey{}, n)
}

func (o *numberer) Restored(ctx context.Context, element any, number int64) context.Context {
	if number == 0 {
		return o.Accepted(ctx, element, false)
	}
	o.write("%v is again %d", element, number)
	return context.WithValue(ctx, numberKey{}, number)
}

func (o *numberer) Number(ctx context.Context) int64 {
	n := ctx.Value(numberKey{}).(int64)
	o.write("number %d", n)
	return n
}

func (o *numberer) Snapshot(checkpoint uint64) []byte {
	o.write("snapshot %d", checkpoint)
	return fmt.Appendf(nil, "next %d", o.next)
}

func (o *numberer) Completed(checkpoint uint64) { o.write("completed %d", checkpoint) }

func (*numberer) AttemptStarted(ctx context.Context, _ int) context.Context { return ctx }
func (*numberer) AttemptEnded(context.Context, observe.Outcome)             {}
func (o *numberer) Ended(ctx context.Context, e observe.Ending) {
	if n, ok := ctx.Value(numberKey{}).(int64); ok {
		o.write("%d %v", n, e.How)
	}
}

func (o *numberer) TryAdmit() bool { return o.gate == nil || o.gate() }
func (o *numberer) Notify(f func()) {
	if o.atOnce {
		f()
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notify = f
}

func observedBy(o observe.Observer) optest.Setup {
	return optest.Setup{Opts: optest.Options(asyncop.WithObserver(o))}
}

// An element keeps its number over restarts, whether or not it has a slot. An element
// without a number gets the number that it would have got without the restart.
func TestNumbersAreInCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		first := &numberer{}
		r := optest.NewCheckRig(t, m, observedBy(first), store)
		r.Send("a", "b")
		require.Equal(t, `restore "" []; a is 1; b is 2`, first.took())
		b, done := r.Trigger(checkpoint.Periodic)
		r.Send("c", optest.Mark(1), "d", b) // past the capacity
		require.NoError(t, <-done)
		require.Equal(t, "number 1; number 2; snapshot 1; completed 1", first.took())
		require.Equal(t, "a@1 b@2 c@0 |1| d@0", optest.StateIn(t, store, nil))
		r.Complete("a#1", "A")
		r.Complete("b#1", "B")
		first.took()
		r.Save()
		require.Equal(t, "c@3 |1| d@0", optest.StateIn(t, store, nil), "the watermark has the other slot")
		r.Complete("c#1", "C")
		r.Save()
		require.Equal(t, "d@4", optest.StateIn(t, store, nil))
		first.took()
		_ = r.Cut(optest.ErrBroken)
		require.Contains(t, first.took(), "4 abandoned")

		for next := range 2 {
			store = store.Reopen()
			again := &numberer{}
			r = optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 1}, observedBy(again), store)
			if next == 0 {
				r.Send("e") // otherwise it would be in the checkpoint without a number
			}
			require.Equal(t, `restore "next 5" [4]; d is again 4`, again.took())
			r.Save()
			require.Equal(t, "d@4 e@0", optest.StateIn(t, store, nil))
			r.Complete("d#1", "D")
			require.Contains(t, again.took(), "e is 5")
			_ = r.Cut(optest.ErrBroken)
		}
	}, 2)
}

func TestNumbersOfElementsWithoutSlots(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, observedBy(&numberer{}), store)
		r.Send("a", "b", "c")
		r.Save()
		_ = r.Cut(optest.ErrBroken)
		store = store.Reopen()
		again := &numberer{}
		r = optest.NewCheckRig(t, optest.Mode{Ordered: m.Ordered, Capacity: 1}, observedBy(again), store)
		r.Save()
		require.Equal(t, "a@1 b@2 c@3", optest.StateIn(t, store, nil))
		r.Complete("a#1", "A")
		r.Save()
		require.Equal(t, "b@2 c@3", optest.StateIn(t, store, nil))
		require.Contains(t, again.took(), "1 emitted; b is again 2; number 2; snapshot 3")
	}, 4)
}

// A restored element without a number waits for the gates, because it was not admitted
// before. An element with a number does not wait.
func TestGatesHoldRestoredElementsWithoutNumbers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		shut := &numberer{gate: func() bool { return false }}
		r := optest.NewCheckRig(t, m, observedBy(shut), store)
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send("a", b)
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())
		require.Equal(t, "a@0", optest.StateIn(t, store, nil))
		require.Equal(t, `restore "" []; snapshot 1; completed 1`, shut.took())

		open := false
		again := &numberer{gate: func() bool { return open }}
		r = optest.NewCheckRig(t, m, observedBy(again), store.Reopen())
		require.Equal(t, `restore "next 1" []`, again.took())
		open = true
		again.notify()
		require.Equal(t, "a is 1", again.took())
	})
}

func TestGatesLetWatermarksPass(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, observedBy(&numberer{}), store)
		r.Send("a")
		b, done := r.Trigger(checkpoint.Periodic)
		r.Send(optest.Mark(1), b) // past the capacity
		require.NoError(t, <-done)
		require.Equal(t, "a@1 |1|", optest.StateIn(t, store, nil))
		_ = r.Cut(optest.ErrBroken)

		r = optest.NewCheckRig(t, m, observedBy(&numberer{gate: func() bool { return false }}), store.Reopen())
		r.Complete("a#1", "A")
		require.Equal(t, "A |1|", r.Outputs())
		_ = r.Cut(optest.ErrBroken)
	}, 1)
}

// An element does not overtake elements that the gate has just held back.
func TestGateThatOpensBetween(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, observedBy(&numberer{gate: func() bool { return false }}), store)
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send("a", "b", b)
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())

		asked := 0
		again := &numberer{gate: func() bool { asked++; return asked%2 == 0 }}
		r = optest.NewCheckRig(t, m, observedBy(again), store.Reopen())
		r.Send("c")
		for range 5 {
			again.notify()
			synctest.Wait()
		}
		require.Equal(t, `restore "next 1" []; a is 1; b is 2; c is 3`, again.took())
	}, 4)
}

// An opening of the gate while the loop is about to sleep is noticed, even if the waiting
// elements were already read.
func TestGateOpensAtOnceForElementsThatWait(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, m, observedBy(&numberer{gate: func() bool { return false }}), store)
		b, done := r.Trigger(checkpoint.Suspend)
		r.Send("a", "b", b)
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())

		asked := 0
		again := &numberer{gate: func() bool { asked++; return asked > 1 }, atOnce: true}
		r = optest.NewCheckRig(t, m, observedBy(again), store.Reopen())
		synctest.Wait()
		require.Equal(t, `restore "next 1" []; a is 1; b is 2`, again.took())
	}, 4)
}

// An observer's request goes to the coordinator.
func TestObserverAsksForACheckpoint(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := &numberer{}
		r := optest.NewCheckRig(t, m, observedBy(o), nil)
		r.Send("a")
		o.request()
		r.Send(<-r.Pending)
		require.Equal(t, `restore "" []; a is 1; number 1; snapshot 1; completed 1`, o.took())
	})
}

// A gate that waits for a checkpoint never opens if the run has failed, so the operator
// ends with the run's error.
func TestFailedRunEndsTheOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := &numberer{gate: func() bool { return false }}
		r := optest.NewCheckRig(t, m, observedBy(o), nil)
		r.Send("a")
		synctest.Wait()
		require.Zero(t, r.Op.Stats().Accepted)
		r.Coordinator.Host().Fail("sink", optest.ErrBroken)
		<-r.Op.Done()
		require.ErrorIs(t, r.Op.Err(), optest.ErrBroken)
	})
}

// Law X1: an element that may have been called is not called under another number, or
// without its number. If no element can have been called, an observer can be added or
// removed.
func TestObserverThatComesOrGoes(t *testing.T) {
	const called, onlyRead = "a", ""
	for _, c := range []struct {
		kind     checkpoint.Kind
		inFlight string
		starts   bool
	}{
		{checkpoint.Periodic, called, false},
		{checkpoint.Periodic, onlyRead, false}, // elements behind it may have been called
		{checkpoint.Suspend, called, false},
		{checkpoint.Suspend, onlyRead, true},
		{checkpoint.Drain, onlyRead, true},
	} {
		for _, comes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v/%q/comes=%t", c.kind, c.inFlight, comes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := optest.Mode{Ordered: true, Capacity: 4}
					store := checkpointtest.NewMemoryStore()
					o := &numberer{}
					with := func(yes bool) optest.Setup {
						if yes {
							return observedBy(o)
						}
						return optest.Setup{}
					}
					r := optest.NewCheckRig(t, m, with(!comes), store)
					if c.inFlight != "" {
						r.Send(c.inFlight)
					}
					b, done := r.Trigger(c.kind)
					r.Send(b)
					if c.kind == checkpoint.Drain {
						require.NoError(t, r.Finish(done))
					} else {
						require.NoError(t, <-done)
					}
					_ = r.Cut(optest.ErrBroken)

					o = &numberer{}
					s := with(comes)
					coordinator := optest.Must(checkpoint.NewCoordinator(store.Reopen(), checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
					coordinator.Host().Register("feed", optest.BarrierFeed{})
					s.Opts = append(s.Opts, asyncop.WithName("op"), asyncop.WithCheckpoints(coordinator))
					again := optest.NewRig(t, m, s)
					err := coordinator.Start()
					synctest.Wait()
					switch {
					case c.starts:
						require.NoError(t, err)
						require.Equal(t, comes, strings.HasPrefix(o.took(), `restore "" []`))
					case comes:
						require.ErrorContains(t, err, `state of "op" in checkpoint`)
						require.ErrorContains(t, err, "it has no state of the observer *checkpoints_test.numberer")
						require.Empty(t, again.Calls())
					default:
						require.ErrorContains(t, err, "it has the state of an observer, and elements may have been called under its numbers")
						require.Empty(t, again.Calls())
					}
					require.NoError(t, coordinator.Close())
				})
			})
		}
	}
}

// Law A6: an observer that breaks is an error of the start, the checkpoint, or the run.
func TestCheckpointedObserverThatBreaks(t *testing.T) {
	start := func(t *testing.T, o *numberer) (*checkpoint.Coordinator, error) {
		c := optest.Must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 1, asyncop.WithName("op"), asyncop.WithCheckpoints(c), asyncop.WithObserver(o),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		t.Cleanup(func() { close(op.In()); <-op.Done() })
		return c, c.Start()
	}
	synctest.Test(t, func(t *testing.T) {
		_, err := start(t, &numberer{breaks: "restore"})
		require.ErrorContains(t, err, `checkpoint: state of "op": asyncop: panic in user code: the observer breaks`)
	})
	synctest.Test(t, func(t *testing.T) {
		_, err := start(t, &numberer{exits: "restore"})
		require.ErrorContains(t, err, "Goexit")
	})
	synctest.Test(t, func(t *testing.T) {
		_, err := start(t, &numberer{fails: optest.ErrBroken})
		require.ErrorIs(t, err, optest.ErrBroken)
	})
	for _, method := range []string{"number", "snapshot"} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			o := &numberer{}
			r := optest.NewCheckRig(t, m, observedBy(o), nil)
			r.Send("a")
			for _, exits := range []bool{false, true} {
				if o.breaks, o.exits = method, ""; exits {
					o.breaks, o.exits = "", method
				}
				b, done := r.Trigger(checkpoint.Periodic)
				r.Send(b)
				require.Error(t, <-done)
			}
			o.breaks, o.exits = "", ""
			r.Save()
			r.Complete("a#1", "A")
			o.breaks = method
			r.Send("b")
			b, done := r.Trigger(checkpoint.Suspend)
			r.Send(b)
			err := <-done
			require.ErrorContains(t, err, "the observer breaks")
			require.ErrorContains(t, r.Wait(), "state of final checkpoint 4", "a final one is lost")
		})
	}
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := &numberer{breaks: "completed"}
		r := optest.NewCheckRig(t, m, observedBy(o), nil)
		r.Save()
		require.ErrorContains(t, r.Coordinator.Err(), "the observer breaks")
	})
}

func TestWithObserver_OneHasAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := optest.Options(asyncop.WithObserver(&numberer{}), asyncop.WithObserver(optest.NewTally(t)), asyncop.WithObserver(&numberer{}), asyncop.WithName("op"))
		c := optest.Must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore()))
		assert.PanicsWithValue(t,
			"asyncop: OrderedWait \"op\": two observers with a state in checkpoints, a *checkpoints_test.numberer and a *checkpoints_test.numberer",
			func() {
				asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 1, append(two, asyncop.WithCheckpoints(c))...)
			})
		require.NoError(t, c.Close())

		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 1, two...) // without checkpoints they are ordinary observers
		n := 0
		for _, err := range op.Results(optest.UpTo(3)) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 3, n)
	})
}

// Law C2: numbers follow the input order, so an upstream operator that changes the order
// is refused, wherever it is.
func TestObserverBehindAnUnorderedOperator(t *testing.T) {
	for _, order := range []string{"ordered", "unordered", "by key"} {
		for _, checked := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/checked=%t", order, checked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ordered := order == "ordered"
					quiet := asyncop.WithLogger(slog.New(slog.DiscardHandler))
					c := optest.Must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
					source := checkpoint.NewSource(c, "numbers", checkpointtest.NewSliceInput([]int{1, 2, 3}))
					opts := optest.Options(asyncop.WithName("first"), quiet)
					if checked {
						opts = append(opts, asyncop.WithCheckpoints(c))
					}
					var first *asyncop.AsyncWaitOperator[int, int]
					if order == "by key" {
						first = asyncop.KeyOrderedWait(asyncop.Func(optest.Double), func(in int) int { return in }, 0, 2, nil, opts...)
					} else {
						first = optest.Construct(optest.Mode{Ordered: ordered, Capacity: 2}, asyncop.Func(optest.Double), 0, nil, opts...)
					}
					called := 0
					second := asyncop.UnorderedWait(asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
						called++
						result.Complete(in)
						return nil
					}), 0, 2, asyncop.WithName("second"), asyncop.WithCheckpoints(c), asyncop.WithObserver(&numberer{gate: func() bool { return ordered }}), quiet)
					require.NoError(t, c.Start())
					third := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 2, quiet) // without checkpoints and numbers, any order is allowed
					source.Via(first).Via(weirflow.NewMap(func(in int) int { return in })).Via(second).Via(third).To(extension.NewIgnoreSink())
					err := c.Wait()
					if ordered {
						require.NoError(t, err)
						require.Equal(t, 3, called)
					} else {
						require.ErrorContains(t, err, "the observer *checkpoints_test.numberer needs elements in the same order after a restart")
						require.Zero(t, called)
					}
					require.NoError(t, c.Close())
					<-first.Done()
					<-second.Done()
					<-third.Done()
				})
			})
		}
	}
}
