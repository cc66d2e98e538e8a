package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// own gives "a" 10 s and "n" a negative timeout. The other elements have the rig's
// timeout of a minute.
func own(in string) time.Duration {
	return map[string]time.Duration{"a": 10 * time.Second, "n": -1}[in]
}

// Law A3: elements' own deadlines pass in the order of time, whatever the order of the
// elements. Watermarks and control elements between them have no effect.
func TestOwnTimeoutsComeInAnyOrder(t *testing.T) {
	due := map[string]time.Duration{"a": 3 * time.Second, "b": time.Second, "c": 2 * time.Second}
	r := newRig(t, nil, func(c *setup) { c.TimeoutFor = func(in string) time.Duration { return due[in] } })
	r.feed("a b |1 c")
	r.took()
	for _, want := range []string{"!b", "!c", "!a |1"} {
		r.pass(time.Second)
		r.idle()
		require.Equal(t, want, r.took())
	}
	r.feed("d a")
	r.pass(3 * time.Second)
	r.idle()
	require.Equal(t, "(d#1 (a#1 !a", r.took())
	r.pass(57 * time.Second)
	r.idle()
	require.Equal(t, "!d", r.took())
	r.end()
}

// Law C1, A3: a restored element has the rest of its own timeout, or all of it, depending
// on Keep. The rest of a back-off is added.
func TestRestoredOwnTimeouts(t *testing.T) {
	for name, tt := range map[string]struct {
		keep Keep
		wait time.Duration // the rest of the back-off
		want time.Duration // from the restart to the timeout
	}{
		"from scratch":           {keep: KeepNothing, want: 10 * time.Second},
		"time spent":             {keep: KeepSpent, want: 6 * time.Second},
		"since the first":        {keep: KeepSince, want: 5 * time.Second},
		"from scratch, waiting":  {keep: KeepNothing, wait: 9 * time.Second, want: 11 * time.Second},
		"time spent and waiting": {keep: KeepSpent, wait: 5 * time.Second, want: 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, retries(9, time.Second), func(c *setup) {
				c.TimeoutFor, c.Restored.Keep, c.Config.Restored.ReserveDivisor = own, tt.keep, 5
			})
			r.Restore(Item[string, string]{
				In: "a", Restored: true, Attempts: 1, Spent: 4 * time.Second, Wait: tt.wait,
				First: r.clock.at.Add(-5 * time.Second).UnixNano(),
			}, 0)
			r.pass(tt.want - 1)
			c, _ := r.Counts()
			require.Zero(t, c.Timeouts)
			items := r.Items(nil, false)
			require.Len(t, items, 1)
			require.NotZero(t, items[0].First)
			r.pass(1)
			r.idle()
			c, _ = r.Counts()
			require.EqualValues(t, 1, c.Timeouts)
			r.end()
		})
	}
}

// Laws A5, C1: the time of the first attempt is known over any number of restarts, even
// if the element is called again as for the first time. From then on the element is in
// doubt, even if it is not called again.
func TestRestoredFirstAttempt(t *testing.T) {
	for _, keep := range []Keep{KeepNothing, KeepSince, KeepSpent} {
		var doubt bool
		r := newRig(t, retries(9, time.Hour), func(c *setup) {
			c.Restored.Keep, c.MaxCalls = keep, 1
			c.TimedOut = func(r Report[string], _ TimedOut) error { doubt = r.InDoubt; return errBroken }
		})
		first := r.clock.at.Add(-5 * time.Second).UnixNano()
		r.Restore(Item[string, string]{In: "a", Restored: true, First: first}, 0)
		r.Restore(Item[string, string]{In: "b", Restored: true, First: first, Attempts: 1, Wait: time.Hour}, 0)
		r.clock.at = r.clock.at.Add(time.Second)
		r.NoteSlept()
		require.Equal(t, "(a#1", r.took())
		items := r.Items(nil, false)
		require.Len(t, items, 2)
		if keep != KeepNothing {
			require.Equal(t, first, items[0].First)
			require.Equal(t, first, items[1].First)
		}
		require.NotZero(t, items[1].First)
		r.complete("a#1")
		r.pass(time.Minute)
		r.idle()
		require.Equal(t, "a#1 !b", r.took())
		require.True(t, doubt)
		r.end()
	}
}

// A new element that has not been called yet counts as never called, although it has its
// own deadline.
func TestOwnTimeoutIsNoRestart(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { c.TimeoutFor, c.MaxCalls = own, 1 })
	r.feed("b a")
	items := r.Items(nil, false)
	require.Len(t, items, 2)
	require.NotZero(t, items[0].First)
	require.Zero(t, items[1].First)
	r.clock.at = r.clock.at.Add(time.Second)
	r.complete("b#1")
	r.step()
	r.fail("a#1")
	r.step()
	require.Equal(t, "(b#1 (a#1 b#1 !a", r.took())
	r.end()
}

// A restored element whose own timeout has passed times out immediately, unless that
// would fail the run at every restart. Then it has the least part of the operator's
// timeout.
func TestRestoredOwnTimeoutThatIsOver(t *testing.T) {
	for _, keep := range []Keep{KeepNothing, KeepSpent, KeepSince} {
		for policy, want := range map[onFailure]time.Duration{drop: 0, failRun: 12 * time.Second} {
			r := newRig(t, nil, func(c *setup) {
				c.TimeoutFor, c.Restored.Keep, c.Config.Restored.ReserveDivisor, c.OnFailure = own, keep, 5, policy
			})
			r.Restore(Item[string, string]{In: "n", Restored: true, Attempts: 1, First: r.clock.at.UnixNano()}, 0)
			if want > 0 {
				r.pass(want - 1)
				c, _ := r.Counts()
				require.Zero(t, c.Timeouts)
				require.NotEmpty(t, r.took(), "it has been called")
				r.clock.at = r.clock.at.Add(1)
			}
			r.Step()
			c, _ := r.Counts()
			require.EqualValues(t, 1, c.Timeouts, "keep %v, policy %v", keep, policy)
		}
	}
}

// Law C3: a restored element that has spent all of its time gets the least part of it if
// its timeout would fail the run. Otherwise every restart would fail, too.
func TestRestoredTimeThatIsSpent(t *testing.T) {
	for policy, want := range map[onFailure]string{drop: "!a", failRun: "(a#2 a#2"} {
		r := newRig(t, retries(9, 0), func(c *setup) {
			c.Restored, c.OnFailure = Restored{Keep: KeepSpent, ReserveDivisor: 5}, policy
		})
		r.Restore(Item[string, string]{
			In: "a", Restored: true, Attempts: 1, Spent: time.Minute, First: r.clock.at.Add(-time.Minute).UnixNano(),
		}, 0)
		r.pass(time.Minute/5 - 1)
		if policy == failRun {
			require.False(t, r.Failed())
			r.complete("a#2")
		}
		r.idle()
		require.Equal(t, want, r.took())
		r.end()
	}
}

// Without a timeout of the operator, a restored element whose own timeout has passed has
// some seconds, and not unlimited time (law A3).
func TestRestoredOwnTimeoutThatIsOver_WithoutTimeout(t *testing.T) {
	for _, keep := range []Keep{KeepNothing, KeepSpent, KeepSince} {
		r := newRig(t, nil, func(c *setup) {
			c.Timeout = 0
			c.TimeoutFor, c.Restored.Keep, c.Config.Restored.ReserveDivisor, c.OnFailure = own, keep, 5, failRun
		})
		r.Restore(Item[string, string]{
			In: "n", Restored: true, Attempts: 1, Spent: time.Hour, First: r.clock.at.Add(-time.Hour).UnixNano(),
		}, 0)
		r.pass(leastWithoutTimeout - 1)
		c, _ := r.Counts()
		require.Zero(t, c.Timeouts)
		require.NotEmpty(t, r.took(), "it has been called")
		r.clock.at = r.clock.at.Add(1)
		r.Step()
		c, _ = r.Counts()
		require.EqualValues(t, 1, c.Timeouts, "keep %v", keep)
	}
}

// Law A3: with FromAttempt the wait for the first attempt uses up no time, also after a
// restart.
func TestTimeSpent_FromAttempt(t *testing.T) {
	build := func() *rig {
		return newRig(t, retries(9, time.Hour), func(c *setup) {
			c.Restored.Keep, c.FromAttempt, c.MaxCalls = KeepSpent, true, 1
		})
	}
	r := build()
	r.feed("a b c")
	r.pass(50 * time.Second)
	r.complete("a#1")
	r.pass(50 * time.Second)
	r.complete("b#1")
	r.pass(10 * time.Second)
	require.Equal(t, "(a#1 (b#1 a#1 (c#1 b#1", r.took())
	r.feed("d")
	items := r.Items(nil, false)
	require.Len(t, items, 2)
	require.Equal(t, 10*time.Second, items[0].Spent)
	require.Zero(t, items[1].Spent)

	r = build()
	items[0].Restored = true
	r.Restore(items[0], 0)
	r.pass(20 * time.Second)
	items = r.Items(nil, false)
	require.Len(t, items, 1)
	require.Equal(t, 30*time.Second, items[0].Spent, "of both runs")
	r.pass(30*time.Second - 1)
	require.Equal(t, "(c#1", r.took())
	r.pass(1)
	r.idle()
	require.Equal(t, "!c", r.took())
	r.end()
}

// Laws C3, A3: the time of an element has passed while the pipeline was down, during a
// back-off that would have ended in time. The element waits for the rest of the back-off,
// and has the least time for an attempt. If it timed out before, every restart would
// fail.
func TestRestoredBackOff_LongerThanTheTimeLeft(t *testing.T) {
	for name, tt := range map[string]struct {
		in     string
		keep   Keep
		spent  time.Duration
		called bool
	}{
		"downtime":                                {"a", KeepSince, 10 * time.Second, true},
		"the retry would have come too late":      {"a", KeepSince, 50 * time.Second, false},
		"a deadline has passed, from scratch":     {"n", KeepNothing, time.Hour, true},
		"a deadline has passed, with downtime":    {"n", KeepSince, time.Hour, true},
		"a deadline has passed, without downtime": {"n", KeepSpent, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, retries(9, time.Second), func(c *setup) {
				if tt.in == "n" {
					c.TimeoutFor = own
				}
				c.Restored, c.OnFailure = Restored{Keep: tt.keep, ReserveDivisor: 10}, failRun
			})
			wait := 30 * time.Second
			r.Restore(Item[string, string]{
				In: tt.in, Restored: true, Attempts: 1, Spent: tt.spent, Wait: wait, First: r.clock.at.Add(-time.Hour).UnixNano(),
			}, 0)
			if !tt.called {
				r.pass(time.Minute/10 - 1)
				require.False(t, r.Failed())
				r.clock.at = r.clock.at.Add(1)
				r.Step()
				require.True(t, r.Failed())
				require.NotContains(t, r.took(), "(")
				return
			}
			r.pass(wait - 1)
			require.False(t, r.Failed())
			require.Empty(t, r.took())
			r.pass(1)
			require.NotEmpty(t, r.took(), "it has been called")
			r.pass(time.Minute/10 - 1)
			require.False(t, r.Failed())
			r.clock.at = r.clock.at.Add(1)
			r.Step()
			require.True(t, r.Failed(), "law A3")
		})
	}
}
