package storesql

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ExceptRefused marks the place in a query where [Refused.Except] excludes messages.
const ExceptRefused = "/* except refused */"

const (
	maxRefused  = 1000        // messages excluded at a time
	firstWait   = time.Minute // doubles with each refusal of a message
	longestWait = time.Hour
	maxRounds   = 4 // of a Take that excludes every message it finds
)

// Refused are messages that the database refuses to lease, as a user's trigger or check
// may. Take excludes them for a while, so that they delay no other message (law D4). The
// zero value is ready for use, and safe for concurrent use.
type Refused struct {
	mu sync.Mutex
	of map[int64]refusal // by position
}

type refusal struct {
	until time.Time
	wait  time.Duration
}

// Except returns the query without the excluded messages.
func (r *Refused) Except(query string, now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var positions []int64
	for position, refused := range r.of {
		switch {
		case now.Before(refused.until):
			positions = append(positions, position)
		case now.Sub(refused.until) > longestWait:
			delete(r.of, position) // it was leased since, or is gone
		}
	}
	if len(positions) == 0 {
		return strings.Replace(query, ExceptRefused, "", 1)
	}
	slices.Sort(positions)
	return strings.Replace(query, ExceptRefused, " AND position NOT IN ("+list(positions)+")", 1)
}

// Only returns the query for the messages at some positions only.
func Only(query string, positions []int64) string {
	return strings.Replace(query, ExceptRefused, " AND position IN ("+list(positions)+")", 1)
}

func list(positions []int64) string {
	var texts []string
	for _, position := range positions {
		texts = append(texts, strconv.FormatInt(position, 10))
	}
	return strings.Join(texts, ",")
}

// add excludes a message, and returns for how long, or false if too many are excluded.
func (r *Refused) add(position int64, now time.Time) (wait time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.of[position]
	if !known && len(r.of) >= maxRefused {
		return 0, false
	}
	wait = firstWait
	if known {
		wait = min(2*last.wait, longestWait)
	}
	if r.of == nil {
		r.of = map[int64]refusal{}
	}
	r.of[position] = refusal{now.Add(wait), wait}
	return wait, true
}

// TakeCall is a call that takes messages. If the database refuses to lease one of the
// messages, the whole transaction fails.
type TakeCall[M any] struct {
	// All leases the chosen messages, without those of [Refused.Except].
	All func() ([]M, error)
	// Find returns the positions that All would choose.
	Find func() ([]int64, error)
	// These leases the messages at positions that are still due.
	These func(positions []int64) ([]M, error)
	// IsRefusal reports whether the database refused All or These.
	IsRefusal func(err error) bool
	Log       func(position int64, cause error, wait time.Duration)
	Now       func() time.Time
}

// Do makes the call. If the database refuses a message, Do halves the messages until the
// refused one is alone, and leases the others. If every message is refused, it returns
// the refusal. With an error it returns no messages: their transaction has failed.
func (c *TakeCall[M]) Do(r *Refused) (leased []M, err error) {
	for range maxRounds {
		leased, err = c.All()
		if err == nil {
			return leased, nil
		}
		if !c.IsRefusal(err) {
			return nil, err
		}
		positions, findErr := c.Find()
		if findErr != nil {
			return nil, findErr
		}
		leased, findErr = c.halve(r, positions)
		if len(leased) > 0 { // another failure will recur
			return leased, nil
		}
		if findErr != nil {
			return nil, findErr
		}
	}
	return nil, err
}

// halve leases the messages that the database does not refuse. After another error it
// returns the error and the messages leased before.
func (c *TakeCall[M]) halve(r *Refused, positions []int64) ([]M, error) {
	if len(positions) == 0 {
		return nil, nil
	}
	leased, err := c.These(positions)
	if err == nil {
		return leased, nil
	}
	if !c.IsRefusal(err) {
		return nil, err
	}
	if len(positions) == 1 {
		wait, ok := r.add(positions[0], c.Now())
		if !ok {
			return nil, err
		}
		c.Log(positions[0], err, wait)
		return nil, nil
	}
	half := len(positions) / 2
	leased, err = c.halve(r, positions[:half])
	if err != nil {
		return leased, err
	}
	more, err := c.halve(r, positions[half:])
	return append(leased, more...), err
}
