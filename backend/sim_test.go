package backend_test

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
)

// A simulation of operators at a backend: virtual time, no goroutine.

// handClock is a clock that a simulation sets.
type handClock struct {
	clock.Clock
	now time.Time
}

func (c *handClock) Now() time.Time { return c.now }

type sim struct {
	*backend.Backend
	clock     *handClock
	begun     time.Time
	random    *rand.Rand
	events    events
	operators []*simOperator

	// serve returns how long a call that starts now takes, and its error.
	serve func(c *simCall) (took time.Duration, err error)
	// over is called after each call, and reports whether its element is done.
	over func(c *simCall, err error, outage bool) (done bool)
	lag  func() time.Duration // from a wake-up to the step
}

func newSim(seed uint64, opts ...backend.Option) *sim {
	s := &sim{clock: &handClock{clock.New(), time.Unix(1_000_000, 0)}, random: rand.New(rand.NewPCG(seed, 1))}
	s.lag = func() time.Duration { return 0 }
	s.begun = s.clock.now
	s.Backend = backend.New("simulated", append([]backend.Option{backend.WithClock(s.clock), backend.WithLogger(silent)}, opts...)...)
	return s
}

func (s *sim) elapsed() time.Duration { return s.clock.now.Sub(s.begun) }

// at does f at the time t of the simulation.
func (s *sim) at(t time.Duration, f func()) {
	heap.Push(&s.events, event{max(t, s.elapsed()), len(s.events), f})
}

func (s *sim) after(d time.Duration, f func()) {
	if d < 1<<60 {
		s.at(s.elapsed()+d, f)
	}
}

// run runs the events until end, and then sets the clock to end.
func (s *sim) run(end time.Duration) {
	for len(s.events) > 0 && s.events[0].at <= end {
		e := heap.Pop(&s.events).(event)
		s.clock.now = s.begun.Add(e.at)
		e.do()
	}
	s.clock.now = s.begun.Add(end)
}

type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return x
}

// element is an element for which an operator calls the service.
type element struct {
	id      uint64
	cost    float64
	tenant  string
	poison  bool
	retries int // made
	outages int
	calls   int
	waits   time.Duration // since when it waits
}

// simOperator waits as an operator does: it asks for retries first, oldest first, and
// sleeps.
type simOperator struct {
	*sim
	seat    gate.Seat
	ready   []*element // retries, then first attempts
	away    int        // elements that were put off
	running int
	stirred bool // a step is due
	parked  bool
	short   bool
	wakeUps int
	turns   int                // alarms that were set so far; only the last one counts
	body    func(leave func()) // if not nil, runs after a step in which a call started; the operator continues when leave is called
	inBody  bool
	hungry  time.Duration // for how long it could have started an element, and did not
}

type simCall struct {
	*element
	o *simOperator
}

func (s *sim) attach() *simOperator {
	o := &simOperator{sim: s}
	o.seat = gate.Of(s).Attach(o, gate.Caller{})
	s.operators = append(s.operators, o)
	return o
}

func (o *simOperator) add(e *element) {
	if e.cost == 0 {
		e.cost = 1
	}
	e.waits = o.elapsed()
	i := 0
	for i < len(o.ready) && before(o.ready[i], e) {
		i++
	}
	o.ready = append(o.ready, nil)
	copy(o.ready[i+1:], o.ready[i:])
	o.ready[i] = e
	o.stir()
}

// before reports whether a is asked for before b.
func before(a, b *element) bool {
	if (a.calls > 0) != (b.calls > 0) {
		return a.calls > 0
	}
	return a.id <= b.id
}

func (o *simOperator) WakeUp() {
	if o.parked {
		o.stir()
	}
}

func (o *simOperator) IsParked() bool { return o.parked }

// stir makes the operator take a step soon.
func (o *simOperator) stir() {
	if !o.stirred && !o.inBody {
		o.stirred = true
		o.after(0, func() {
			o.parked = false
			o.after(o.lag(), o.step)
		})
	}
}

func (o *simOperator) step() {
	o.stirred = false
	o.wakeUps++
	o.short = false
	started := false
	for len(o.ready) > 0 && !o.short {
		e := o.ready[0]
		answer := o.seat.Start(o.clock.now, &gate.Request{Cost: e.cost, Tenant: e.tenant, Retry: e.calls > e.outages, Outages: e.outages, Element: e.id})
		switch {
		case answer.OthersMayStart:
			o.ready = o.ready[1:]
			o.away++
			o.after(answer.Wait, func() {
				o.away--
				o.add(e)
			})
		case answer.Wait > 0:
			o.short = true
		default:
			o.ready = o.ready[1:]
			o.hungry, started = 0, true
			o.call(e, answer.Stamp)
		}
	}
	o.seat.DoneAsking(o.clock.now, o.short)
	if started && o.body != nil {
		if o.inBody = true; o.short {
			o.seat.Wait(o.clock.now, len(o.ready)) // a loop over results arms its timers before its body
		}
		o.body(func() {
			o.inBody = false
			o.stir()
		})
		return
	}
	o.parked = true
	if len(o.ready) > 0 {
		if wait := o.seat.Wait(o.clock.now, len(o.ready)); wait == 0 {
			o.stir()
		} else {
			o.turns++
			turns := o.turns
			o.after(wait, func() {
				if o.turns == turns {
					o.stir()
				}
			})
		}
	}
}

func (o *simOperator) call(e *element, stamp gate.Stamp) {
	e.calls++
	o.running++
	begun := o.clock.now
	c := &simCall{e, o}
	took, err := o.serve(c)
	o.after(took, func() {
		o.running--
		o.seat.Release(stamp)
		outage := o.seat.AttemptEnded(o.clock.now, &gate.Evidence{Err: err, Begun: begun, Tenant: e.tenant, Element: e.id}) != gate.Counts
		if outage {
			e.outages++
		}
		if !o.over(c, err, outage) {
			o.add(e)
		}
		o.stir()
	})
}
