package backend_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
)

var silent = slog.New(slog.DiscardHandler)

// Laws B1 to B4 under random schedules: operators, limits, rates, tenants, outages, and hands that close, open and set limits.
func TestLawsUnderRandomSchedules(t *testing.T) {
	rounds := uint64(100)
	if testing.Short() {
		rounds = 20
	}
	for seed := range rounds {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomSchedule(t, seed) }) {
			return
		}
	}
}

func randomSchedule(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	limit := 1 + r.IntN(20)
	opts := []backend.Option{backend.Limit(limit)}
	rate := 0.0
	if r.IntN(2) == 0 {
		rate = float64(5 + r.IntN(200))
		opts = append(opts, backend.Rate(rate, time.Second))
	}
	tenants := []string{""}
	if r.IntN(3) == 0 {
		tenants = []string{"", "a", "b", "c"}
		if r.IntN(2) == 0 {
			opts = append(opts, backend.TenantRate(20, time.Second))
		}
	}
	s := newSim(seed, opts...)
	const length = 60 * time.Second
	outage := func() bool { return false }
	if r.IntN(3) > 0 {
		from := time.Duration(r.Int64N(int64(length / 2)))
		to := from + time.Duration(r.Int64N(int64(length/2)))
		outage = func() bool { return s.elapsed() >= from && s.elapsed() < to }
	}
	var (
		running  int
		starts   []time.Duration
		lastTry  *element
		tryAgain time.Duration
		elements uint64
		done     int
		left     = make(map[*element]bool)
	)
	s.serve = func(c *simCall) (time.Duration, error) {
		stats := s.Stats()
		running++
		require.NotEqual(t, backend.Closed, stats.State, "law B1")
		require.NotEqual(t, backend.Held, stats.State, "law B1")
		require.LessOrEqual(t, running, stats.Limit, "law B1")
		require.Equal(t, running, stats.InUse)
		starts = append(starts, s.elapsed())
		if stats.State == backend.Probing {
			if lastTry == c.element { // law B4: nothing else waits, or all others came too late
				require.GreaterOrEqual(t, s.elapsed()-tryAgain, time.Second, "law B4")
			}
			lastTry = c.element
		}
		took := time.Duration(1+s.random.IntN(200)) * time.Millisecond
		switch {
		case outage():
			if s.random.IntN(4) == 0 {
				return took, errIn3
			}
			return took, errBusy
		case c.poison:
			return took, errBusy
		}
		return took, nil
	}
	s.over = func(c *simCall, err error, _ bool) bool {
		running--
		tryAgain = s.elapsed()
		if err != nil && s.elapsed() < length && c.calls < 500 {
			return false
		}
		delete(left, c.element)
		done++
		return true
	}
	for range 1 + r.IntN(4) {
		o := s.attach()
		var feed func()
		feed = func() {
			elements++
			e := &element{id: elements, tenant: tenants[s.random.IntN(len(tenants))], poison: s.random.IntN(50) == 0}
			left[e] = true
			o.add(e)
			if s.elapsed() < length {
				s.after(time.Duration(s.random.IntN(100))*time.Millisecond, feed)
			}
		}
		s.at(0, feed)
	}
	for range r.IntN(6) {
		s.at(time.Duration(r.Int64N(int64(length))), func() {
			switch r.IntN(3) {
			case 0:
				s.Close("by hand")
				s.after(time.Duration(r.Int64N(int64(10*time.Second))), s.Open)
			case 1:
				s.Open()
			default:
				n := r.IntN(2 * limit)
				s.SetLimit(n)
				s.after(5*time.Second, func() { s.SetLimit(max(1, limit)) })
			}
		})
	}
	s.run(length)
	s.run(3 * length * 10)
	require.Empty(t, left, "elements that were never done: %+v", s.Stats()) // law B3
	require.Zero(t, s.Stats().InUse)
	require.Zero(t, s.Stats().Waiting)
	for i, from := 0, 0; rate > 0 && i < len(starts); i++ { // no second has more than the rate and a twentieth
		for starts[from] <= starts[i]-time.Second {
			from++
		}
		require.LessOrEqual(t, float64(i-from+1), rate+max(1, rate/20)+1, "law B1")
	}
}

// Law B3: operators that wait are served in turn, whatever each has waiting.
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
