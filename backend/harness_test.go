package backend_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

var (
	errBusy    = predicates.WithReason(errors.New("busy"), httpretry.ServiceUnavailable)
	errFailed  = errors.New("no such customer")
	errIn3     = predicates.WithPushback(errBusy, 3*time.Second)
	errForEver = predicates.WithPushback(errBusy, 24*time.Hour)
)

// bench is a backend on a mock clock.
type bench struct {
	*testing.T
	*backend.Backend
	clock *clock.Mock
	log   *bytes.Buffer
}

func newBench(t *testing.T, opts ...backend.Option) *bench {
	t.Helper()
	b := &bench{T: t, clock: clock.NewMock(), log: new(bytes.Buffer)}
	logger := slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	b.Backend = backend.New("payments", append([]backend.Option{backend.WithClock(b.clock), backend.WithLogger(logger)}, opts...)...)
	return b
}

// operator is the seat of an operator, as its loop uses it.
type operator struct {
	*bench
	seat   gate.Seat
	woken  int
	parked bool
	next   uint64
}

func (o *operator) WakeUp()        { o.woken++ }
func (o *operator) IsParked() bool { return o.parked }

func (b *bench) attach() *operator {
	o := &operator{bench: b}
	o.seat = gate.Of(b).Attach(o, gate.Caller{})
	return o
}

// call is an attempt that has started.
type call struct {
	o       *operator
	attempt gate.Request
	begun   time.Time
	stamp   gate.Stamp
}

func (o *operator) ask(a gate.Request) (c *call, answer gate.Answer) {
	if a.Element == 0 {
		o.next++
		a.Element = o.next
	}
	if a.Cost == 0 {
		a.Cost = 1
	}
	o.parked = false
	answer = o.seat.Start(o.clock.Now(), &a)
	if answer.Wait > 0 {
		return nil, answer
	}
	return &call{o, a, o.clock.Now(), answer.Stamp}, answer
}

// start starts a call, of a new element.
func (o *operator) start() *call {
	o.Helper()
	c, answer := o.ask(gate.Request{})
	require.NotNil(o, c, "%+v", answer)
	return c
}

// wait asserts that a new element may not start, and returns how long the operator
// sleeps.
func (o *operator) wait() time.Duration {
	o.Helper()
	c, answer := o.ask(gate.Request{})
	require.Nil(o, c)
	require.False(o, answer.OthersMayStart)
	return o.sleep()
}

func (o *operator) sleep() time.Duration {
	o.parked = true
	return o.seat.Wait(o.clock.Now(), 1)
}

func (c *call) end(err error) (forgiven bool) { return c.effect(err) != gate.Counts }

// effect ends the call, and returns the effect on its element.
func (c *call) effect(err error) gate.Effect {
	c.o.seat.Release(c.stamp)
	return c.o.seat.AttemptEnded(c.o.clock.Now(), &gate.Evidence{Err: err, Begun: c.begun, Tenant: c.attempt.Tenant, Element: c.attempt.Element})
}

func (o *operator) call(err error) (outage bool) {
	o.Helper()
	return o.start().end(err)
}

// lose takes the backend down by losses.
func (o *operator) lose() {
	o.Helper()
	for range 5 {
		o.call(errBusy)
	}
	require.Equal(o, backend.Down, o.Stats().State)
}

func (b *bench) rampLeft() int64 { return backend.RampLeft(b.Backend) }
