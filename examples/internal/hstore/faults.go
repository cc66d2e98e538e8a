package hstore

import (
	"hash/fnv"
	"time"
)

// Faults configures a cluster's faults. All random decisions are functions of Seed and of
// earlier events, not of time.
type Faults struct {
	Seed uint64

	// LateShare, from 0 to 1, is the share of rows that are loaded up to MaxLag after
	// their first Get.
	LateShare float64
	MaxLag    time.Duration

	// EventEvery is the average number of Gets between the plan's events, after the first
	// eight. 0 means no plan.
	EventEvery int

	Transition time.Duration // how long a moving region is not served
	SlowBy     time.Duration // added to every answer of a slow server
	SlowFor    time.Duration
	DownFor    time.Duration
}

// DefaultFaults injects every kind of fault, several times in 40,000 Gets.
func DefaultFaults(seed uint64) Faults {
	return Faults{
		Seed:       seed,
		LateShare:  0.2,
		MaxLag:     800 * time.Millisecond,
		EventEvery: 2_000,
		Transition: 60 * time.Millisecond,
		SlowBy:     100 * time.Millisecond,
		SlowFor:    400 * time.Millisecond,
		DownFor:    500 * time.Millisecond,
	}
}

// Kind is a kind of event.
type Kind string

// Kinds are the kinds of event, in the order of the summary.
var Kinds = []Kind{Late, Move, Drop, Slow, Crash}

// The kinds of event. All but Late are in the plan.
const (
	Late  Kind = "late row" // requested before it is loaded
	Move  Kind = "region move"
	Drop  Kind = "dropped connections"
	Slow  Kind = "slow server"
	Crash Kind = "server crash" // revived later
)

type event struct {
	at   uint64 // number of Gets at which it is due
	kind Kind
	pick uint64 // selects the region or server
}

// plan is the endless sequence of events. It depends only on Seed and EventEvery.
type plan struct {
	faults Faults
	round  []Kind
	n      int
	at     uint64
}

func newPlan(f Faults) *plan {
	// Crashes are rare, having the worst effect.
	return &plan{faults: f, round: []Kind{Move, Drop, Slow, Move, Crash, Move, Drop, Slow}}
}

func (p *plan) next() event {
	seed, round := p.faults.Seed, p.round
	if p.n%len(round) == 0 {
		for i := len(round) - 1; i > 0; i-- {
			j := hash(seed, "shuffle", p.n+i) % uint64(i+1)
			round[i], round[j] = round[j], round[i]
		}
	}
	// From half to one and a half times the average, at least 1. The first events are
	// closer together, for short runs.
	every := uint64(min(p.faults.EventEvery, p.faults.EventEvery*(p.n+1)/8))
	p.at += max(1, every/2+hash(seed, "gap", p.n)%(every+1))
	e := event{at: p.at, kind: round[p.n%len(round)], pick: hash(seed, "pick", p.n)}
	p.n++
	return e
}

// lag reports whether a row is loaded late, and how long after its first Get.
func (f Faults) lag(row string) (time.Duration, bool) {
	h := hash(f.Seed, row, -1)
	if float64(h%10_000) >= f.LateShare*10_000 {
		return 0, false
	}
	// At least a quarter of MaxLag: a shorter lag could go unnoticed.
	return f.MaxLag/4 + time.Duration(float64(f.MaxLag)*0.75*float64(h>>32&0xffff)/0x10000), true
}

func hash(seed uint64, s string, n int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	x := h.Sum64() ^ seed*0x9e3779b97f4a7c15 ^ uint64(n)*0xd1342543de82ef95
	// The finalizer of splitmix64.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
