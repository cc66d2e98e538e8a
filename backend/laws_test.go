package backend_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/testing/suite"
)

var silent = slog.New(slog.DiscardHandler)

// Laws B1 to B4 under random schedules: operators, limits, rates, tenants, outages, and
// people who hold, resume and set limits.
func TestLawsUnderRandomSchedules(t *testing.T) {
	rounds := uint64(100)
	if suite.Race || !suite.Full() {
		rounds = 20
	}
	for seed := range rounds {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomSchedule(t, seed) }) {
			return
		}
	}
}

// schedule is a random schedule, and its state.
type schedule struct {
	*sim
	*testing.T
	r       *rand.Rand
	limit   int
	rate    float64 // 0 means no rate
	tenants []string
	costs   []float64 // of the operators' elements

	running  int
	starts   []start
	lastTry  *element
	tryAgain time.Duration
	elements uint64
	left     map[*element]bool
	stable   time.Duration // how long calls have been allowed to start
	outage   func() bool
	waiting  func() // ends the body that waits for a call of another operator; nil if no body waits
}

type start struct {
	at   time.Duration
	cost float64
}

const scheduleLength = 60 * time.Second

func newSchedule(t *testing.T, seed uint64) *schedule {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	s := &schedule{T: t, r: r, limit: 1 + r.IntN(20), tenants: []string{""}, left: make(map[*element]bool)}
	if r.IntN(3) == 0 {
		s.limit = 1 + r.IntN(2)
	}
	opts := []backend.Option{backend.Limit(s.limit)}
	if r.IntN(2) == 0 {
		s.rate = float64(5 + r.IntN(200))
		opts = append(opts, backend.Rate(s.rate, time.Second))
	}
	if r.IntN(3) == 0 {
		s.tenants = []string{"", "a", "b", "c"}
		if r.IntN(2) == 0 {
			opts = append(opts, backend.TenantRate(20, time.Second))
		}
	}
	s.sim = newSim(seed, opts...)
	s.serve, s.sim.over = s.begin, s.end
	if r.IntN(2) == 0 {
		s.lag = func() time.Duration { return time.Duration(r.IntN(3)) * time.Millisecond }
	}
	s.outage = func() bool { return false }
	if r.IntN(3) > 0 {
		from := time.Duration(r.Int64N(int64(scheduleLength / 2)))
		to := from + time.Duration(r.Int64N(int64(scheduleLength/2)))
		s.outage = func() bool { return s.elapsed() >= from && s.elapsed() < to }
	}
	return s
}

// begin checks the laws when a call begins, and returns its duration and its error.
func (s *schedule) begin(c *simCall) (time.Duration, error) {
	stats := s.Stats()
	s.running++
	require.NotEqual(s, backend.Down, stats.State, "law B1")
	require.NotEqual(s, backend.Held, stats.State, "law B1")
	require.LessOrEqual(s, s.running, stats.Limit, "law B1")
	require.Equal(s, s.running, stats.InUse)
	s.starts = append(s.starts, start{s.elapsed(), c.cost})
	if stats.State == backend.Probing {
		if s.lastTry == c.element { // law B4: no other element could try in the meantime
			require.GreaterOrEqual(s, s.elapsed()-s.tryAgain, time.Second, "law B4")
		}
		s.lastTry = c.element
	}
	if leave := s.waiting; leave != nil && c.o != s.operators[0] {
		s.waiting = nil
		leave()
	}
	took := time.Duration(1+s.random.IntN(200)) * time.Millisecond
	switch {
	case s.outage():
		if s.random.IntN(4) == 0 {
			return took, errIn3
		}
		return took, errBusy
	case c.poison:
		return took, errBusy
	}
	return took, nil
}

// end is called when a call has ended, and reports whether its element is done. The
// permit of the call is free, or already reserved for another seat.
func (s *schedule) end(c *simCall, err error, _ bool) bool {
	s.running--
	s.tryAgain = s.elapsed()
	if s.elapsed() < scheduleLength && s.random.IntN(200) == 0 {
		s.lower()
	}
	if err != nil && s.elapsed() < scheduleLength && c.calls < 500 {
		return false
	}
	delete(s.left, c.element)
	return true
}

func (s *schedule) lower() {
	s.stable = 0
	s.SetLimit(s.r.IntN(2))
	s.after(5*time.Second, func() { s.SetLimit(s.limit) })
}

// operator adds an operator with its input. The first one may wait in the body of the
// loop over its results until others are served.
func (s *schedule) operator(first bool) {
	r, o, cost := s.r, s.sim.attach(), 1.0
	if r.IntN(3) == 0 {
		cost = float64(1 + r.IntN(10))
	}
	s.costs = append(s.costs, cost)
	switch r.IntN(3) {
	case 0:
		o.body = func(leave func()) { s.after(time.Duration(s.random.IntN(300))*time.Millisecond, leave) }
	case 1:
		if first {
			o.body = s.waitForOthers
		}
	}
	pause := 100
	if r.IntN(3) == 0 {
		pause = 5000
	}
	var feed func()
	feed = func() {
		for range 1 + pause/1000 {
			s.elements++
			e := &element{id: s.elements, cost: cost, tenant: s.tenants[s.random.IntN(len(s.tenants))], poison: s.random.IntN(50) == 0}
			s.left[e] = true
			o.add(e)
		}
		if s.elapsed() < scheduleLength {
			s.after(time.Duration(s.random.IntN(pause))*time.Millisecond, feed)
		}
	}
	s.at(0, feed)
}

func (s *schedule) waitForOthers(leave func()) {
	for _, o := range s.operators[1:] {
		if len(o.ready) > 0 {
			s.waiting = leave
			return
		}
	}
	s.after(0, leave)
}

// hand steers the backend at random.
func (s *schedule) hand() {
	s.stable = 0
	switch s.r.IntN(3) {
	case 0:
		s.Hold("by hand")
		s.after(time.Duration(s.r.Int64N(int64(10*time.Second))), s.Resume)
	case 1:
		s.Resume()
	default:
		n := s.r.IntN(2 * s.limit)
		s.SetLimit(n)
		s.after(5*time.Second, func() { s.SetLimit(max(1, s.limit)) })
	}
}

// watch asserts that no operator goes hungry while calls may start (law B3).
func (s *schedule) watch() {
	const each = time.Second
	stats := s.Stats()
	isPaused := stats.State == backend.Up && stats.Reason != "" // the service asks to wait
	if s.stable += each; stats.State != backend.Up && stats.State != backend.Ramping || stats.Limit == 0 || isPaused {
		s.stable = 0
	}
	longest := 5 * time.Second
	if s.rate > 0 {
		for _, cost := range s.costs {
			longest += time.Duration(3 * cost / s.rate * float64(time.Second))
		}
	}
	for i, o := range s.operators {
		if o.hungry += each; s.stable == 0 || len(o.ready) == 0 || o.inBody && s.waiting == nil {
			o.hungry = 0
		}
		require.LessOrEqual(s, o.hungry, longest, "operator %d: %+v", i, stats)
	}
	if len(s.left) > 0 || s.elapsed() < scheduleLength {
		s.after(each, s.watch)
	}
}

func randomSchedule(t *testing.T, seed uint64) {
	t.Helper()
	s := newSchedule(t, seed)
	for i := range 1 + s.r.IntN(4) {
		s.operator(i == 0)
	}
	for range s.r.IntN(6) {
		s.at(time.Duration(s.r.Int64N(int64(scheduleLength))), s.hand)
	}
	s.at(0, s.watch)
	s.run(30 * scheduleLength)
	require.Empty(t, s.left, "elements that were never done: %+v", s.Stats()) // law B3
	require.Zero(t, s.Stats().InUse)
	require.Zero(t, s.Stats().Waiting)
	sum, most := 0.0, slices.Max(s.costs)
	for i, from := 0, 0; s.rate > 0 && i < len(s.starts); i++ { // each second has at most the rate and a twentieth, and the last call
		for sum += s.starts[i].cost; s.starts[from].at <= s.starts[i].at-time.Second; from++ {
			sum -= s.starts[from].cost
		}
		require.LessOrEqual(t, sum, s.rate+max(1, s.rate/20)+most, "law B1")
	}
}

// Law B3: operators that wait are served in turn, however many elements each of them has.
func TestOperatorsTakeTurns(t *testing.T) {
	for name, opts := range map[string][]backend.Option{
		"limit":          {backend.Limit(4)},
		"rate":           {backend.Rate(100, time.Second)},
		"slow rate":      {backend.Rate(2, time.Second)},
		"limit of one":   {backend.Limit(1)},
		"limit and rate": {backend.Limit(4), backend.Rate(30, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(1, opts...)
			served := make(map[*simOperator]int)
			s.serve = func(*simCall) (time.Duration, error) { return 50 * time.Millisecond, nil }
			s.over = func(c *simCall, _ error, _ bool) bool { served[c.o]++; return true }
			for i, n := range []int{10_000, 1_000, 1_000} {
				o := s.attach()
				s.at(time.Duration(i)*100*time.Millisecond, func() {
					for id := range n {
						o.add(&element{id: uint64(id)})
					}
				})
			}
			s.run(30 * time.Second)
			a, b, c := served[s.operators[0]], served[s.operators[1]], served[s.operators[2]]
			require.InDelta(t, a, b, 20)
			require.InDelta(t, b, c, 20)
			require.Greater(t, c, 10)
		})
	}
}
