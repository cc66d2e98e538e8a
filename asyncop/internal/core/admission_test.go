package core

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
)

// share makes the calls of the rig need one of p.
func (r *rig) share(p *call.Permits) {
	r.Host.Share = p.Join(&r.Host.Sleeper, 0)
	r.build(r.setup)
}

// pace has a rig without elements ask before each attempt.
func (r *rig) pace(ask func(now time.Time) time.Duration) {
	r.setup.Pace = ask
	r.build(r.setup)
}

// sleep lets the driver sleep if the core says so, and reports it.
func (r *rig) sleep() bool {
	r.Host.Parked.Store(true)
	if r.Next() <= r.Timers.Now() {
		r.Host.Parked.Store(false)
		return false
	}
	return true
}

// wake reports whether the driver is woken.
func (r *rig) wake() bool {
	select {
	case <-r.Host.C:
		r.Host.Parked.Store(false)
		return true
	default:
		return false
	}
}

// every lets one attempt start in each interval.
type every struct {
	interval time.Duration
	next     time.Time
	asked    int
}

func (e *every) take(now time.Time) time.Duration {
	e.asked++
	if wait := e.next.Sub(now); wait > 0 {
		return wait
	}
	e.next = now.Add(e.interval)
	return 0
}

func withPace(interval time.Duration) func(c *setup) {
	return func(c *setup) { c.Pace = (&every{interval: interval}).take }
}

// Attempts start one after the other in their time, retries first. What waits for the pace has no permit.
func TestPace(t *testing.T) {
	pace := &every{interval: 10 * time.Second}
	r := newRig(t, retries(1, time.Second), func(c *setup) { c.Pace = pace.take })
	r.feed("a b c")
	r.idle()
	require.Equal(t, 2, pace.asked, "not for each element, nor before its time")
	require.Equal(t, "(a#1", r.took())
	require.Equal(t, 1, r.Running())
	require.Equal(t, 10*time.Second, r.Next(), "a timer, and no turns until then")
	r.fail("a#1")
	r.pass(10*time.Second - 1)
	require.Empty(t, r.took(), "law T1")
	require.Zero(t, r.Running())
	r.pass(1)
	require.Equal(t, "(a#2", r.took())
	r.pass(10 * time.Second)
	require.Equal(t, "(b#1", r.took())
	r.complete("a#2 b#1")
	r.pass(10 * time.Second)
	require.Equal(t, "a#2 b#1 (c#1", r.took())
	r.complete("c#1")
	r.turn()
	r.end()
}

// A pacer that lets an element wait is not asked again before that is over, although others come, and that one has timed out.
func TestPacerIsNotAskedTooEarly(t *testing.T) {
	pace := &every{interval: 10 * time.Second}
	r := newRig(t, nil, func(c *setup) { c.Pace, c.Timeout = pace.take, 6*time.Second })
	r.feed("a b")
	r.complete("a#1")
	require.Equal(t, 2, pace.asked)
	r.pass(6 * time.Second)
	r.idle()
	require.Equal(t, "(a#1 a#1 !b", r.took())
	r.feed("c d")
	r.pass(4*time.Second - 1)
	require.Equal(t, 2, pace.asked)
	r.pass(1)
	r.idle()
	require.Equal(t, "(c#1", r.took())
	r.End(errOver)
	r.Abandon()
}

// Law A3: an element may time out while it waits for the pace, without an attempt.
func TestTimeoutWhileThePaceIsAwaited(t *testing.T) {
	r := newRig(t, nil, func(c *setup) {
		withPace(time.Hour)(c)
		c.Timeout = 10 * time.Second
	})
	r.feed("a b")
	r.complete("a#1")
	r.pass(10*time.Second - 1)
	require.Equal(t, "(a#1 a#1", r.took())
	r.pass(1)
	require.Equal(t, "!b", r.took())
	c, _ := r.Counts()
	require.EqualValues(t, 1, c.Attempts)
	require.Equal(t, Never, r.Next(), "nothing waits for the pace any more")
	r.end()
}

// Law A5: a pacer that takes its time does not let an attempt start after the deadline. It is asked for nothing that has timed
// out.
func TestSlowPacer(t *testing.T) {
	r := newRig(t, nil, nil)
	asked := 0
	r.pace(func(time.Time) time.Duration {
		asked++
		r.clock.at = r.clock.at.Add(time.Hour)
		return 0
	})
	r.feed("a b")
	r.idle()
	require.Equal(t, "!a !b", r.took())
	require.LessOrEqual(t, asked, 2)
	r.end()
}

// Law A6: a pacer that breaks is the outcome of the element that it was asked about.
func TestBrokenPacer(t *testing.T) {
	breaks := true
	r := newRig(t, retries(1, 0), func(c *setup) {
		c.Pace = func(time.Time) time.Duration {
			if breaks {
				breaks = false
				panic("boom")
			}
			return 0
		}
	})
	permits := call.NewPermits(1)
	r.share(permits)
	r.feed("a b")
	r.idle()
	require.Equal(t, "!a (b#1", r.took())
	breaks = true
	r.fail("b#1")
	r.idle()
	require.Equal(t, "!b", r.took())
	_, used := permits.Counts()
	require.Zero(t, used)
	r.end()

	// Goexit ends the goroutine, and another one goes on.
	r = newRig(t, nil, func(c *setup) {
		c.Pace = func(time.Time) time.Duration {
			if breaks {
				breaks = false
				runtime.Goexit()
			}
			return 0
		}
	})
	r.share(permits)
	breaks = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.feed("a")
	}()
	<-done
	r.Resume()
	r.feed("b")
	require.Equal(t, "!a (b#1", r.took())
	r.complete("b#1")
	r.turn()
	_, used = permits.Counts()
	require.Zero(t, used)
	r.end()
}

// Two cores share a permit: who waits is woken when there is one, and nobody goes before it. It comes back before the core
// of its call takes a turn.
func TestSharedPermits(t *testing.T) {
	permits := call.NewPermits(1)
	a, b := newRig(t, nil, nil), newRig(t, nil, nil)
	a.share(permits)
	b.share(permits)
	a.feed("a1 a2")
	b.feed("b1 b2")
	require.True(t, b.sleep())
	require.Equal(t, "(a1#1", a.took())
	require.Zero(t, b.Running(), "what waits has no permit of its own")

	a.complete("a1#1")
	require.True(t, b.wake(), "although a is held up")
	a.turn()
	require.Equal(t, "a1#1", a.took(), "b is next")
	require.True(t, a.sleep())
	b.turn()
	require.Equal(t, "(b1#1", b.took())
	require.True(t, b.sleep())
	b.complete("b1#1")
	require.True(t, b.wake(), "by the completion")
	require.True(t, a.wake())
	a.turn()
	b.turn()
	require.Equal(t, "(a2#1", a.took())
	require.Equal(t, "b1#1", b.took())

	require.True(t, b.sleep())
	permits.SetLimit(2)
	require.True(t, b.wake())
	b.turn()
	require.Equal(t, "(b2#1", b.took())
	a.complete("a2#1")
	b.complete("b2#1")
	a.turn()
	b.turn()
	a.end()
	b.end()
	_, used := permits.Counts()
	require.Zero(t, used)
}

// What was set aside for an core that has no use for it any more goes to the next.
func TestSharedPermitThatIsNotNeeded(t *testing.T) {
	permits := call.NewPermits(1)
	a, b, c := newRig(t, nil, nil), newRig(t, nil, func(c *setup) { c.Timeout = time.Second }), newRig(t, nil, nil)
	for _, r := range []*rig{a, b, c} {
		r.share(permits)
	}
	a.feed("a")
	b.feed("b")
	c.feed("c")
	require.True(t, b.sleep())
	require.True(t, c.sleep())
	b.clock.at = b.clock.at.Add(time.Second)
	a.complete("a#1")
	require.True(t, b.wake())
	require.False(t, c.wake())
	b.turn()
	require.Equal(t, "!b", b.took(), "the timeout has the last word")
	require.True(t, c.wake())
	c.turn()
	require.Equal(t, "(c#1", c.took())

	b.feed("b2")
	require.True(t, b.sleep())
	c.complete("c#1")
	require.True(t, b.wake())
	for _, e := range b.Abandon() { // the run has ended
		b.Ended(e, observe.Abandoned)
	}
	b.stop(nil)
	_, used := permits.Counts()
	require.Zero(t, used)
}

// An core that sleeps gets no more permits than it has calls for, and permits of its own: the others go to those that have a
// use for them.
func TestSharedPermitsAreSetAsideForCalls(t *testing.T) {
	for name, change := range map[string]func(c *setup){
		"one call at a time": func(c *setup) { c.MaxCalls = 1 },
		"one batch": func(c *setup) {
			c.Batch = &Batching[string, string]{Of: "none", MaxSize: 4, Call: func(*testBatch) {}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			permits := call.NewPermits(0)
			a, b := newRig(t, nil, change), newRig(t, nil, nil)
			a.share(permits)
			b.share(permits)
			a.feed("a1 a2 a3")
			b.feed("b1 b2 b3")
			a.turn()
			require.True(t, a.sleep())
			require.True(t, b.sleep())
			permits.SetLimit(4)
			b.turn()
			require.Equal(t, "(b1#1 (b2#1 (b3#1", b.took(), "a has a use for one")
			for _, r := range []*rig{a, b} {
				r.End(errOver)
				r.Abandon()
			}
		})
	}
}

// A permit and no pace: the permit goes to others meanwhile.
func TestPaceHoldsNoPermit(t *testing.T) {
	permits := call.NewPermits(1)
	a, b := newRig(t, nil, withPace(10*time.Second)), newRig(t, nil, nil)
	a.share(permits)
	b.share(permits)
	a.feed("a1 a2")
	a.complete("a1#1")
	a.idle()
	require.True(t, a.sleep())
	b.feed("b")
	require.Equal(t, "(b#1", b.took())
	a.clock.at = a.clock.at.Add(10 * time.Second)
	a.turn()
	require.Equal(t, "(a1#1 a1#1", a.took())
	require.True(t, a.sleep())
	b.complete("b#1")
	require.True(t, a.wake())
	a.turn()
	require.Equal(t, "(a2#1", a.took())
	a.complete("a2#1")
	a.turn()
	b.turn()
	a.end()
	b.end()
}
