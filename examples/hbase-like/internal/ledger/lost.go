package ledger

import (
	"cmp"
	"slices"
)

// Lost is a flight that was given up.
type Lost struct {
	Seq     int    `json:"seq"`
	Line    int    `json:"line"`
	Airport string `json:"airport"`
	Why     string `json:"why"`
}

// Lost returns the flights given up so far.
func (l *Ledger) Lost() []Lost {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lost)
}

// Restore records the flights that were given up when a checkpoint was taken, and returns
// their number. The checkpoint may contain flights that a look-up gave up after its own
// part of the checkpoint. Such a flight comes after the input's position, so it is read
// again and ignored here; or it is in flight in the checkpoint, so it stops counting as
// given up when it is looked up again.
func (l *Ledger) Restore(lost []Lost) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range lost {
		if f.Seq < 0 || f.Seq >= len(l.entries) || l.entries[f.Seq].fate != unknown {
			continue
		}
		e := &l.entries[f.Seq]
		e.fate, e.restored = givenUp, true
		l.counts[givenUp]++
		l.lost = append(l.lost, f)
	}
	return l.counts[givenUp]
}

// takeUpLocked returns a flight given up before the checkpoint to the flights in flight.
func (l *Ledger) takeUpLocked(e *entry, seq int) {
	if !e.restored {
		return
	}
	e.fate, e.restored = unknown, false
	l.counts[givenUp]--
	l.lost = slices.DeleteFunc(l.lost, func(f Lost) bool { return f.Seq == seq })
}

// Bounds of the summary of flights given up.
const (
	maxLosses = 20 // the last one collects the rest
	maxLines  = 5  // per loss
)

// Loss sums up the flights given up for one airport and reason.
type Loss struct {
	Airport string
	Why     string
	Flights int
	Lines   []int
}

func (l *Ledger) lossesLocked() []Loss {
	var losses []Loss
	for _, f := range l.lost {
		i := slices.IndexFunc(losses, func(o Loss) bool { return o.Airport == f.Airport && o.Why == f.Why })
		switch {
		case i >= 0:
		case len(losses) < maxLosses:
			losses = append(losses, Loss{Airport: f.Airport, Why: f.Why})
			i = len(losses) - 1
		default:
			i = maxLosses - 1
			losses[i].Airport, losses[i].Why = "others", "various reasons"
		}
		loss := &losses[i]
		loss.Flights++
		if len(loss.Lines) < maxLines {
			loss.Lines = append(loss.Lines, f.Line)
		}
	}
	for i := range losses {
		slices.Sort(losses[i].Lines)
	}
	slices.SortStableFunc(losses, func(a, b Loss) int { return cmp.Compare(b.Flights, a.Flights) })
	return losses
}
