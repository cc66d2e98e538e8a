package bench

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Metrics of workloads that wait.
const (
	LiveBytes  = "live-B/elem" // reachable after a collection while all wait, without the user's values
	RSSBytes   = "rss-B/elem"
	ParkNs     = "park-ns/elem"
	LateP50    = "late-p50-ms"
	LateP99    = "late-p99-ms"
	LateMax    = "late-max-ms"
	EarlyMax   = "early-max-ms" // how long before its due time the earliest timer fired
	Goroutines = "goroutines"
	HeldMax    = "held-max" // elements between the first call and the sink
)

// reportLateness reports the distribution of delays in ns, and sorts its argument.
func reportLateness(m *Meter, late []int64) {
	if len(late) == 0 {
		return
	}
	slices.Sort(late)
	at := func(q float64) float64 {
		return float64(late[min(len(late)-1, int(q*float64(len(late))))]) / 1e6
	}
	m.Report(LateP50, at(0.5))
	m.Report(LateP99, at(0.99))
	m.Report(LateMax, at(1))
	m.Report(EarlyMax, max(0, -at(0)))
}

// parking holds n elements that all wait at once, each until its own time.
type parking struct {
	items  []Item
	base   time.Duration // the first call is due after base: time to park and weigh all elements
	spread time.Duration

	left atomic.Int64
	all  chan struct{} // closed when all were woken
}

func newParking(n int, base, spread time.Duration) *parking {
	p := &parking{items: newItems(n), base: base, spread: spread, all: make(chan struct{})}
	p.left.Store(int64(n))
	return p
}

// delay returns how long element i waits if it is parked at instant. Due times are spread
// evenly, independent of the order of arrival.
func (p *parking) delay(i int, start, instant int64) time.Duration {
	n := len(p.items)
	index := int(uint64(i) * 2654435761 % uint64(n))
	due := start + int64(p.base) + int64(float64(index)/float64(n)*float64(p.spread))
	p.items[i].due = due
	return time.Duration(due - instant)
}

func (p *parking) woken(it *Item) {
	it.late = now() - it.due
	if p.left.Add(-1) == 0 {
		close(p.all)
	}
}

// weigh parks all elements, measures their memory, and waits until all were woken. park
// must return once all wait.
func (p *parking) weigh(m *Meter, park func(start int64) error) error {
	resident := residentBytes()
	live := liveBytes()
	m.Start()
	start := now()
	if err := park(start); err != nil {
		return err
	}
	parked := now()
	n := float64(len(p.items))
	m.Report(ParkNs, float64(parked-start)/n)
	goroutines, residentNow := countGoroutines(), residentBytes()
	m.Report(Goroutines, float64(goroutines))
	m.Report(LiveBytes, float64(liveBytes()-live)/n)
	m.Report(RSSBytes, float64(residentNow-resident)/n)
	weighed := now()
	<-p.all
	m.Stop()
	if weighed > start+int64(p.base) {
		return fmt.Errorf("%w: it took %v, and the first element was due after %v",
			errWeighedLate, time.Duration(weighed-start), p.base)
	}
	return nil
}

// errWeighedLate reports that elements were woken before all were weighed, which
// invalidates the result.
var errWeighedLate = errors.New("parking and weighing took too long")

// patiently repeats run with five times the parking time while the machine is too busy:
// at least once, and up to half a minute.
func patiently(base time.Duration, run func(m *Meter, n int, base time.Duration) error) func(m *Meter, n int) error {
	longest := max(5*base, 30*time.Second)
	return func(m *Meter, n int) error {
		for base := base; ; base *= 5 {
			err := run(m, n, base)
			if !errors.Is(err, errWeighedLate) || 5*base > longest {
				return err
			}
		}
	}
}

func (p *parking) report(m *Meter) {
	late := make([]int64, len(p.items))
	for i := range p.items {
		late[i] = p.items[i].late
	}
	reportLateness(m, late)
}
