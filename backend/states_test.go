package backend_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// Law B4: two successive probes are of different elements. An element with the same
// number at another operator is a different element. An element that is alone waits
// longer.
func TestProbesAreOfDifferentElements(t *testing.T) {
	b := newBench(t)
	o, other := b.attach(), b.attach()
	o.lose()
	b.clock.Add(o.wait())
	bad := gate.Request{Element: 99, Outages: 1} // an earlier call for it was lost
	_, answer := o.ask(bad)
	require.Equal(t, gate.Answer{Wait: time.Second, OthersMayStart: true}, answer)
	o.call(errBusy) // an element that has met no outage goes first

	b.clock.Add(o.wait())
	_, answer = o.ask(bad)
	require.Equal(t, gate.Answer{Wait: time.Second, OthersMayStart: true}, answer)
	b.clock.Add(time.Second)
	c, _ := o.ask(bad) // no other element has asked
	require.NotNil(t, c)
	bad.Outages++
	c.end(errBusy)

	b.clock.Add(o.wait())
	_, answer = o.ask(bad)
	require.Equal(t, gate.Answer{Wait: 3 * time.Second, OthersMayStart: true}, answer)
	third := gate.Request{Element: 99, Outages: 2} // of another operator
	_, answer = other.ask(third)
	require.Equal(t, gate.Answer{Wait: 2 * time.Second, OthersMayStart: true}, answer)
	b.clock.Add(2 * time.Second)
	_, answer = o.ask(bad)
	require.True(t, answer.OthersMayStart)
	c, _ = other.ask(third)
	require.NotNil(t, c)
	c.end(nil)
	require.Equal(t, backend.Ramping, b.Stats().State)
}

// An element that has little time left probes only if no other element has asked for one
// second: if its call is cut off, that is not evidence about the service.
func TestProbesOfHurriedElements(t *testing.T) {
	o := newBench(t).attach()
	o.lose()
	o.clock.Add(o.wait())
	_, answer := o.ask(gate.Request{Hurried: true})
	require.Equal(t, gate.Answer{Wait: time.Second, OthersMayStart: true}, answer)
	o.clock.Add(time.Second)
	c, _ := o.ask(gate.Request{Hurried: true})
	require.NotNil(t, c)
}

// After a probe whose result is ignored, or whose operator leaves, another one may start.
func TestProbesThatSayNothing(t *testing.T) {
	b := newBench(t)
	o, other := b.attach(), b.attach()
	o.lose()
	b.clock.Add(o.wait())
	probe := o.start()
	require.Equal(t, 10*time.Second, other.wait())
	woken := other.woken
	o.seat.Release(probe.stamp)
	o.seat.AttemptEnded(b.clock.Now(), &gate.Evidence{Ignored: true, Begun: probe.begun, Element: probe.attempt.Element})
	require.Greater(t, other.woken, woken)
	probe = other.start()
	require.Equal(t, 10*time.Second, o.wait())
	other.seat.Leave()
	other.seat.Release(probe.stamp)
	o.start()
}

// Law B4: a probe that does not end keeps other calls away for ten seconds only, and its
// permit does not keep the load from growing back.
func TestProbeThatNeverEnds(t *testing.T) {
	b := newBench(t, backend.Limit(20))
	o, other := b.attach(), b.attach()
	o.lose()
	b.clock.Add(o.wait())
	hangs := o.start()
	require.Equal(t, 10*time.Second, other.wait())
	b.clock.Add(4 * time.Second)
	require.Equal(t, 6*time.Second, other.wait())
	b.clock.Add(6 * time.Second)
	second := other.start()
	require.Equal(t, 10*time.Second, o.wait(), "one probe at a time")
	second.end(nil)
	require.Equal(t, backend.Ramping, b.Stats().State)
	first := o.start() // in its turn
	_, answer := other.ask(gate.Request{})
	require.NotZero(t, answer.Wait, "the ramp begins with one call")
	first.end(nil)
	b.clock.Add(5 * time.Second)
	other.call(nil)
	require.Equal(t, backend.Up, b.Stats().State)
	hangs.end(errBusy)
	require.Equal(t, backend.Up, b.Stats().State)
}

// If a service takes longer than other elements wait for a probe, the answer to an
// earlier probe counts, too.
func TestSlowProbes(t *testing.T) {
	o := newBench(t).attach()
	o.lose()
	o.clock.Add(time.Second)
	first := o.start()
	o.clock.Add(10 * time.Second)
	second := o.start()
	o.clock.Add(5 * time.Second)
	first.end(nil)
	require.Equal(t, backend.Ramping, o.Stats().State)
	second.end(errBusy)
	require.Equal(t, backend.Ramping, o.Stats().State)

	o = newBench(t).attach()
	o.lose()
	o.clock.Add(time.Second)
	first = o.start()
	o.Resume()
	o.start()
	require.Equal(t, 10*time.Second, o.wait(), "Resume lets one more try")
	first.end(errBusy)
	require.Equal(t, backend.Down, o.Stats().State)
}

// Calls that began before the end of the outage are not evidence about the present.
func TestOldLossesAreNoRelapse(t *testing.T) {
	o := newBench(t).attach()
	var old []*call
	for range 20 {
		old = append(old, o.start())
	}
	for range 20 {
		o.call(errBusy)
	}
	o.clock.Add(10 * time.Second)
	o.call(nil)
	require.Equal(t, backend.Ramping, o.Stats().State)
	for _, c := range old {
		require.True(t, c.end(errBusy), "it met the outage")
	}
	require.Equal(t, backend.Ramping, o.Stats().State)
	for range 2 {
		o.clock.Add(time.Second)
		o.call(errBusy)
	}
	require.Equal(t, backend.Ramping, o.Stats().State)
	o.clock.Add(time.Second)
	o.call(errBusy)
	require.Equal(t, backend.Down, o.Stats().State)
	require.Equal(t, 250*time.Millisecond, o.wait(), "a relapse does not double the pause")
}

// The rate saves up no calls while the backend is down.
func TestRate_NoBurstAfterAnOutage(t *testing.T) {
	o := newBench(t, backend.Rate(1000, time.Second)).attach()
	o.lose()
	o.clock.Add(time.Hour)
	o.call(nil)
	require.Equal(t, backend.Ramping, o.Stats().State)
	o.wait()
	started := 0
	for range 100 { // the first tenth of a second
		o.clock.Add(time.Millisecond)
		for {
			c, _ := o.ask(gate.Request{})
			if c == nil {
				break
			}
			started++
			c.end(nil)
		}
	}
	require.LessOrEqual(t, started, 3) // of a hundred
}

// A backend that is held by hand stays held until Resume, which tries the service first.
func TestHold_ByHand(t *testing.T) {
	b := newBench(t)
	o := b.attach()
	running := o.start()
	b.Hold("migration")
	require.Equal(t, backend.Held, b.Stats().State)
	require.Equal(t, "migration", b.Stats().Reason)
	require.Equal(t, gate.Never, o.wait())
	b.clock.Add(time.Hour)
	require.Equal(t, gate.Never, o.wait())
	running.end(errIn3)
	require.Equal(t, backend.Held, b.Stats().State, "what the server says does not end it")
	err, wait := o.seat.WhyWaiting(b.clock.Now(), &gate.Late{})
	require.EqualError(t, err, "backend payments is held: migration")
	require.Equal(t, 10*time.Second, wait)
	woken := o.woken
	b.Resume()
	require.Greater(t, o.woken, woken)
	require.Equal(t, backend.Probing, b.Stats().State)
	require.Equal(t, 3*time.Second, o.wait(), "the demanded delay is obeyed")
	b.clock.Add(3 * time.Second)
	o.call(nil)
	require.Equal(t, backend.Ramping, b.Stats().State)
	b.Resume()
	require.Equal(t, backend.Ramping, b.Stats().State)
	require.Equal(t, []string{
		`level=WARN msg="backend: held" backend=payments reason=migration`,
		`level=INFO msg="backend: paused" backend=payments for=3s reason="the service asks to wait 3s"`,
		`level=INFO msg="backend: probing" backend=payments reason=migration`,
		`level=INFO msg="backend: ramping: its service answers again" backend=payments over=5s`,
	}, strings.Split(strings.TrimSpace(b.log.String()), "\n"))
}

// Going down changes how long seats sleep.
func TestCloseWakes(t *testing.T) {
	b := newBench(t, backend.Limit(1))
	o, other := b.attach(), b.attach()
	c := o.start()
	require.Equal(t, gate.Never, other.wait())
	b.clock.Add(time.Second)
	c.o.seat.AttemptEnded(b.clock.Now(), &gate.Evidence{Err: errIn3, Begun: c.begun})
	require.Equal(t, 1, other.woken)
	require.Equal(t, 3*time.Second, other.seat.Wait(b.clock.Now(), 1))
	_, wait := other.seat.WhyWaiting(b.clock.Now(), &gate.Late{})
	require.Equal(t, 3*time.Second, wait)
}

// The Error method of an error is user code: it does not run under the lock of the
// backend (law W2).
func TestErrorsThatAskTheBackend(t *testing.T) {
	o := newBench(t).attach()
	for range 5 {
		o.call(predicates.WithReason(asking{o.Backend}, httpretry.ServiceUnavailable))
	}
	require.Equal(t, "the last 5 calls in a row were lost, the last one: HTTP_503_SERVICE_UNAVAILABLE: it was up", o.Stats().Reason)
}

type asking struct{ b *backend.Backend }

func (a asking) Error() string { return "it was " + a.b.Stats().State.String() }

// A dry run reports that the backend would have gone down, but keeps it up.
func TestDryRun(t *testing.T) {
	o := newBench(t, backend.DryRun(), backend.Limit(1)).attach()
	for range 5 {
		require.False(t, o.call(errBusy))
	}
	o.clock.Add(time.Second)
	o.call(errIn3)
	require.Equal(t, backend.Up, o.Stats().State)
	require.EqualValues(t, 1, o.Stats().WouldHaveTripped)
	require.Zero(t, o.Stats().Trips)
	require.Contains(t, o.log.String(), `level=WARN msg="backend: would be down without DryRun" backend=payments reason="the last 5 calls in a row were lost`)
	o.start()
	require.Equal(t, gate.Never, o.wait())
}

// While a dry run would be down, further losses write no line.
func TestDryRunSaysItOnce(t *testing.T) {
	o := newBench(t, backend.DryRun()).attach()
	for range 100 {
		o.call(errIn3)
	}
	require.EqualValues(t, 1, o.Stats().WouldHaveTripped)
	require.Equal(t, 1, strings.Count(o.log.String(), "\n"))
	o.clock.Add(3 * time.Second)
	for range 5 {
		o.call(errIn3)
	}
	require.EqualValues(t, 2, o.Stats().WouldHaveTripped)
}

// A dry run that was held by hand also tries its service on Resume, and does not stay
// down if the probe fails (law W2).
func TestProbeOfADryRun(t *testing.T) {
	for _, err := range []error{errBusy, errIn3} {
		o := newBench(t, backend.DryRun()).attach()
		o.Hold("by hand")
		o.Resume()
		o.call(err)
		require.Equal(t, backend.Ramping, o.Stats().State)
		require.EqualValues(t, 1, o.Stats().WouldHaveTripped)
		o.start()
	}
}

// Regression: after a hold, a dry run let only one call run at a time while all calls
// were lost.
func TestRampOfADryRun(t *testing.T) {
	for _, err := range []error{errBusy, errIn3} {
		o := newBench(t, backend.DryRun(), backend.Limit(10)).attach()
		o.Hold("by hand")
		o.Resume()
		o.call(err)
		for range 20 {
			o.clock.Add(time.Second)
			o.call(err)
		}
		require.Equal(t, backend.Up, o.Stats().State)
		for range 10 {
			o.start()
		}
	}
}

// Law B2: an element that waited for the end of an outage, and had no time left to start
// in the ramp, has met the outage.
func TestDeadlineInARamp(t *testing.T) {
	o := newBench(t, backend.Limit(10)).attach()
	o.lose()
	o.clock.Add(10 * time.Second)
	o.call(nil)
	require.Equal(t, backend.Ramping, o.Stats().State)
	err, wait := o.seat.WhyWaiting(o.clock.Now(), &gate.Late{})
	require.ErrorContains(t, err, "backend payments is ramping: ")
	require.Equal(t, 5*time.Second, wait)
}

// Regression (law B2): with a limit of 0, which people may set to hold a service, the
// waiting elements became dead letters.
func TestDeadlineUnderALimitOfNone(t *testing.T) {
	o := newBench(t, backend.Limit(10)).attach()
	o.SetLimit(0)
	err, wait := o.seat.WhyWaiting(o.clock.Now(), &gate.Late{})
	require.EqualError(t, err, "backend payments has a limit of 0")
	require.Equal(t, 10*time.Second, wait)
}

// Law W2: if a message fails at two successive visits, and the service has answered in
// between, the message itself may be the cause.
func TestAnsweredBetweenTwoFailures(t *testing.T) {
	o := newBench(t, backend.Limit(10)).attach()
	begun := o.clock.Now()
	late := gate.Late{Failed: begun, Begun: begun.Add(2 * time.Second)}
	why := func() error {
		err, _ := o.seat.WhyWaiting(o.clock.Now(), &late)
		return err
	}
	o.clock.Add(time.Second)
	o.lose()
	require.NotErrorIs(t, why(), gate.ErrAnswered, "never")
	o.clock.Add(200 * time.Millisecond)
	require.Equal(t, backend.Down, o.Stats().State)
	o.clock.Add(10 * time.Second)
	o.call(nil)
	for range 3 {
		o.clock.Add(time.Second)
		o.call(errBusy)
	}
	require.NotErrorIs(t, why(), gate.ErrAnswered, "after the last attempt")
	late.Begun = o.clock.Now().Add(time.Second)
	require.ErrorIs(t, why(), gate.ErrAnswered)
	late.Failed = o.clock.Now()
	require.NotErrorIs(t, why(), gate.ErrAnswered, "before")
	late.Failed = time.Time{}
	require.NotErrorIs(t, why(), gate.ErrAnswered, "its first failure")
}

// Retries are bounded to a share of the first attempts, plus ten a second, plus a hundred
// at once.
func TestRetryBudget(t *testing.T) {
	o := newBench(t, backend.RetryBudget(0.25)).attach()
	mayRetry := func() (n int) {
		for o.seat.MayRetry(o.clock.Now()) {
			n++
		}
		return n
	}
	require.Equal(t, 100, mayRetry())
	for range 40 {
		o.call(nil)
	}
	require.Equal(t, 10, mayRetry())
	c, _ := o.ask(gate.Request{Retry: true})
	c.end(nil)
	require.Zero(t, mayRetry())
	o.clock.Add(time.Second)
	require.Equal(t, 10, mayRetry())
	o.clock.Add(time.Hour)
	require.Equal(t, 100, mayRetry())
	require.EqualValues(t, 5, o.Stats().RetriesRefused)
	require.True(t, newBench(t).attach().seat.MayRetry(o.clock.Now()))
}

// Calls inside a call run on its permit, one at a time (law B1). Further calls need
// permits of their own.
func TestLentPermits(t *testing.T) {
	b := newBench(t, backend.Limit(1))
	outer := b.attach()
	outer.start()
	inner := &operator{bench: b}
	inner.seat = gate.Of(b).Attach(inner, gate.Caller{Lent: 1})
	c := inner.start()
	require.Equal(t, gate.Never, inner.wait())
	c.end(nil)
	require.Equal(t, 1, inner.woken)
	inner.start()
	require.Equal(t, 1, b.Stats().InUse)
	b.Hold("by hand")
	require.Equal(t, gate.Never, inner.wait(), "law B1")
}

// The rate that was reserved for a seat is available when the seat asks, even if its call
// then runs on a lent permit.
func TestSetAsideForAPlaceWithALentPermit(t *testing.T) {
	b := newBench(t, backend.Limit(2), backend.Rate(20, time.Second))
	outer := b.attach()
	outer.start()
	inner := &operator{bench: b}
	inner.seat = gate.Of(b).Attach(inner, gate.Caller{Lent: 1})
	b.clock.Add(50 * time.Millisecond)
	c := outer.start()
	require.Equal(t, 50*time.Millisecond, inner.wait())
	b.clock.Add(50 * time.Millisecond)
	c.end(nil)
	require.Equal(t, 1, inner.woken)
	inner.start()
	require.Equal(t, 1, b.Stats().InUse)
}

// A permit that was reserved for a seat that does not use it goes to another seat.
func TestSetAside(t *testing.T) {
	b := newBench(t, backend.Limit(1))
	o, second, third := b.attach(), b.attach(), b.attach()
	c := o.start()
	second.wait()
	third.wait()
	c.end(nil)
	require.Equal(t, 1, second.woken)
	require.Zero(t, third.woken)
	require.Zero(t, b.Stats().InUse)
	_, answer := o.ask(gate.Request{})
	require.NotZero(t, answer.Wait, "it is the second one's")
	second.seat.DoneAsking(b.clock.Now(), false) // its element has timed out
	require.Equal(t, 1, third.woken)
	third.start()
	third.seat.Leave()
	require.Equal(t, 1, b.Stats().InUse)
	require.Equal(t, 1, b.Stats().Waiting)
}

// A permit that was reserved for a seat whose next call costs too much goes to another
// seat, even if the first one is awake, because it may run user code.
func TestSetAsideForACallThatCostsMore(t *testing.T) {
	b := newBench(t, backend.Limit(1), backend.Rate(100, time.Second))
	o, second, third := b.attach(), b.attach(), b.attach()
	c, _ := o.ask(gate.Request{Cost: 9})
	second.wait()
	third.wait()
	b.clock.Add(50 * time.Millisecond)
	c.end(nil)
	require.Equal(t, 1, second.woken)
	_, answer := second.ask(gate.Request{Cost: 5})
	require.NotZero(t, answer.Wait)
	require.Zero(t, third.woken)
	second.seat.DoneAsking(b.clock.Now(), true)
	require.Equal(t, 1, third.woken)
	third.start()
}

// Reserved cost is returned at the amount that was taken.
func TestSetAsideForCallsOfOtherCosts(t *testing.T) {
	b := newBench(t, backend.Limit(2), backend.Rate(100, time.Second))
	o, second := b.attach(), b.attach()
	c, _ := o.ask(gate.Request{Cost: 3})
	other, _ := o.ask(gate.Request{Cost: 2})
	second.wait()
	second.seat.Wait(b.clock.Now(), 2)
	b.clock.Add(20 * time.Millisecond)
	c.end(nil)
	other.end(nil)
	require.Equal(t, 2, second.woken)
	_, answer := second.ask(gate.Request{Cost: 5})
	require.NotZero(t, answer.Wait)
	second.seat.DoneAsking(b.clock.Now(), true)
	_, answer = o.ask(gate.Request{Cost: 5})
	require.NotZero(t, answer.Wait, "there are two")
	o.sleep()
	b.clock.Add(30 * time.Millisecond)
	c, _ = o.ask(gate.Request{Cost: 5})
	require.NotNil(t, c)
}

// A lower limit takes back the permits that were reserved last.
func TestSetAsideForTwoAndALowerLimit(t *testing.T) {
	b := newBench(t, backend.Limit(3))
	o, second, third := b.attach(), b.attach(), b.attach()
	o.start()
	c, other := o.start(), o.start()
	second.wait()
	third.wait()
	c.end(nil)
	other.end(nil)
	b.SetLimit(2)
	second.start()
	require.Equal(t, gate.Never, third.wait())
}

// A backend that is up again hands out all permits of its limit, whichever call has
// noticed the end of the ramp.
func TestRamp_EndWakes(t *testing.T) {
	for name, look := range map[string]func(c *call){
		"an outcome": func(c *call) {
			c.o.seat.AttemptEnded(c.o.clock.Now(), &gate.Evidence{Begun: c.begun, Element: c.attempt.Element})
		},
		"statistics": func(c *call) { c.o.Stats() },
		"a failure":  func(c *call) { _, _ = c.o.seat.WhyWaiting(c.o.clock.Now(), &gate.Late{}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, backend.Limit(2))
			o, other := b.attach(), b.attach()
			o.lose()
			b.clock.Add(10 * time.Second)
			o.call(nil)
			o.call(nil)
			b.clock.Add(time.Second)
			c := o.start()
			other.wait()
			require.Equal(t, backend.Ramping, b.Stats().State)
			require.Zero(t, other.woken)
			b.clock.Add(time.Minute)
			look(c)
			require.Equal(t, 1, other.woken)
			require.Equal(t, backend.Up, b.Stats().State)
			other.start()
		})
	}
}

// Laws B1 and B4: a lent permit does not allow a call while the backend is down or held,
// or a second probe.
func TestLentPermitsOfABackendThatIsNotUp(t *testing.T) {
	b := newBench(t)
	o := b.attach()
	lent := &operator{bench: b}
	lent.seat = gate.Of(b).Attach(lent, gate.Caller{Lent: 1})
	o.lose()
	require.Equal(t, 250*time.Millisecond, lent.wait())
	b.clock.Add(time.Second)
	o.start()
	require.Equal(t, 10*time.Second, lent.wait(), "the probe")
	b.Hold("by hand")
	require.Equal(t, gate.Never, lent.wait())
}

// Reserved permits are taken back when the backend is held or paused, because they would
// keep the next call from starting.
func TestSetAside_HoldAndPause(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(o *operator)
		state backend.State
	}{
		"hold": {func(o *operator) { o.Hold("by hand"); o.Resume() }, backend.Probing},
		"pause": {func(o *operator) {
			o.seat.AttemptEnded(o.clock.Now(), &gate.Evidence{Err: errThrottledIn3, Begun: o.clock.Now(), Element: 99})
		}, backend.Up},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, backend.Limit(1))
			o, second := b.attach(), b.attach()
			running := o.start()
			second.wait()
			running.end(nil)
			require.Positive(t, second.woken)
			c.do(o)
			b.clock.Add(3 * time.Second)
			second.start()
			require.Equal(t, c.state, b.Stats().State)
		})
	}
}

// A lower limit takes back reserved permits.
func TestSetAsideAndALowerLimit(t *testing.T) {
	b := newBench(t, backend.Limit(2))
	o, second := b.attach(), b.attach()
	first := o.start()
	o.start()
	second.wait()
	first.end(nil)
	require.Equal(t, 1, second.woken)
	b.SetLimit(0)
	require.Equal(t, gate.Never, second.wait())
	require.Equal(t, 1, b.Stats().InUse)
	b.SetLimit(2)
	require.Equal(t, 2, second.woken)
	second.start()
}

// A probe waits until the rate covers its cost, whether it needs its own permit or runs
// on a lent permit.
func TestProbesAndTheRate(t *testing.T) {
	b := newBench(t, backend.Limit(1), backend.Rate(20, time.Second))
	o := b.attach()
	for range 5 {
		b.clock.Add(time.Second)
		o.call(errBusy)
	}
	b.clock.Add(time.Second)
	outer := b.attach()
	running := outer.start()
	require.Equal(t, backend.Probing, b.Stats().State)
	running.end(errBusy)
	b.Hold("by hand")
	b.Resume()
	b.clock.Add(time.Second)
	costly := gate.Request{Cost: 40, Element: 7}
	c, _ := o.ask(costly)
	require.NotNil(t, c, "the bucket is full")
	o.seat.Release(c.stamp)
	o.seat.AttemptEnded(b.clock.Now(), &gate.Evidence{Ignored: true, Begun: c.begun, Element: 7})
	wait := o.wait()
	require.Equal(t, 2*time.Second, wait)
	b.clock.Add(wait)
	lent := &operator{bench: b}
	lent.seat = gate.Of(b).Attach(lent, gate.Caller{Lent: 1})
	outer.start().o.seat.AttemptEnded(b.clock.Now(), &gate.Evidence{Ignored: true, Begun: b.clock.Now(), Element: 2})
	require.Equal(t, gate.Never, o.wait(), "its permit is taken")
	require.Equal(t, 50*time.Millisecond, lent.wait(), "this one runs on it")
}

// An operator that is awake for long, in the body of the loop over its results, does not
// block other operators.
func TestTurnOfAnOperatorThatIsAwake(t *testing.T) {
	b := newBench(t, backend.Limit(1))
	o, second := b.attach(), b.attach()
	c := o.start()
	b.clock.Add(time.Second)
	second.wait()
	second.parked = false // it was woken by something else
	c.end(nil)
	_, answer := o.ask(gate.Request{})
	require.NotZero(t, answer.Wait, "its turn is kept for a moment")
	require.Equal(t, 10*time.Millisecond, o.sleep())
	b.clock.Add(10 * time.Millisecond)
	o.start()
}

// Law W3: tenants that are at rest are removed, so that their memory is free again.
func TestTenantsAreForgotten(t *testing.T) {
	b := newBench(t, backend.TenantRate(100, time.Second))
	o := b.attach()
	ask := func(i int) { o.ask(gate.Request{Tenant: strconv.Itoa(i)}) }
	for i := range 50_000 {
		ask(i)
	}
	require.Equal(t, 50_000, backend.Tenants(b.Backend))
	b.clock.Add(2 * time.Minute)
	for range 30_000 {
		ask(7)
	}
	require.LessOrEqual(t, backend.Tenants(b.Backend), 1025)
}

// Tenants that are paused, or in debt, are not forgotten.
func TestTenantsThatAreNotAtRestAreKept(t *testing.T) {
	b := newBench(t, backend.TenantRate(100, time.Second), backend.LongestPause(time.Hour))
	o := b.attach()
	c, _ := o.ask(gate.Request{Tenant: "in debt", Cost: 100 * 3600})
	require.NotNil(t, c)
	paused, _ := o.ask(gate.Request{Tenant: "paused"})
	paused.end(errForEver)
	for i := range 3000 {
		o.ask(gate.Request{Tenant: strconv.Itoa(i)})
	}
	b.clock.Add(2 * time.Minute)
	for range 3000 {
		o.ask(gate.Request{Tenant: "7"})
	}
	require.LessOrEqual(t, backend.Tenants(b.Backend), 1025)
	for _, tenant := range []string{"in debt", "paused"} {
		_, answer := o.ask(gate.Request{Tenant: tenant})
		require.Greater(t, answer.Wait, 50*time.Minute, tenant)
	}
}

// A call for several elements is one call: it is lost if all of them are.
func TestCallsForSeveralElements(t *testing.T) {
	o := newBench(t).attach()
	batch := func(errs ...error) (outages int) {
		c := o.start()
		call := gate.Call{Element: c.attempt.Element, Left: len(errs)}
		o.seat.Release(c.stamp)
		for i, err := range errs {
			if o.seat.AttemptEnded(o.clock.Now(), &gate.Evidence{Err: err, Begun: c.begun, Element: uint64(1000 + i), Call: &call}) != gate.Counts {
				outages++
			}
		}
		return outages
	}
	for range 10 {
		require.Zero(t, batch(errBusy, nil, errBusy, errBusy), "the service has answered")
	}
	require.Equal(t, backend.Up, o.Stats().State)
	require.Zero(t, o.Stats().Lost)
	for range 4 {
		batch(errBusy, errBusy, errBusy)
	}
	require.Equal(t, backend.Up, o.Stats().State)
	require.Equal(t, 3, batch(errBusy, errBusy, errBusy))
	require.Equal(t, backend.Down, o.Stats().State)
	require.EqualValues(t, 5, o.Stats().Lost)
	o.clock.Add(10 * time.Second)
	batch(errBusy, nil)
	require.Equal(t, backend.Ramping, o.Stats().State, "a probe that was answered")
	o.clock.Add(time.Second)
	require.Equal(t, 2, batch(errBusy, nil, errBusy), "the last one met the outage as the first one did")
}

func TestRefusals(t *testing.T) {
	for text, f := range map[string]func(){
		"backend: New: empty name":                                                                           func() { backend.New("") },
		"backend: Limit: negative number of calls: -1":                                                       func() { backend.Limit(-1) },
		"backend: SetLimit: negative number of calls: -1":                                                    func() { backend.New("a").SetLimit(-1) },
		"backend: Adaptive: want 1 ≤ least ≤ most: 0, 5":                                                     func() { backend.Adaptive(0, 5) },
		"backend: Adaptive: want 1 ≤ least ≤ most: 6, 5":                                                     func() { backend.Adaptive(6, 5) },
		"backend: Rate: not positive, or not finite: 0 in 1s":                                                func() { backend.Rate(0, time.Second) },
		"backend: TenantRate: not positive, or not finite: 5 in 0s":                                          func() { backend.TenantRate(5, 0) },
		"backend: RetryBudget: share outside [0, 1]: 2":                                                      func() { backend.RetryBudget(2) },
		"backend: LossShare: share 0, window 5: want a share above 0 and up to 1, and a window of 1 or more": func() { backend.LossShare(0, 5) },
		"backend: LongestPause: not positive: 0s":                                                            func() { backend.LongestPause(0) },
		"backend: WithClock: nil clock":                                                                      func() { backend.WithClock(nil) },
		"backend: WithLogger: nil logger":                                                                    func() { backend.WithLogger(nil) },
	} {
		require.PanicsWithValue(t, text, f)
	}
}

// An order is carried out once, unless a newer order came before, and changes only the
// settings that it names.
func TestOrders(t *testing.T) {
	at := time.Now()
	order := func(o gate.Order) gate.Order {
		at = at.Add(time.Second)
		o.At = at
		return o
	}
	held := gate.Order{Held: true, Why: "by ann", Limit: -1}
	old := order(held)
	b := backend.New("pay", backend.Limit(10), backend.WithLogger(silent))
	b.Hold("by the program")
	gate.Of(b).Steer(order(gate.Order{Limit: 5})) // does not change the hold
	require.Equal(t, backend.Held, b.Stats().State)
	require.Equal(t, 5, b.Stats().Limit)
	gate.Of(b).Steer(old)
	require.Equal(t, "by the program", b.Stats().Reason)
	now := order(held)
	gate.Of(b).Steer(now)
	require.Equal(t, "by ann", b.Stats().Reason)
	require.Equal(t, 10, b.Stats().Limit)
	trips := b.Stats().Trips
	gate.Of(b).Steer(now)
	gate.Of(b).Steer(order(held))
	require.Equal(t, trips, b.Stats().Trips)
	gate.Of(b).Steer(order(gate.Order{Resumes: true, Limit: -1}))
	require.Equal(t, backend.Probing, b.Stats().State)
	b.Hold("by the program")
	gate.Of(b).Steer(order(gate.Order{Resumes: true, Limit: -1})) // the program held it
	require.Equal(t, backend.Probing, b.Stats().State)

	// An order to resume from long ago does not end a later hold of the program.
	b = backend.New("pay", backend.WithLogger(silent))
	b.Hold("by the program")
	gate.Of(b).Steer(gate.Order{At: time.Now().Add(-time.Hour), Resumes: true, Limit: -1})
	require.Equal(t, backend.Held, b.Stats().State)
	require.Equal(t, -1, gate.Of(b).Report().Limit)
}

// Law B4: while the first call of a tenant after its pause runs, an earlier call is
// refused and extends the pause. After the longer pause the next call may start.
func TestProbeOfATenantWhoseWaitHasGrown(t *testing.T) {
	b := newBench(t)
	o := b.attach()
	ask := func() (*call, gate.Answer) { return o.ask(gate.Request{Tenant: "a"}) }
	first, _ := ask()
	second, _ := ask()
	first.end(errIn3)
	b.clock.Add(3 * time.Second)
	probe, _ := ask()
	require.NotNil(t, probe)
	b.clock.Add(time.Second)
	second.end(errIn3)
	probe.end(nil)
	b.clock.Add(3 * time.Second)
	c, _ := ask()
	require.NotNil(t, c, "its wait is over, and no probe runs")
}

// Law B6: a throttle of a tenant delays that tenant alone. Then its calls start at the
// same rate as before, from an empty bucket, without a probe.
func TestTenant_Throttled(t *testing.T) {
	b := newBench(t, backend.TenantRate(10, time.Second))
	o := b.attach()
	c, _ := o.ask(gate.Request{Tenant: "a"})
	require.Equal(t, gate.Throttled, c.effect(errThrottledIn3))
	err, wait := o.seat.WhyWaiting(b.clock.Now(), &gate.Late{Tenant: "a"})
	require.EqualError(t, err, `backend payments is paused for tenant "a"`)
	require.Equal(t, 3*time.Second, wait)
	err, _ = o.seat.WhyWaiting(b.clock.Now(), &gate.Late{Tenant: "b"})
	require.NoError(t, err)
	c, _ = o.ask(gate.Request{Tenant: "b"})
	require.NotNil(t, c)
	b.clock.Add(3 * time.Second)
	_, answer := o.ask(gate.Request{Tenant: "a"})
	require.Equal(t, gate.Answer{Wait: 100 * time.Millisecond, OthersMayStart: true}, answer, "an empty bucket")
	for range 5 {
		b.clock.Add(100 * time.Millisecond)
		c, _ = o.ask(gate.Request{Tenant: "a"})
		require.NotNil(t, c, "no probe: the earlier calls have not ended")
	}
	require.Equal(t, backend.Up, b.Stats().State)
}

// Law B4: a ramp does not wait for calls that began before the outage, and does not grow
// faster when they end.
func TestRamp_CallsThatOutliveTheOutage(t *testing.T) {
	o := newBench(t, backend.Limit(100)).attach()
	var old []*call
	for range 50 {
		old = append(old, o.start())
	}
	o.Hold("by hand")
	o.clock.Add(10 * time.Second)
	o.Resume()
	o.call(nil)
	require.Equal(t, backend.Ramping, o.Stats().State)
	o.start()
	before := o.wait()
	require.NotZero(t, before)
	for _, c := range old {
		c.end(nil)
	}
	require.Equal(t, before, o.wait())
	o.clock.Add(5 * time.Second)
	o.start()
	require.Equal(t, backend.Up, o.Stats().State)
}
