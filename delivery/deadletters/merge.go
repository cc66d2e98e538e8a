package deadletters

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/wait"
)

const (
	defaultMaxMerges = 5
	batch            = 100              // entries that are claimed or put at once
	page             = 1000             // entries that are read at once
	lease            = 30 * time.Second // of entries that are on their way
	courtesy         = 5 * time.Second  // to give them back after ctx has ended
)

// Config says what [Merge] does. From is required, and either To or Publish.
type Config struct {
	From string // the queue of the dead letters
	To   string // the queue of the same store that they return to
	// Publish sends entries elsewhere, such as to the topic that they come from. When it returns nil, they are durable there.
	// It must return within 30 s, or an entry may be published by another merge as well.
	Publish func(ctx context.Context, ms []store.Message) error

	Filter         store.Filter // which entries; the default is all
	Max            int          // at most so many; 0: no limit
	Rate           float64      // entries in a second; 0: no limit
	MaxMerges      int          // an entry that was merged so often stays; the default is 5
	OutcomeUnknown bool         // also entries whose outcome is unknown

	// Progress is called after each batch, with what was done so far. Nil: no one asks.
	Progress func(Merged)
	// Clock is for Rate, and for what the called side still remembers; the default is the machine's.
	Clock clock.Clock
}

// Merged is what [Merge] did with the entries that match.
type Merged struct {
	Merged         int
	Looping        int // stayed, since they were merged MaxMerges times
	OutcomeUnknown int // stayed, since their outcome is unknown
	// Busy were leased by another merge, by one that was killed in the last 30 s, or by a consumer of the queue, or were purged
	// meanwhile.
	Busy int
}

func (c *Config) check() error {
	switch {
	case c.From == "":
		return errors.New("deadletters: Merge: From is empty")
	case (c.To == "") == (c.Publish == nil):
		return errors.New("deadletters: Merge: one of To and Publish must be set")
	case c.From == c.To:
		return fmt.Errorf("deadletters: Merge: From and To are both %q", c.To)
	case c.Max < 0 || c.MaxMerges < 0 || c.Rate < 0 || math.IsNaN(c.Rate):
		return fmt.Errorf("deadletters: Merge: Max %d, MaxMerges %d and Rate %v must not be negative", c.Max, c.MaxMerges, c.Rate)
	}
	return nil
}

// Merge sends dead letters back to be processed again: as for a first visit, with their history, and one more in
// Meta.Merges. It returns what it did also with an error.
func Merge(ctx context.Context, s store.Inspector, c Config) (Merged, error) {
	if err := c.check(); err != nil {
		return Merged{}, err
	}
	if c.MaxMerges == 0 {
		c.MaxMerges = defaultMaxMerges
	}
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	m := merge{Config: c, store: s}
	err := m.run(ctx)
	if err != nil {
		err = fmt.Errorf("deadletters: merge of %q: %w", c.From, err)
	}
	return m.done, err
}

type merge struct {
	Config
	store store.Inspector
	done  Merged
	seen  int // claimed
}

func (m *merge) run(ctx context.Context) error {
	// What comes back while the merge runs stands behind Last, and is not merged again.
	counts, err := m.store.Count(ctx, m.From, m.Filter)
	if err != nil || counts.Messages == 0 {
		return err
	}
	page := store.Page{Until: counts.Last}
	for {
		begun := m.Clock.Now()
		if page.Max = m.next(); page.Max == 0 {
			return nil
		}
		claimed, err := m.store.Claim(ctx, m.From, m.Filter, page, lease)
		if err != nil {
			return err
		}
		if len(claimed) == 0 {
			m.done.Busy = max(0, counts.Messages-m.seen)
			return nil
		}
		page.After = claimed[len(claimed)-1].Position
		m.seen += len(claimed)
		merged, err := m.bring(ctx, claimed)
		m.done.Merged += merged
		if m.Progress != nil {
			m.Progress(m.done)
		}
		if err != nil {
			return err
		}
		if err := m.pace(ctx, begun, merged); err != nil {
			return err
		}
	}
}

// next returns how many entries to claim.
func (m *merge) next() int {
	n := batch
	if m.Rate > 0 {
		n = max(1, min(n, int(min(m.Rate, batch)))) // a second's worth
	}
	if m.Max > 0 {
		n = min(n, m.Max-m.done.Merged)
	}
	return n
}

// pace waits until n entries since begun are within the rate.
func (m *merge) pace(ctx context.Context, begun time.Time, n int) error {
	if m.Rate == 0 || n == 0 {
		return nil
	}
	left := time.Duration(float64(n)/m.Rate*float64(time.Second)) - m.Clock.Since(begun)
	if left <= 0 {
		return nil
	}
	return wait.For(ctx, m.Clock, left)
}

// bring returns entries to where they are processed, gives back those that stay, and returns how many left.
func (m *merge) bring(ctx context.Context, claimed []store.Leased) (int, error) {
	var stay []store.Lease
	var moves []store.Move
	for _, l := range claimed {
		switch {
		case l.Meta.OutcomeUnknown && !m.OutcomeUnknown && !l.Meta.Remembered.After(m.Clock.Now()):
			m.done.OutcomeUnknown++
			stay = append(stay, l.Lease)
		case l.Meta.Merges >= m.MaxMerges:
			m.done.Looping++
			stay = append(stay, l.Lease)
		default:
			moves = append(moves, store.Move{Lease: l.Lease, Queue: m.To, Message: back(l.Message, m.Clock.Now())})
		}
	}
	if err := ignoreLost(m.store.Release(ctx, 0, stay...)); err != nil {
		return 0, err
	}
	if len(moves) == 0 {
		return 0, nil
	}
	if m.To != "" {
		err := m.store.Move(ctx, moves...)
		if e, ok := errors.AsType[*store.LeaseError](err); ok { // purged meanwhile
			moves, err = moves[len(e.Lost):], nil
		}
		if err != nil {
			return 0, err
		}
		return len(moves), nil
	}
	return m.publish(ctx, moves)
}

// back returns an entry as it is processed again.
func back(m store.Message, now time.Time) store.Message {
	m = m.Clone()
	failed.Afresh(&m.Meta, now)
	m.Cause, m.Delay = "", 0
	return m
}

// publish removes entries from the dead letters only after they are durable elsewhere: law D1.
func (m *merge) publish(ctx context.Context, moves []store.Move) (int, error) {
	ms, leases := make([]store.Message, len(moves)), make([]store.Lease, len(moves))
	for i := range moves {
		ms[i], leases[i] = moves[i].Message, moves[i].Lease
	}
	if err := m.Publish(ctx, ms); err != nil {
		// Entries stay. To give them back is a courtesy to the next merge, which waits for their leases otherwise.
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), courtesy)
		defer cancel()
		return 0, errors.Join(err, ignoreLost(m.store.Release(releasing, 0, leases...)))
	}
	if err := ignoreLost(m.store.Done(ctx, leases...)); err != nil {
		return 0, err
	}
	return len(moves), nil
}

// ignoreLost drops the error of leases that were lost: their entries were purged or are another one's by now.
func ignoreLost(err error) error {
	if errors.Is(err, store.ErrLeaseLost) {
		return nil
	}
	return err
}
