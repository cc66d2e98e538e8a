package backend_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// Law B1: calls stay within the limit, whatever it is changed to.
func TestLimit(t *testing.T) {
	o := newBench(t, backend.Limit(2)).attach()
	a, b := o.start(), o.start()
	require.Equal(t, gate.Never, o.wait())
	a.end(nil)
	require.Equal(t, 1, o.woken)
	c := o.start()
	o.SetLimit(1)
	b.end(nil)
	require.Equal(t, gate.Never, o.wait())
	c.end(nil)
	o.start()
	o.SetLimit(0)
	require.Equal(t, gate.Never, o.wait())
	woken := o.woken
	o.SetLimit(2)
	require.Equal(t, woken+1, o.woken)
	o.start()
	require.Equal(t, 2, o.Stats().InUse)
}

// A rate lets n of them start in each time per, and a twentieth more after a pause.
func TestRate(t *testing.T) {
	o := newBench(t, backend.Rate(100, time.Second)).attach()
	for range 3 {
		for range 5 {
			o.call(nil)
		}
		require.Equal(t, 10*time.Millisecond, o.wait())
		o.clock.Add(9 * time.Millisecond)
		require.Equal(t, time.Millisecond, o.wait())
		o.clock.Add(time.Millisecond)
		o.call(nil)
		o.clock.Add(time.Minute)
	}
	t.Run("by cost", func(t *testing.T) {
		o := newBench(t, backend.Rate(100, time.Second)).attach()
		c, _ := o.ask(gate.Request{Cost: 50})
		require.NotNil(t, c, "more than is saved up is paid afterwards")
		_, _ = o.ask(gate.Request{Cost: 1})
		require.Equal(t, 460*time.Millisecond, o.seat.Wait(o.clock.Now(), 1))
	})
	t.Run("a debt is paid within an hour", func(t *testing.T) {
		o := newBench(t, backend.Rate(100, time.Second)).attach()
		c, _ := o.ask(gate.Request{Cost: math.MaxFloat64})
		require.NotNil(t, c)
		require.Equal(t, time.Hour, o.wait())
		o.clock.Add(time.Hour + 10*time.Millisecond)
		o.start()
	})
}

// Tenants wait for their own rate, and let the others pass.
func TestTenantRate(t *testing.T) {
	o := newBench(t, backend.TenantRate(10, time.Second)).attach()
	for _, tenant := range []string{"a", "b"} {
		c, _ := o.ask(gate.Request{Tenant: tenant})
		require.NotNil(t, c)
		_, answer := o.ask(gate.Request{Tenant: tenant})
		require.Equal(t, gate.Answer{Wait: 100 * time.Millisecond, OthersMayStart: true}, answer)
	}
	o.start()
	o.clock.Add(100 * time.Millisecond)
	c, _ := o.ask(gate.Request{Tenant: "a"})
	require.NotNil(t, c)
}

// An answer that demands a delay pauses the backend, at most for a minute.
func TestLongestPause(t *testing.T) {
	o := newBench(t).attach()
	require.True(t, o.call(errThrottledIn3))
	require.Equal(t, 3*time.Second, o.wait())
	o.clock.Add(3*time.Second - 1)
	require.Equal(t, time.Duration(1), o.wait())
	o.clock.Add(1)
	require.True(t, o.call(predicates.WithPushback(errThrottled, 24*time.Hour)))
	require.Equal(t, time.Minute, o.wait())

	o = newBench(t, backend.LongestPause(2*time.Second)).attach()
	o.call(errThrottledIn3)
	require.Equal(t, 2*time.Second, o.wait())
}

func TestLoss(t *testing.T) {
	for name, c := range map[string]struct {
		gate.Evidence
		lost int64
	}{
		"503":                    {gate.Evidence{Err: &httpretry.StatusError{StatusCode: 503}}, 1},
		"429":                    {gate.Evidence{Err: fmt.Errorf("pay: %w", &httpretry.StatusError{StatusCode: 429})}, 0},
		"500":                    {gate.Evidence{Err: &httpretry.StatusError{StatusCode: 500}}, 0},
		"404":                    {gate.Evidence{Err: &httpretry.StatusError{StatusCode: 404}}, 0},
		"refused":                {gate.Evidence{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, 1},
		"timeout of the network": {gate.Evidence{Err: &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}}, 1},
		"timeout of the element": {gate.Evidence{Err: context.DeadlineExceeded}, 1},
		"timeout of the client":  {gate.Evidence{Err: fmt.Errorf("get: %w", context.DeadlineExceeded)}, 1},
		"a reason":               {gate.Evidence{Reason: httpretry.BadGateway}, 1},
		"a throttle":             {gate.Evidence{Reason: httpretry.TooManyRequests}, 0},
		"another reason":         {gate.Evidence{Err: errFailed, Reason: predicates.Unknown}, 0},
		"another error":          {gate.Evidence{Err: errFailed}, 0},
		"an error that panics":   {gate.Evidence{Err: (*net.OpError)(nil)}, 0},
		"pushback of a result":   {gate.Evidence{Pushback: time.Second}, 0},
		"cancelled":              {gate.Evidence{Err: context.Canceled, Ignored: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := newBench(t).attach()
			o.seat.AttemptEnded(o.clock.Now(), &c.Evidence)
			require.Equal(t, c.lost, o.Stats().Lost)
		})
	}
}

// Published texts of an error have no password, and no query, of a URL.
func TestReasonsHaveNoSecrets(t *testing.T) {
	o := newBench(t).attach()
	err := &url.Error{Op: "Get", URL: "https://pay.example/v1?token=s3cret", Err: errBusy}
	for range 5 {
		o.call(err)
	}
	require.Contains(t, o.Stats().Reason, `Get "https://pay.example/v1?xxxxx": `)
	require.Contains(t, o.log.String(), "backend: down")
	require.NotContains(t, o.log.String(), "s3cret")
	late, _ := o.seat.WhyWaiting(o.clock.Now(), &gate.Late{})
	require.NotContains(t, late.Error(), "s3cret")
}

// Losses take the backend down: more than half of the last hundred calls, or as many in a
// row as run at a time, and at least five.
func TestLossesClose(t *testing.T) {
	t.Run("share", func(t *testing.T) {
		o := newBench(t).attach()
		for range 3 {
			o.start()
		}
		for range 50 {
			o.call(errBusy)
			o.call(nil)
		}
		require.Equal(t, backend.Up, o.Stats().State)
		o.call(errBusy)
		o.call(errBusy)
		require.Equal(t, backend.Down, o.Stats().State)
		require.Contains(t, o.Stats().Reason, "51 of 100 calls were lost, ")
	})
	t.Run("in a row", func(t *testing.T) {
		o := newBench(t).attach()
		for range 200 {
			o.call(nil)
		}
		require.False(t, o.call(errBusy), "one loss is no outage")
		for range 3 {
			require.True(t, o.call(errBusy))
		}
		require.Equal(t, backend.Up, o.Stats().State)
		o.call(errBusy)
		require.Equal(t, backend.Down, o.Stats().State)
	})
	t.Run("in a row, after a few other losses", func(t *testing.T) {
		o := newBench(t).attach()
		for range 4 {
			o.call(nil)
			o.call(errBusy)
		}
		for range 100 - 4 {
			o.call(nil)
		}
		for range 5 {
			require.Equal(t, backend.Up, o.Stats().State)
			o.call(errBusy)
		}
		require.Equal(t, backend.Down, o.Stats().State)
		require.Contains(t, o.Stats().Reason, "the last 5 calls in a row were lost, ")
	})
	t.Run("a row beside many calls", func(t *testing.T) {
		o := newBench(t).attach()
		for range 20 {
			o.start()
		}
		for range 19 {
			o.call(errBusy)
		}
		require.Equal(t, backend.Up, o.Stats().State)
		o.call(errBusy)
		require.Equal(t, backend.Down, o.Stats().State)
	})
	t.Run("the answers of a service that fails", func(t *testing.T) {
		o := newBench(t).attach()
		for range 200 {
			o.call(errFailed)
		}
		require.Equal(t, backend.Up, o.Stats().State)
	})
}

// Law B4: a probe, a ramp, and a relapse.
func TestBackendComesBack(t *testing.T) {
	o := newBench(t, backend.Limit(100)).attach()
	var running []*call
	for range 100 {
		running = append(running, o.start())
	}
	for i, c := range running {
		c.o.seat.AttemptEnded(o.clock.Now(), &gate.Evidence{Err: context.DeadlineExceeded, Begun: c.begun, Element: uint64(i + 1)})
	}
	require.Equal(t, backend.Down, o.Stats().State)
	for _, c := range running {
		o.seat.Release(c.stamp)
	}
	begun := o.clock.Now()
	for { // probes
		require.Equal(t, max(250*time.Millisecond, o.clock.Since(begun)/8), o.wait())
		o.clock.Add(o.wait())
		require.Equal(t, backend.Probing, o.Stats().State)
		probe := o.start()
		require.Equal(t, 10*time.Second, o.wait(), "one probe")
		woken := o.woken
		if o.clock.Since(begun) > 10*time.Second { // twice as long as the ramp
			probe.end(nil)
			break
		}
		require.True(t, probe.end(errBusy))
		require.Greater(t, o.woken, woken)
	}
	// The ramp: the rate of starts grows to 100 a second in five seconds.
	require.Equal(t, backend.Ramping, o.Stats().State)
	started := 0
	for range 500 {
		for {
			c, _ := o.ask(gate.Request{})
			if c == nil {
				break
			}
			started++
			c.end(nil)
		}
		o.clock.Add(10 * time.Millisecond)
	}
	require.Equal(t, backend.Up, o.Stats().State)
	require.InDelta(t, 250, started, 5)
	require.Equal(t, []string{
		`level=WARN msg="backend: down" backend=payments for=250ms reason="51 of 51 calls were lost, the last one: context deadline exceeded"`,
		`level=INFO msg="backend: ramping: its service answers again" backend=payments over=5s`,
		`level=INFO msg="backend: up" backend=payments`,
	}, strings.Split(strings.TrimSpace(o.log.String()), "\n"))
	require.EqualValues(t, 1, o.Stats().Trips)
}
