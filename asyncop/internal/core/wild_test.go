package core

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// wild is a rig whose calls, predicates, handlers and sinks behave randomly, depending on
// a seed and their names.
type wild struct {
	*rig
	seed uint64
}

// chance returns a number below n that depends only on the seed, what and the name of a
// call.
func (w *wild) chance(what, name string, n int) int {
	h := fnv.New64a()
	fmt.Fprint(h, w.seed, what, name)
	return int(h.Sum64() % uint64(n))
}

// behave is the function. The effect of a call depends on its name.
func (w *wild) behave(name string, a *testAttempt) error {
	if w.chance("slow", name, 8) == 0 {
		w.clock.at = w.clock.at.Add(time.Duration(w.chance("for", name, 8)) * time.Second)
	}
	does := w.chance("does", name, 20)
	if w.seed%5 != 0 && (does == 14 || does == 15) {
		does -= 2 // it panics: runtime.Goexit ends the run
	}
	switch does {
	case 0, 1, 2, 3, 4, 5:
		a.Complete(name)
	case 6:
		a.Complete(name, name+"'")
	case 7, 8:
		a.Complete()
	case 9:
		a.Complete("control")
	case 10:
		return errBroken
	case 11:
		a.CompleteExceptionally(errBroken)
		a.Complete(name)
	case 12:
		a.Complete(name)
		panic("boom")
	case 13:
		panic("boom")
	case 14:
		a.Complete(name)
		runtime.Goexit()
	case 15:
		runtime.Goexit()
	case 16: // the call continues
		a.RunBlocking(a, func(error) {})
		a.Complete(name)
	case 17:
		done := make(chan struct{})
		go func() { defer close(done); a.Complete(name) }()
		<-done
	default: // the call stays open
	}
	return nil
}

// leave removes one result or control element.
func (w *wild) leave() {
	results, control := w.Head()
	switch {
	case control != nil:
		w.note(fmt.Sprintf("|%d", control))
	case len(results) > 0:
		w.history = append(w.history, results...)
	default:
		return
	}
	w.PopHead(observe.Emitted)
}

// cutOff ends the core and records the elements in flight.
func (w *wild) cutOff() {
	w.End(errOver)
	for _, e := range w.Abandon() {
		d := w.Describe(e)
		err := fmt.Sprint(d.Err)
		d.Context, d.Err = nil, nil
		w.note(fmt.Sprintf("%+v %s", d, err))
		w.Ended(e, observe.Abandoned)
	}
	w.work()
	w.balance()
}

func newWild(tb require.TestingT, seed uint64) *wild {
	w := &wild{seed: seed}
	rnd := rand.New(rand.NewPCG(seed, 1))
	breaks := func(what string) {
		switch w.chance("predicate", what, 30) {
		case 0:
			panic("predicate")
		case 1:
			if w.seed%5 == 0 {
				runtime.Goexit()
			}
		}
	}
	asked := strategies.ReasonStrategyFunc[string](func(_ context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
		if a.Number > 2 {
			return strategies.Action{}, nil
		}
		return strategies.RetryAfter(time.Second), nil
	})
	fixed := func(n int, delay time.Duration) strategies.Retry[string] {
		return strategies.FixedDelay[string](n, delay).
			RetryIfResult(func(results []string) bool { breaks(fmt.Sprint(results)); return len(results) == 0 }).
			RetryIfException(func(err error) bool { breaks(err.Error()); return !errors.Is(err, errControl) })
	}
	rejected := predicates.NewRejection("TWICE")
	policy := strategies.ReasonAware(func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
		switch {
		case len(a.Results) == 2:
			return rejected, true
		case a.Err != nil || len(a.Results) == 0:
			return predicates.NewReason("AGAIN", true, false), true
		}
		return predicates.Reason{}, false
	}, asked)
	strategy := [...]strategies.Retry[string]{nil, fixed(2, 0), fixed(1, 3*time.Second), policy, policy.Immediate()}[rnd.IntN(5)]
	w.rig = newRig(tb, strategy, func(c *setup) {
		if rnd.IntN(2) == 0 {
			unordered(c)
		}
		c.MaxCalls = rnd.IntN(3)
		c.Timeout = [...]time.Duration{10 * time.Second, 4 * time.Second, time.Hour}[rnd.IntN(3)]
		if strategy == nil && rnd.IntN(2) == 0 {
			c.Timeout = 0
		}
		if rnd.IntN(2) == 0 {
			c.AttemptTimeout = 2 * time.Second
		}
		c.EarlyTimeout, c.ExhaustedAsFailure = rnd.IntN(2) == 0, rnd.IntN(2) == 0
		switch rnd.IntN(4) {
		case 0:
			c.OnFailure = failRun
		case 1:
			c.OnFailure, c.Sink = toSink, func(_ context.Context, r Report[string]) error {
				if w.chance("sink", r.Element, 2) == 0 {
					return errBroken
				}
				return nil
			}
		}
		if rnd.IntN(2) == 0 {
			c.Handle = func(_ context.Context, r Report[string], _ bool) ([]string, error) {
				if w.chance("handle", r.Element, 2) == 0 {
					return nil, errBroken
				}
				return []string{"handled " + r.Element}, nil
			}
			c.HandlesAll = rnd.IntN(2) == 0
		}
	})
	w.answer = w.behave
	return w
}

// Whatever calls, predicates, handlers and sinks do, in any order: each element is in one
// state (law A1) and has a slot until it leaves (law Q2), and no permit is lost.
func TestCallsThatEndInManyWays(t *testing.T) {
	for seed := range uint64(150) {
		w := newWild(t, seed)
		rnd := rand.New(rand.NewPCG(seed, 2))
		for step := range 60 {
			op, name, n := rnd.IntN(12), fmt.Sprintf("e%d", step), rnd.IntN(4)
			if w.Failed() {
				break
			}
			switch {
			case op < 5 && w.HasSlot():
				onGoroutine(func() { w.Accept(name, call.Message{}) })
			case op == 5 && w.HasSlot():
				w.AcceptControl(mark(step + 1))
			case op == 6:
				w.clock.at = w.clock.at.Add(time.Duration(n) * time.Second)
				w.NoteSlept()
			case op == 7 || op == 8:
				onGoroutine(w.Step)
			case op == 9:
				w.leave()
			case op == 10:
				w.work()
			case op == 11:
				names := slices.Sorted(maps.Keys(w.calls))
				for i := range min(n, len(names)) {
					w.calls[names[len(names)-1-i]].Complete("later")
				}
			}
			w.balance()
			require.LessOrEqual(t, w.Len(), w.Queue.Cap(), "seed %d", seed)
		}
		w.cutOff()
		require.Equal(t, w.MaxCalls, w.FreePermits(), "seed %d", seed)
		w.stop(nil)
	}
}
