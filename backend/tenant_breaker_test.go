package backend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
)

// askFor asks to start a call for a new element of a tenant.
func (o *operator) askFor(tenant string) (c *call, answer gate.Answer) {
	return o.ask(gate.Request{Tenant: tenant})
}

// callFor makes a call for a new element of a tenant.
func (o *operator) callFor(tenant string, err error) (outage bool) {
	o.Helper()
	c, answer := o.askFor(tenant)
	require.NotNil(o, c, "%+v", answer)
	return c.end(err)
}

// loseFor takes a tenant down by losses.
func (o *operator) loseFor(tenant string) {
	o.Helper()
	for range 5 {
		o.callFor(tenant, errBusy)
	}
	_, answer := o.askFor(tenant)
	require.True(o, answer.TenantIsDown)
}

// restrictions returns the shares of the tenants that are not up.
func (b *bench) restrictions() map[string]float64 {
	list, _ := gate.Of(b).Restrictions()
	shares := map[string]float64{}
	for _, r := range list {
		shares[r.Tenant] = r.Share
	}
	return shares
}

// Laws B1 and B4: the losses of a tenant take down this tenant alone. It comes back
// through one probe at a time, and a ramp.
func TestTenantBreaker_LossesOfOneTenant(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.loseFor("a")
	require.Equal(t, map[string]float64{"a": 0}, b.restrictions())
	stats := b.Stats()
	require.Equal(t, backend.Up, stats.State)
	require.Equal(t, 1, stats.TenantsDown)
	require.Equal(t, int64(1), stats.TenantTrips)
	require.Zero(t, stats.Trips)
	for range 100 {
		o.callFor("b", nil)
		o.call(nil)
	}
	_, answer := o.askFor("a")
	require.Equal(t, gate.Answer{Wait: 250 * time.Millisecond, OthersMayStart: true, TenantIsDown: true}, answer)

	b.clock.Add(250 * time.Millisecond)
	probe, _ := o.askFor("a")
	require.NotNil(t, probe)
	_, answer = o.askFor("a")
	require.True(t, answer.OthersMayStart && answer.TenantIsDown, "one probe at a time: %+v", answer)
	require.True(t, probe.end(errBusy), "it met the outage")
	_, answer = o.askFor("a")
	require.Equal(t, 250*time.Millisecond, answer.Wait)

	b.clock.Add(time.Minute)
	require.Equal(t, map[string]float64{"a": 1e-9}, b.restrictions(), "one message may try")
	o.callFor("a", nil)
	require.Contains(t, b.log.String(), `level=WARN msg="backend: down" backend=payments tenant=a for=250ms reason="the last 5 calls in a row were lost`)
	o.callFor("a", nil)
	_, answer = o.askFor("a")
	require.True(t, answer.OthersMayStart)
	require.False(t, answer.TenantIsDown, "the load grows back: its elements wait in their slots")
	b.clock.Add(2500 * time.Millisecond)
	require.InDelta(t, 0.5, b.restrictions()["a"], 0.01)
	b.clock.Add(2500 * time.Millisecond)
	require.Empty(t, b.restrictions())
	for range 100 {
		o.callFor("a", nil)
	}
	require.Zero(t, b.Stats().TenantsDown)
}

// Law B4: after an outage the calls of a tenant start at a rate that grows with time to
// its value before.
func TestTenantBreaker_Ramp(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	for range 10 {
		b.clock.Add(time.Second)
		for range 100 {
			o.callFor("a", nil)
		}
	}
	b.clock.Add(time.Second)
	o.loseFor("a")
	b.clock.Add(time.Minute)
	o.callFor("a", nil)
	var started [6]int // by the second
	for i := range 500 {
		b.clock.Add(10 * time.Millisecond)
		for c, _ := o.askFor("a"); c != nil; c, _ = o.askFor("a") {
			started[i/100]++
			c.end(nil)
			if i == 499 {
				break // the tenant is up
			}
		}
	}
	for second := range 5 {
		require.InDelta(t, 10+20*second, started[second], 4, "%v", started)
	}
}

// Law B4: two successive probes of a tenant are of different elements.
func TestTenantBreaker_ProbesAreOfDifferentElements(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.loseFor("a")
	b.clock.Add(250 * time.Millisecond)
	probe, _ := o.ask(gate.Request{Tenant: "a", Element: 99})
	require.NotNil(t, probe)
	probe.end(errBusy)
	b.clock.Add(250 * time.Millisecond)
	_, answer := o.ask(gate.Request{Tenant: "a", Element: 99, Outages: 1})
	require.Equal(t, gate.Answer{Wait: 2 * time.Second, OthersMayStart: true}, answer)
	o.callFor("a", nil)
}

// Law B4: a relapse on the ramp takes the tenant down again, with the shortest pause.
func TestTenantBreaker_Relapse(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.loseFor("a")
	b.clock.Add(time.Minute)
	o.callFor("a", nil)
	for range 3 {
		b.clock.Add(time.Second)
		o.callFor("a", errBusy)
	}
	_, answer := o.askFor("a")
	require.Equal(t, gate.Answer{Wait: 250 * time.Millisecond, OthersMayStart: true, TenantIsDown: true}, answer)
	require.Equal(t, int64(2), b.Stats().TenantTrips)
}

// The pauses of a tenant grow with its outage, up to ten seconds, or last for the delay
// that its service demands.
func TestTenantBreaker_Pauses(t *testing.T) {
	b := newBench(t, backend.TenantBreaker(), backend.LongestPause(time.Minute))
	o := b.attach()
	o.loseFor("a")
	begun := b.clock.Now()
	probes := 0
	for b.clock.Since(begun) < time.Hour {
		_, answer := o.askFor("a")
		b.clock.Add(answer.Wait)
		o.callFor("a", errBusy)
		probes++
		pause := b.Stats()
		require.Equal(t, 1, pause.TenantsDown)
	}
	require.Less(t, probes, 400)
	require.Greater(t, probes, 300)
	_, answer := o.askFor("a")
	b.clock.Add(answer.Wait)
	o.callFor("a", errIn3)
	_, answer = o.askFor("a")
	require.Equal(t, 3*time.Second, answer.Wait)
}

// A tenant whose losses are more than the share of the window goes down, even if it
// answers some calls.
func TestTenantBreaker_LossShare(t *testing.T) {
	b := newBench(t, backend.TenantBreaker(), backend.LossShare(0.5, 20))
	o := b.attach()
	for i := range 22 {
		var err error
		if i%3 != 2 {
			err = errBusy
		}
		c, _ := o.askFor("a")
		if c == nil {
			require.Greater(t, i, 10)
			return
		}
		c.end(err)
	}
	t.Fatal("the tenant is up after most of its calls were lost")
}

// Calls without a tenant are judged together.
func TestTenantBreaker_CallsWithoutTenant(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.callFor("a", nil)
	o.lose()
	require.Empty(t, b.restrictions())
	_, answer := o.askFor("a")
	require.False(t, answer.OthersMayStart, "the whole backend is down")
}

// A backend that was held tries its service by a call of any tenant. The loss of this
// call is evidence about its tenant alone.
func TestTenantBreaker_ProbeOfTheBackend(t *testing.T) {
	for _, err := range []error{nil, errBusy, errThrottled} {
		b := newBench(t, backend.TenantBreaker())
		o := b.attach()
		b.Hold("migration")
		b.Resume()
		o.callFor("a", err)
		require.Equal(t, backend.Ramping, b.Stats().State, err)
	}
}

// Law B6: a throttled tenant is not down.
func TestTenantBreaker_Throttled(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	for range 20 {
		c, _ := o.askFor("a")
		if c == nil {
			b.clock.Add(time.Second)
			continue
		}
		require.Equal(t, gate.Throttled, c.effect(errThrottled))
	}
	require.Empty(t, b.restrictions())
}

// A call that was cut off because its element had little time left, while the tenant
// answers others, is not evidence. The evidence of other tenants does not matter.
func TestTenantBreaker_EvidenceThatIsIgnored(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.loseFor("a")
	b.clock.Add(time.Minute)
	probe, _ := o.askFor("a")
	o.seat.Release(probe.stamp)
	o.seat.AttemptEnded(b.clock.Now(), &gate.Evidence{Ignored: true, Begun: probe.begun, Element: probe.attempt.Element, Tenant: "a"})
	c, answer := o.askFor("a")
	require.NotNil(t, c, "another element may try: %+v", answer)
}

// With DryRun a tenant stays up.
func TestTenantBreaker_DryRun(t *testing.T) {
	b := newBench(t, backend.TenantBreaker(), backend.DryRun())
	o := b.attach()
	for range 20 {
		o.callFor("a", errBusy)
	}
	require.Empty(t, b.restrictions())
	require.Equal(t, int64(1), b.Stats().WouldHaveTripped)
	require.Contains(t, b.log.String(), `msg="backend: would be down without DryRun" backend=payments tenant=a`)
}

// The losses of a tenant do not lower the adaptive limit of all.
func TestTenantBreaker_AdaptiveLimit(t *testing.T) {
	limits := map[bool]int{}
	for _, hasTenant := range []bool{false, true} {
		b := newBench(t, backend.TenantBreaker(), backend.Adaptive(1, 100), backend.LossShare(1, 100_000))
		b.SetLimit(50)
		o := b.attach()
		for i := range 2000 {
			if i%10 == 0 {
				b.clock.Add(10 * time.Millisecond)
			}
			tenant, err := "", error(nil)
			if hasTenant {
				tenant = fmt.Sprint(i % 10)
			}
			if i%10 == 3 {
				err = errBusy
			}
			c, _ := o.askFor(tenant)
			if c != nil {
				c.end(err)
			}
		}
		limits[hasTenant] = b.Stats().Limit
	}
	require.Less(t, limits[false], 25)
	require.Equal(t, 50, limits[true])
}

// A tenant that was held by hand makes no call until ResumeTenant, which tries its
// service first.
func TestBackend_HoldTenant(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	b.HoldTenant("a", "they migrate")
	b.clock.Add(time.Hour)
	_, answer := o.askFor("a")
	require.Equal(t, gate.Answer{Wait: time.Second, OthersMayStart: true, TenantIsDown: true}, answer)
	err, wait := o.seat.WhyWaiting(b.clock.Now(), &gate.Late{Tenant: "a"})
	require.EqualError(t, err, `backend payments: tenant "a" is held: they migrate`)
	require.Equal(t, time.Second, wait)
	o.callFor("b", nil)
	require.Equal(t, map[string]float64{"a": 0}, b.restrictions())
	b.ResumeTenant("a")
	b.ResumeTenant("b")
	b.ResumeTenant("unknown")
	probe, _ := o.askFor("a")
	require.NotNil(t, probe)
	_, answer = o.askFor("a")
	require.True(t, answer.TenantIsDown)
	probe.end(nil)
	require.NotContains(t, b.restrictions(), "b")
	require.Panics(t, func() { b.HoldTenant("", "") })
	require.Panics(t, func() { b.ResumeTenant("") })
}

// Without TenantBreaker the calls of a tenant are not judged, so it is up after a hold.
func TestBackend_ResumeTenantWithoutBreaker(t *testing.T) {
	b := newBench(t)
	o := b.attach()
	b.HoldTenant("a", "they migrate")
	_, answer := o.askFor("a")
	require.True(t, answer.TenantIsDown)
	b.ResumeTenant("a")
	for range 10 {
		o.callFor("a", nil)
	}
	require.Empty(t, b.restrictions())
}

// The error of an element names the tenant and the reason. If the tenant has answered
// others since the message failed, the message itself may be the cause.
func TestTenantBreaker_WhyWaiting(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	failed := b.clock.Now()
	b.clock.Add(time.Second)
	o.callFor("a", nil)
	b.clock.Add(time.Second)
	begun := b.clock.Now()
	o.loseFor("a")
	err, wait := o.seat.WhyWaiting(b.clock.Now(), &gate.Late{Tenant: "a"})
	require.EqualError(t, err, `backend payments: tenant "a" is down: the last 5 calls in a row were lost, the last one: HTTP_503_SERVICE_UNAVAILABLE: busy`)
	require.Equal(t, 250*time.Millisecond, wait)
	err, _ = o.seat.WhyWaiting(b.clock.Now(), &gate.Late{Tenant: "a", Begun: begun, Failed: failed})
	require.ErrorIs(t, err, gate.ErrAnswered)
	err, _ = o.seat.WhyWaiting(b.clock.Now(), &gate.Late{Tenant: "b", Begun: begun, Failed: failed})
	require.NoError(t, err)
	require.True(t, o.seat.IsDown(b.clock.Now(), "a"))
	require.False(t, o.seat.IsDown(b.clock.Now(), "b"))
}

// Law W3: tenants are forgotten, and so are those that are down and make no calls. A
// tenant that is held is not.
func TestTenantBreaker_ForgetsTenants(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	b.HoldTenant("held", "they migrate")
	for i := range 3000 {
		o.loseFor(fmt.Sprint("down", i))
		o.callFor(fmt.Sprint("up", i), nil)
	}
	require.Equal(t, 6001, backend.Tenants(b.Backend))
	b.clock.Add(11 * time.Minute)
	for range 10_000 {
		o.callFor("a", nil)
	}
	require.LessOrEqual(t, backend.Tenants(b.Backend), 1025)
	shares := b.restrictions()
	require.Contains(t, shares, "held")
	require.LessOrEqual(t, len(shares), 1025)
}

// Law B4: if the operator whose call tries the service of a tenant has ended, another
// operator may try it.
func TestTenantBreaker_OperatorLeavesDuringProbe(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o, other := b.attach(), b.attach()
	b.HoldTenant("a", "x")
	b.ResumeTenant("a")
	c, _ := o.askFor("a")
	require.NotNil(t, c)
	_, answer := other.askFor("a")
	require.True(t, answer.TenantIsDown, "one probe at a time: %+v", answer)
	o.seat.Leave()
	c, answer = other.askFor("a")
	require.NotNil(t, c, "%+v", answer)
}

// A tenant that was down and makes no calls for long does not stay restricted.
func TestTenantBreaker_NoCallsForLong(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.loseFor("a")
	b.clock.Add(5 * time.Minute)
	require.Len(t, b.restrictions(), 1)
	b.clock.Add(48 * time.Hour)
	require.Empty(t, b.restrictions())
	require.Zero(t, b.Stats().TenantsDown)
}

// While a call tries the service of a tenant, no other message of it may be taken: it
// could only be released again.
func TestTenantBreaker_ShareDuringProbe(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	o.loseFor("a")
	b.clock.Add(time.Minute)
	require.Equal(t, map[string]float64{"a": 1e-9}, b.restrictions())
	probe, _ := o.askFor("a")
	require.NotNil(t, probe)
	require.Equal(t, map[string]float64{"a": 0}, b.restrictions())
	probe.end(errBusy)
	require.Equal(t, map[string]float64{"a": 0}, b.restrictions())
}

// Law B6: a tenant whose service asks for a delay is restricted until its end, and its
// messages leave their slots, but it is not down.
func TestTenantBreaker_RestrictedWhileThrottled(t *testing.T) {
	b := newBench(t, backend.TenantBreaker(), backend.LongestPause(time.Minute))
	o := b.attach()
	c, _ := o.askFor("a")
	require.Equal(t, gate.Throttled, c.effect(errThrottled))
	_, answer := o.askFor("a")
	require.Equal(t, answer.Wait >= time.Second, answer.TenantIsDown, "%+v", answer)
	require.Equal(t, map[string]float64{"a": 0}, b.restrictions())
	require.Zero(t, b.Stats().TenantsDown)
	b.clock.Add(time.Minute)
	require.Empty(t, b.restrictions())
	o.callFor("a", nil)
}

// The tenants that have been down for longest come first. Tenants whose load grows back,
// and tenants that are paused, are up.
func TestTenantsDown(t *testing.T) {
	b := newBench(t, backend.TenantBreaker())
	o := b.attach()
	begun := b.clock.Now()
	b.HoldTenant("held", "spam")
	b.clock.Add(time.Second)
	o.loseFor("b")
	b.clock.Add(time.Second)
	o.loseFor("a")
	o.callFor("up", nil)
	list := gate.Of(b.Backend).TenantsDown(10)
	require.Equal(t, []gate.TenantReport{
		{Tenant: "held", State: "held", Why: "spam", Since: begun},
		{Tenant: "b", State: list[1].State, Why: list[1].Why, Since: begun.Add(time.Second)},
		{Tenant: "a", State: "down", Why: list[2].Why, Since: begun.Add(2 * time.Second)},
	}, list)
	require.NotEmpty(t, list[1].Why)
	require.Equal(t, list[:2], gate.Of(b.Backend).TenantsDown(2))

	b.clock.Add(time.Second)
	o.callFor("a", errBusy) // a probe
	list = gate.Of(b.Backend).TenantsDown(10)
	require.Equal(t, begun.Add(2*time.Second), list[2].Since, "the outage has not ended")
	b.clock.Add(time.Second)
	o.callFor("a", nil) // a probe
	b.ResumeTenant("held")
	for _, r := range gate.Of(b.Backend).TenantsDown(10) {
		require.NotEqual(t, "a", r.Tenant)
		require.NotEqual(t, "held", r.State)
	}
}
