package keys

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weirflow/weir/exactlyonce"
)

// Stats are the counters of [Keys] in this process, since New.
type Stats struct {
	New        uint64 // attempts whose request was new
	Resumed    uint64 // attempts that continued an unfinished request
	Replayed   uint64 // attempts that got a stored response
	InProgress uint64 // refused with exactlyonce.ErrInProgress
	Mismatched uint64 // refused with exactlyonce.ErrMismatch
	Invalid    uint64 // refused with exactlyonce.ErrInvalid

	Stale     uint64 // runs that another run took over from, including runs of Complete
	Collected uint64 // finished requests removed by Reap
}

// Stats returns the current counters.
func (k *Keys) Stats() Stats {
	c := &k.counters
	return Stats{
		New: c.begun.Load(), Resumed: c.resumed.Load(), Replayed: c.replayed.Load(), InProgress: c.inProgress.Load(),
		Mismatched: c.mismatched.Load(), Invalid: c.invalid.Load(), Stale: c.stale.Load(), Collected: c.collected.Load(),
	}
}

type counters struct {
	begun, resumed, replayed, inProgress, mismatched, invalid, stale, collected atomic.Uint64
}

func (c *counters) refused(err error) {
	switch {
	case errors.Is(err, exactlyonce.ErrInvalid):
		c.invalid.Add(1)
	case errors.Is(err, exactlyonce.ErrMismatch):
		c.mismatched.Add(1)
	case errors.Is(err, exactlyonce.ErrInProgress):
		c.inProgress.Add(1)
	}
}

// Counts are the requests in a database.
type Counts struct {
	Records    int
	Unfinished int
	Overdue    int // unfinished and past their retention, for [Keys.End]
	Users      int // users with requests
}

// Count counts the requests. It reads a complete index of the table, so do not call it
// for each scrape. The error comes from the database.
func (k *Keys) Count(ctx context.Context) (c Counts, err error) {
	err = errors.Join(
		k.db.QueryRowContext(ctx, countSQL).Scan(&c.Records, &c.Users),
		k.db.QueryRowContext(ctx, countUnfinishedSQL).Scan(&c.Unfinished),
		k.db.QueryRowContext(ctx, overdueSQL, k.now()).Scan(&c.Overdue))
	if err != nil {
		return Counts{}, fmt.Errorf("keys: count: %w", explain(err))
	}
	return c, nil
}
