package loadsim

import (
	"math/rand/v2"
	"time"
)

// Bounds of the limiters, and capacities of the services.
const (
	Least = 8
	Most  = 200
	Half  = 25
	Full  = 50
)

// Loads returns the five standard loads for limiters, and a load with ten times the
// demand that the service can serve.
func Loads() []Load {
	const (
		ms    = time.Millisecond
		short = 40 * ms
	)
	about := func(mean time.Duration) func(*rand.Rand, time.Duration) time.Duration {
		return func(r *rand.Rand, _ time.Duration) time.Duration { return around(r, mean) }
	}
	steady := func(time.Duration) int { return Full }
	base := Load{Takes: about(short), Capacity: steady, Timeout: time.Second, Length: 3 * time.Minute}
	with := func(name string, change func(l *Load)) Load {
		l := base
		l.Name = name
		change(&l)
		return l
	}
	return []Load{
		with("steady", func(*Load) {}),
		with("step", func(l *Load) {
			l.Changes = []time.Duration{time.Minute, 2 * time.Minute}
			l.Capacity = func(t time.Duration) int {
				if t >= time.Minute && t < 2*time.Minute {
					return Half
				}
				return Full
			}
		}),
		with("ramp", func(l *Load) { // demand grows from half to double the capacity
			bears := float64(Full) / short.Seconds()
			l.Demand = func(t time.Duration) float64 { return bears * (0.5 + 1.5*float64(t)/float64(l.Length)) }
		}),
		with("slow degradation", func(l *Load) {
			l.Takes = func(r *rand.Rand, t time.Duration) time.Duration {
				return around(r, time.Duration(float64(short)*(1+2*float64(t)/float64(3*time.Minute))))
			}
		}),
		with("mixed latencies", func(l *Load) {
			l.Takes = func(r *rand.Rand, _ time.Duration) time.Duration {
				if r.IntN(10) == 0 {
					return around(r, 10*short)
				}
				return around(r, short/2)
			}
		}),
		with("ten times too much", func(l *Load) {
			l.Capacity = func(time.Duration) int { return Most / 10 }
			l.Timeout = 300 * ms
			l.Room = Most * 5
		}),
	}
}

// around returns a random time with the given mean: the average of four exponential
// times, which has half the deviation of one.
func around(r *rand.Rand, mean time.Duration) time.Duration {
	sum := 0.0
	for range 4 {
		sum += r.ExpFloat64()
	}
	return time.Duration(sum / 4 * float64(mean))
}

// Phase is a part of a load, from 30 s after one change to the next change.
type Phase struct {
	From, To time.Duration
	Best     int // timely answers with Static
	Static   int // the best static limit
}

// Best finds the best static limit of each phase by trying several.
func Best(seed uint64, l Load) (phases []Phase) {
	from := time.Duration(0)
	for _, to := range append(l.Changes, l.Length) {
		phases = append(phases, Phase{From: from + 30*time.Second, To: to})
		from = to
	}
	for n := Least; n <= Most; n += n / 2 {
		r := Run(seed, l, Fixed(n), nil)
		for i := range phases {
			p := &phases[i]
			if good := r.Between(p.From, p.To); good > p.Best {
				p.Best, p.Static = good, n
			}
		}
	}
	return phases
}
