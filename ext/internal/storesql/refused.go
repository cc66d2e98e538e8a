package storesql

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ExceptRefused marks the place in the WHERE of a query where [Refused.Except] leaves out
// messages.
const ExceptRefused = "/* except refused */"

const (
	maxRefused  = 1000        // messages that are left out at a time
	firstWait   = time.Minute // doubles with each refusal of the same message
	longestWait = time.Hour
	maxRounds   = 4 // of a Take that leaves out every message it finds
)

// Refused are the messages that the database refuses to lease, as a trigger or a check of
// the user may. A call of Take leaves them out for a while, so that they delay no other
// message (law D4). The zero value is ready for use, and safe for concurrent use.
type Refused struct {
	mu sync.Mutex
	of map[int64]refusal // by position
}

type refusal struct {
	until time.Time
	wait  time.Duration
}

// Except returns the query without the messages that are left out now.
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
	var condition strings.Builder
	condition.WriteString(" AND position NOT IN (")
	for i, position := range positions {
		if i > 0 {
			condition.WriteByte(',')
		}
		condition.WriteString(strconv.FormatInt(position, 10))
	}
	condition.WriteByte(')')
	return strings.Replace(query, ExceptRefused, condition.String(), 1)
}

// add leaves out a message from now on, and returns for how long. It reports false if too
// many are left out already.
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

// Lease is a call that leases messages, and that a single message can make fail.
type Lease[M any] struct {
	// All leases the messages that the call chooses, except the messages of
	// [Refused.Except].
	All func() ([]M, error)
	// Find returns the positions of the messages that All chooses.
	Find func() ([]int64, error)
	// These leases the messages at positions, if they are still due.
	These func(positions []int64) ([]M, error)
	// IsRefusal reports whether an error of All or These is a refusal of the database.
	IsRefusal func(err error) bool
	// Log notes a message that is left out for a while.
	Log func(position int64, cause error, wait time.Duration)
	Now func() time.Time
}

// Lease makes the call. If the database refuses a message, the others are leased without
// it: they are halved until the refused message is alone. If it refuses every message,
// Lease returns the refusal. With an error it returns no messages: if All has returned
// some with it, they are not leased, since their transaction has failed.
func (c *Lease[M]) Lease(r *Refused) (leased []M, err error) {
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
		if len(leased) > 0 { // a failure of the others is met again
			return leased, nil
		}
		if findErr != nil {
			return nil, findErr
		}
	}
	return nil, err
}

// halve leases the messages at positions that the database does not refuse. If another
// error ends it, it returns the error and the messages that were leased before.
func (c *Lease[M]) halve(r *Refused, positions []int64) ([]M, error) {
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
