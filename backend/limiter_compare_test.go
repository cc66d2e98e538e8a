package backend

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/loadsim"
	"github.com/weirflow/weir/internal/testing/suite"
)

// adapted is a limiter of this package in a simulation.
type adapted struct {
	l     *adaptive
	limit int
	next  time.Duration
}

func (a *adapted) Limit() int { return a.limit }
func (a *adapted) Ended(t, took time.Duration, inUse int) {
	a.l.answered()
	a.limit = a.l.sample(t, took, inUse)
}
func (a *adapted) Lost(t, _ time.Duration, _ int) { a.limit = a.l.lost(t) }

// windowed feeds the averages of windows to a rule, as concurrency-limits does.
type windowed struct {
	limit      float64
	begun      time.Duration
	sum        time.Duration
	least      time.Duration
	n, inUse   int
	lost       bool
	rule       func(w *windowed, took time.Duration)
	base, long float64
	windows    int
}

func (w *windowed) Limit() int { return int(w.limit) }
func (w *windowed) Ended(t, took time.Duration, inUse int) {
	w.sum += took
	w.n++
	w.inUse = max(w.inUse, inUse)
	w.end(t)
}

func (w *windowed) Lost(t, took time.Duration, inUse int) {
	w.lost = true
	w.Ended(t, took, inUse)
}

func (w *windowed) end(t time.Duration) {
	took := w.sum / time.Duration(w.n)
	if w.n < 10 || t-w.begun < max(100*time.Millisecond, 2*took) {
		return
	}
	w.windows++
	w.rule(w, took)
	w.limit = min(loadsim.Most, max(loadsim.Least, w.limit))
	w.begun, w.sum, w.n, w.inUse, w.lost = t, 0, 0, 0, false
}

func aimd(w *windowed, _ time.Duration) {
	switch {
	case w.lost:
		w.limit *= 0.9
	case float64(w.inUse)*2 >= w.limit:
		w.limit++
	}
}

func vegas(w *windowed, took time.Duration) {
	now := float64(took)
	if w.base == 0 || now < w.base || w.windows%300 == 0 { // its probe
		w.base = now
		return
	}
	log := max(1, math.Log10(w.limit))
	queue := math.Ceil(w.limit * (1 - w.base/now))
	switch {
	case w.lost:
		w.limit -= log
	case float64(w.inUse)*2 < w.limit:
	case queue <= log:
		w.limit += 6 * log
	case queue < 3*log:
		w.limit += log
	case queue > 6*log:
		w.limit -= log
	}
}

func gradient2(w *windowed, took time.Duration) {
	now := float64(took)
	if w.long == 0 {
		w.long = now
	}
	w.long += (now - w.long) * 2 / 601
	if w.long/now > 2 {
		w.long *= 0.95
	}
	if float64(w.inUse) < w.limit/2 {
		return
	}
	gradient := max(0.5, min(1, 1.5*w.long/now))
	w.limit = w.limit*0.8 + 0.2*(w.limit*gradient+4)
}

var limiters = []struct {
	name string
	make func() loadsim.Limiter
}{
	{"AIMD", func() loadsim.Limiter { return &windowed{limit: loadsim.Least, rule: aimd} }},
	{"Vegas", func() loadsim.Limiter { return &windowed{limit: loadsim.Least, rule: vegas} }},
	{"Gradient2", func() loadsim.Limiter { return &windowed{limit: loadsim.Least, rule: gradient2} }},
	{"backend", func() loadsim.Limiter {
		return &adapted{l: newAdaptive(loadsim.Least, loadsim.Most), limit: loadsim.Least}
	}},
}

// Adaptive reaches at least 0.95 times the throughput of the best fixed limit, also 30 s
// after a change. With WEIR_LONG=1 -v the table has other limiters, too.
func TestAdaptive(t *testing.T) {
	long := suite.Long()
	seeds := uint64(1)
	if long {
		seeds = 3
	}
	loads := loadsim.Loads()
	switch {
	case !suite.Full():
		loads = loads[:1]
	case suite.Race: // one goroutine
		loads = loads[:2]
	}
	for _, load := range loads {
		for seed := range seeds {
			for _, p := range loadsim.Best(seed, load) {
				row := fmt.Sprintf("%-18s %5v  static %3d: %4d/s", load.Name, p.From, p.Static, p.Best/int((p.To-p.From)/time.Second))
				for _, l := range limiters {
					isOurs := l.name == "backend"
					if !isOurs && !long {
						continue
					}
					r := loadsim.Run(seed, load, l.make(), nil)
					share := float64(r.Between(p.From, p.To)) / float64(p.Best)
					row += fmt.Sprintf("  %s %.3f %3d %v", l.name, share, r.Limit[p.To/time.Second-1], r.Mean(p.From, p.To).Round(time.Millisecond))
					if isOurs {
						require.GreaterOrEqual(t, share, 0.95, row)
					}
				}
				t.Log(row)
			}
		}
	}
}
