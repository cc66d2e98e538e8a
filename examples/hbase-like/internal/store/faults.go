package store

import (
	"fmt"
	"hash/fnv"
	"iter"
	"time"
)

// Faults is the trouble that a cluster makes. Everything that is decided by
// chance is a function of Seed and of what happened before, never of time.
type Faults struct {
	Seed uint64

	// LateShare, from 0 to 1, is the share of the rows that are loaded late: up to MaxLag
	// after they are asked for first.
	LateShare float64
	MaxLag    time.Duration

	// EventEvery is the number of Gets between two events of the plan, on
	// average and after the first eight; 0 means that there is no plan.
	EventEvery int

	Transition time.Duration // a region that moves is not served for so long
	SlowBy     time.Duration // what a slow server adds to every answer
	SlowFor    time.Duration // how long it is slow
	DownFor    time.Duration // how long a dead server stays dead
}

// DefaultFaults is trouble of every kind, several times in a run of 40,000 Gets.
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
type Kind int

// The kinds of event.
const (
	Move  Kind = iota + 1 // a region moves to another server
	Drop                  // a server breaks its connections
	Slow                  // a server is slow for a while
	Crash                 // a server dies and comes back
)

// String returns the kind in words.
func (k Kind) String() string {
	switch k {
	case Move:
		return "region move"
	case Drop:
		return "dropped connections"
	case Slow:
		return "slow server"
	case Crash:
		return "server crash"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Event is one piece of trouble of the plan.
type Event struct {
	At   uint64 // the number of Gets at which it is due
	Kind Kind
	Pick uint64 // chooses the region or server it happens to
}

// Plan returns the events that are to come, without end. It is the same for the same Seed
// and EventEvery.
func (f Faults) Plan() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		// Each round holds every kind; crashes, which hurt most, are rare.
		round := []Kind{Move, Drop, Slow, Move, Crash, Move, Drop, Slow}
		var at uint64
		for n := 0; ; n++ {
			if n%len(round) == 0 {
				for i := len(round) - 1; i > 0; i-- {
					j := hash(f.Seed, "shuffle", n+i) % uint64(i+1)
					round[i], round[j] = round[j], round[i]
				}
			}
			// From half the average to one and a half times, at least 1. The first
			// events come closer together, so that a short run sees some, too.
			every := uint64(min(f.EventEvery, f.EventEvery*(n+1)/8))
			at += max(1, every/2+hash(f.Seed, "gap", n)%(every+1))
			if !yield(Event{At: at, Kind: round[n%len(round)], Pick: hash(f.Seed, "pick", n)}) {
				return
			}
		}
	}
}

// lag reports whether a row is loaded late, and how long after its first Get.
func (f Faults) lag(row string) (time.Duration, bool) {
	h := hash(f.Seed, row, -1)
	if float64(h%10_000) >= f.LateShare*10_000 {
		return 0, false
	}
	// A quarter of the most at least: a lag that is not noticed is none.
	return f.MaxLag/4 + time.Duration(float64(f.MaxLag)*0.75*float64(h>>32&0xffff)/0x10000), true
}

// hash mixes its arguments into a number that looks random.
func hash(seed uint64, s string, n int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	x := h.Sum64() ^ seed*0x9e3779b97f4a7c15 ^ uint64(n)*0xd1342543de82ef95
	// The finalizer of splitmix64.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
