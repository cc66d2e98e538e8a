package metered

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

const limit = 200

type result struct {
	counts

	done int
	took time.Duration
}

type scenario struct {
	name    string
	rows    int
	assumed float64
	budget  float64
	latency time.Duration
	prepare func(p *provider)
	columns []column
}

type column struct {
	name string
	aim  string
	of   func(s *scenario, r *result) string
}

var outage = span{5 * time.Second, 25 * time.Second}

var scenarios = []scenario{
	{
		name: "calm", rows: 3000, assumed: limit, latency: 300 * time.Millisecond,
		columns: []column{{"share of the limit", ">= 95 %", share}, {"429 answers", "0", throttled}},
	},
	{
		name: "limit assumed 25 % too high", rows: 6000, assumed: 1.25 * limit, latency: 300 * time.Millisecond,
		columns: []column{{"share of the limit", ">= 90 %", share}, {"429 answers", "", throttled}, {"of all calls", "<= 2 %", throttledShare}},
	},
	{
		name: "overloads of 1.5 to 3 s every 8 s", rows: 3000, assumed: limit, latency: 300 * time.Millisecond,
		prepare: func(p *provider) {
			for i := range 60 {
				from := time.Duration(i)*8*time.Second + 5*time.Second
				p.overloads = append(p.overloads, span{from, from + time.Duration(1500+i%3*750)*time.Millisecond})
			}
		},
		columns: []column{{"time", "1.1 x loop", took}, {"refused calls", "", refused}},
	},
	{
		name: "outage of 20 s", rows: 4000, assumed: limit, latency: 300 * time.Millisecond,
		prepare: func(p *provider) { p.outage = outage },
		columns: []column{{"until 90 % of the rate", "<= 10.3 s", recovery}, {"refused calls", "<= 100", refused}},
	},
	{
		name: "budget of 1,000", rows: 3000, assumed: limit, budget: 1000, latency: 300 * time.Millisecond,
		columns: []column{{"paid beyond it", "in flight", beyond}},
	},
}

func (s *scenario) run(ctx context.Context, c client) (result, error) {
	p := newProvider(limit, s.latency)
	if s.prepare != nil {
		s.prepare(p)
	}
	start := time.Now()
	done, err := c.run(ctx, job{rows: s.rows, assumed: s.assumed, budget: s.budget, call: p.call})
	r := result{counts: p.counts(), done: done, took: time.Since(start)}
	if err != nil {
		return r, fmt.Errorf("metered: %s, %s: %w", s.name, c.name, err)
	}
	if s.budget == 0 && done != s.rows {
		return r, fmt.Errorf("metered: %s, %s: %d of %d rows were answered", s.name, c.name, done, s.rows)
	}
	return r, nil
}

// shareOf returns the share of the provider's limit that a client used.
func shareOf(s *scenario, r *result) float64 {
	return float64(r.answered) / (limit * (r.took - s.latency).Seconds())
}

func share(s *scenario, r *result) string { return fmt.Sprintf("%.0f %%", 100*shareOf(s, r)) }

func throttled(_ *scenario, r *result) string { return strconv.Itoa(r.throttled) }

func throttledShareOf(r *result) float64 {
	return float64(r.throttled) / float64(r.throttled+r.answered+r.refused)
}

func throttledShare(_ *scenario, r *result) string {
	return fmt.Sprintf("%.1f %%", 100*throttledShareOf(r))
}

func took(_ *scenario, r *result) string { return fmt.Sprintf("%.1f s", r.took.Seconds()) }

func refused(_ *scenario, r *result) string { return strconv.Itoa(r.refused) }

// recoveryOf returns the time from the end of the outage to the end of the first second
// in which 90 % of the limit was answered.
func recoveryOf(r *result) (d time.Duration, ok bool) {
	want := limit * 9 / 10
	for i, first := 0, 0; i < len(r.at); i++ {
		for r.at[i]-r.at[first] > time.Second {
			first++
		}
		if r.at[first] >= outage.to && i-first+1 >= want {
			return r.at[i] - outage.to, true
		}
	}
	return 0, false
}

func recovery(_ *scenario, r *result) string {
	d, ok := recoveryOf(r)
	if !ok {
		return "never"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func beyond(s *scenario, r *result) string { return strconv.Itoa(r.answered - int(s.budget)) }
