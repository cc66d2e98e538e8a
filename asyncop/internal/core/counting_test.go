package core

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// sheet is a counter that records its arguments.
type sheet struct {
	attempts []counting.AttemptEnd
	elements []counting.Element
	calls    int
	on       func() // called first
}

func (c *sheet) Count(attempts []counting.AttemptEnd, elements []counting.Element) {
	if c.on != nil {
		c.on()
	}
	c.calls++
	c.attempts = append(c.attempts, attempts...)
	c.elements = append(c.elements, elements...)
}

// Many events make one call of a counter, which is made by Report.
func TestCountersAreCalledOnceATurn(t *testing.T) {
	c := &sheet{}
	r := newRig(t, nil, func(cfg *setup) { cfg.Counters = []counting.Counter{c} })
	r.feed("a b c d")
	r.complete("a#1 b#1 c#1 d#1")
	require.Equal(t, Now, r.Next())
	r.Step()
	require.Equal(t, Now, r.Next(), "there is something to report")
	r.emit()
	require.Equal(t, 1, c.calls)
	require.Len(t, c.attempts, 4)
	require.Len(t, c.elements, 4)
	r.Report()
	require.Equal(t, 1, c.calls)
	r.end()
}

// Counters add no values to the context of a call, so workers make it.
func TestMakesJobs_WithCounters(t *testing.T) {
	r := newRig(t, nil, func(cfg *setup) { cfg.Counters, cfg.MakesJobs = []counting.Counter{&sheet{}}, true })
	r.Accept("a", call.Message{})
	jobs := 0
	r.Jobs(func(all ...call.Job[string, string]) {
		for _, j := range all {
			require.NotNil(t, j.Attempt)
			jobs++
		}
	})
	require.Equal(t, 1, jobs)
	r.End(errOver)
	r.Abandon()
}

// Law A6: a counter that breaks is logged, and the other counters are still called, once.
func TestCounterBreaks(t *testing.T) {
	for _, how := range []string{"panic", "goexit"} {
		for at := range 2 {
			t.Run(fmt.Sprint(how, at), func(t *testing.T) {
				all := []*sheet{{}, {}}
				broke := 0
				all[at].on = func() {
					if broke++; broke > 1 {
						return
					}
					if how == "goexit" {
						runtime.Goexit()
					}
					panic("broken")
				}
				r := newRig(t, nil, func(cfg *setup) {
					cfg.Counters = []counting.Counter{all[0], all[1]}
				})
				r.feed("a")
				r.complete("a#1")
				r.Step()
				onGoroutine(r.emit)
				if how == "goexit" {
					r.Report() // after the end
					require.Len(t, all[1-at].elements, 1)
					r.exitedBy("an observer")
					return
				}
				require.Contains(t, r.took(), "broke: ")
				require.Len(t, all[1-at].elements, 1)
				require.Empty(t, all[at].elements, "what it has broken at is lost")
				r.feed("b")
				r.complete("b#1")
				r.step()
				require.Len(t, all[at].elements, 1)
				require.Len(t, all[1-at].elements, 2)
				r.end()
			})
		}
	}
}

// The memory for a burst of events is released, and neither counters nor observers cause
// an allocation per element of a key.
func TestObservedElementsUseMemoryAgain(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	for name, keyed := range map[string]bool{"ordered": false, "key-ordered": true} {
		for who, change := range map[string]func(c *setup){
			"counter":  func(c *setup) { c.Counters = []counting.Counter{&tally{}} },
			"observer": func(c *setup) { c.Observers = []observe.Observer{quiet{}} },
		} {
			t.Run(name+" "+who, func(t *testing.T) {
				allocs := func(change func(c *setup)) float64 {
					r := newRig(t, nil, func(c *setup) {
						if keyed {
							byFirstLetter(c)
						}
						change(c)
						c.Invoke = func(_ context.Context, in string, a *call.Attempt[string]) error {
							a.Complete(in)
							return nil
						}
						c.IsControl = nil
					})
					return testing.AllocsPerRun(2000, func() {
						r.Accept("x", call.Message{})
						for results, _ := r.Head(); len(results) > 0; results, _ = r.Head() {
							r.leave()
						}
						r.Report()
					})
				}
				want := 2.0 // the attempt and its results
				if who == "observer" {
					want++ // the element in an interface
				}
				require.LessOrEqual(t, allocs(change), want)
			})
		}
	}
	require.NotNil(t, emptied(make([]int, 10)))
	require.Nil(t, emptied(make([]int, keepEvents+1)))
	require.Empty(t, slices.Concat(emptied([]int{1})))
}

// tally only counts.
type tally struct{ n int }

func (c *tally) Count(attempts []counting.AttemptEnd, elements []counting.Element) {
	c.n += len(attempts) + len(elements)
}

// The data of one element does not leak to the next element that uses its memory.
func TestRidersAreUsedAgain(t *testing.T) {
	c := &sheet{}
	r, o := observed(t, 0, func(cfg *setup) {
		cfg.Counters, cfg.MaxCalls, cfg.Timeout = []counting.Counter{c}, 1, 10*time.Second
		cfg.Queue = queue.NewUnordered[*Slot[string, string]](4)
	})
	o.on = func(what string) {
		if what == "+a" {
			panic("broken")
		}
	}
	r.feed("a")
	r.idle()
	require.EqualValues(t, observe.Dropped, c.elements[0].How)
	r.feed("b")
	r.pass(time.Second)
	r.complete("b#1")
	r.idle()
	require.Equal(t, counting.Element{How: uint8(observe.Emitted), Accepted: true, Queued: 1, Total: time.Second}, c.elements[1])
	r.feed("c d")
	r.pass(20 * time.Second) // d is not called
	require.Equal(t, []counting.Element{
		{How: uint8(observe.Dropped), Accepted: true, InDoubt: true, Queued: 1, Total: 10 * time.Second},
		{How: uint8(observe.Dropped), Accepted: true, Queued: 10 * time.Second, Total: 10 * time.Second},
	}, c.elements[2:])
	require.Len(t, c.attempts, 3)

	r.feed("x y")
	r.pass(3 * time.Second)
	r.complete("x#1")
	r.pass(time.Second)
	r.complete("y#1")
	r.idle()
	require.Equal(t, []counting.Element{
		{How: uint8(observe.Emitted), Accepted: true, Queued: 1, Total: 3 * time.Second},
		{How: uint8(observe.Emitted), Accepted: true, Queued: 3 * time.Second, Total: 4 * time.Second},
	}, c.elements[4:])

	r.feed("e") // discarded after it has left
	r.complete("e#1")
	r.Step()
	r.head3()
	r.PopHead(observe.Emitted)
	left := r.observing.TakeLeaving()
	r.pass(time.Second)
	r.observing.RecordEnd(left, observe.Discarded)
	r.Report()
	require.Equal(t, counting.Element{How: uint8(observe.Discarded), Accepted: true, InDoubt: true, Queued: 1, Total: time.Second}, c.elements[6])
	r.end()
}

// Rare data leaves with its element: a reason does not appear at the next element.
func TestReasonsGoWithTheirElements(t *testing.T) {
	c := &sheet{}
	busy := predicates.NewReason("BUSY", true, false)
	again := strategies.ReasonStrategyFunc[string](func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
		return strategies.RetryAfter(time.Second), nil
	})
	policy := strategies.ReasonAware(predicates.ByException[string](predicates.HasException, busy), again).Immediate()
	r := newRig(t, policy, func(cfg *setup) { cfg.Counters = []counting.Counter{c} })
	r.feed("a")
	r.fail("a#1")
	r.pass(time.Second)
	r.complete("a#2")
	r.idle()
	r.feed("b")
	require.Zero(t, r.reasons.get(r.first().index))
	r.complete("b#1")
	r.idle()
	require.Equal(t, []counting.AttemptEnd{
		{End: counting.Error, Duration: 1, Reason: busy, Retry: true, Delay: time.Second},
		{End: counting.Result, Duration: 1},
		{End: counting.Result, Duration: 1},
	}, c.attempts)
	r.end()
}
