// Package loadsim simulates a service with a queue and a client that limits its calls, in
// virtual time and with a seed, to compare limiters.
package loadsim

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"
)

// Limiter determines how many calls may run at once.
type Limiter interface {
	Limit() int
	// Ended is called when a call was answered. inUse includes it.
	Ended(t, took time.Duration, inUse int)
	// Lost is called when a call was given up or refused.
	Lost(t, took time.Duration, inUse int)
}

// Starter is a Limiter that is called at the start of each call. The returned function is
// called at the call's end in place of the other methods.
type Starter interface {
	Started() (end func(lost bool))
}

// Fixed is a limit that does not change.
type Fixed int

// Limit implements Limiter.
func (f Fixed) Limit() int { return int(f) }

// Ended implements Limiter.
func (f Fixed) Ended(time.Duration, time.Duration, int) {}

// Lost implements Limiter.
func (f Fixed) Lost(time.Duration, time.Duration, int) {}

// Load describes a service and the demand for it.
type Load struct {
	Name     string
	Capacity func(t time.Duration) int                             // calls processed at once; others queue
	Takes    func(r *rand.Rand, t time.Duration) (d time.Duration) // processing time of a call
	Demand   func(t time.Duration) float64                         // calls per second; nil means always more than can run
	Room     int                                                   // length of the queue; further calls are refused at once; 0 means no limit
	Timeout  time.Duration                                         // of the client; the service does not notice it
	Length   time.Duration
	Changes  []time.Duration // when the best limit changes
}

// Result is a run's result by second.
type Result struct {
	Good  []int // timely answers
	Lost  []int
	Took  []time.Duration // total time of answered calls
	Limit []int           // at the end of the second
}

// Between returns the number of timely answers in a period.
func (r Result) Between(from, to time.Duration) (good int) {
	for i := from / time.Second; i < to/time.Second; i++ {
		good += r.Good[i]
	}
	return good
}

// Mean returns the mean time of timely answers.
func (r Result) Mean(from, to time.Duration) (mean time.Duration) {
	for i := from / time.Second; i < to/time.Second; i++ {
		mean += r.Took[i]
	}
	return mean / time.Duration(max(1, r.Between(from, to)))
}

type call struct {
	begun time.Duration
	over  bool // for the client
	end   func(lost bool)
}

type event struct {
	at time.Duration
	n  int
	do func()
}

type run struct {
	Load
	Result
	limiter Limiter
	random  *rand.Rand
	now     time.Duration
	events  []event
	order   int

	busy    int
	queue   []*call
	inUse   int
	waiting int // demand not started yet
}

// Run simulates a load. It calls sleep, unless nil, as time passes.
func Run(seed uint64, l Load, limiter Limiter, sleep func(d time.Duration)) Result {
	seconds := int(l.Length / time.Second)
	r := &run{Load: l, limiter: limiter, random: rand.New(rand.NewPCG(seed, 3))}
	r.Took = make([]time.Duration, seconds+1)
	r.Good = make([]int, seconds+1)
	r.Lost = make([]int, seconds+1)
	r.Limit = make([]int, seconds+1)
	if r.Demand == nil {
		r.waiting = math.MaxInt
	} else {
		r.arrive()
	}
	r.at(0, r.start)
	for s := range seconds {
		r.at(time.Duration(s+1)*time.Second-1, func() { r.Limit[s] = limiter.Limit() })
		r.at(time.Duration(s)*time.Second, r.work)
	}
	for len(r.events) > 0 && r.events[0].at < l.Length {
		e := heap.Pop((*events)(&r.events)).(event)
		if sleep != nil && e.at > r.now {
			sleep(e.at - r.now)
		}
		r.now = e.at
		e.do()
		r.start()
	}
	return r.Result
}

func (r *run) at(t time.Duration, f func()) {
	r.order++
	heap.Push((*events)(&r.events), event{t, r.order, f})
}

func (r *run) arrive() {
	const most = 1000 // at most this many wait; others leave
	rate := r.Demand(r.now)
	r.at(r.now+time.Duration(r.random.ExpFloat64()/rate*1e9), func() {
		r.waiting = min(most, r.waiting+1)
		r.arrive()
	})
}

func (r *run) start() {
	for r.waiting > 0 && r.inUse < r.limiter.Limit() {
		if r.Demand != nil {
			r.waiting--
		}
		r.inUse++
		c := &call{begun: r.now}
		if s, ok := r.limiter.(Starter); ok {
			c.end = s.Started()
		}
		if r.Room > 0 && len(r.queue) >= r.Room {
			r.at(r.now+time.Millisecond, func() { r.lose(c) })
			continue
		}
		r.queue = append(r.queue, c)
		r.at(r.now+r.Timeout, func() { r.lose(c) })
		r.work()
	}
}

func (r *run) lose(c *call) {
	if c.over {
		return
	}
	c.over = true
	r.Result.Lost[r.now/time.Second]++
	if c.end != nil {
		c.end(true)
	} else {
		r.limiter.Lost(r.now, r.now-c.begun, r.inUse)
	}
	r.inUse--
}

func (r *run) work() {
	for len(r.queue) > 0 && r.busy < r.Capacity(r.now) {
		c := r.queue[0]
		r.queue = r.queue[1:]
		r.busy++
		r.at(r.now+r.Takes(r.random, r.now), func() {
			r.busy--
			r.work()
			if c.over {
				return
			}
			c.over = true
			r.Good[r.now/time.Second]++
			r.Took[r.now/time.Second] += r.now - c.begun
			if c.end != nil {
				c.end(false)
			} else {
				r.limiter.Ended(r.now, r.now-c.begun, r.inUse)
			}
			r.inUse--
		})
	}
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return x
}
