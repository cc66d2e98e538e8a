package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Balance is a ledger's state.
type Balance struct {
	Read      int
	Enriched  int
	GivenUp   int
	Abandoned int
	Missing   int // flights read that have not come out

	Losses   []Loss
	Problems []string // violated invariants, without Missing

	Latency        Quantiles[time.Duration] // of enriched flights, from the first call to the output
	LatencyRetried Quantiles[time.Duration] // of enriched flights with retries
	Retried        int
	Retries        Quantiles[int32] // per flight with retries
}

// Quantiles are computed from all values.
type Quantiles[T any] struct {
	P50, P99, Max T
}

// Ended returns the number of flights enriched, given up or abandoned.
func (b Balance) Ended() int { return b.Enriched + b.GivenUp + b.Abandoned }

// Balance returns the state of the ledger.
func (l *Ledger) Balance() Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := Balance{
		Read:      len(l.entries),
		Enriched:  l.counts[enriched],
		GivenUp:   l.counts[givenUp],
		Abandoned: l.counts[abandoned],
		Losses:    l.lossesLocked(),
		Problems:  slices.Clone(l.problems),
	}
	var all, retried []time.Duration
	var retries []int32
	for _, e := range l.entries {
		if e.fate == unknown {
			b.Missing++
		}
		if e.fate == enriched {
			all = append(all, e.latency)
			if e.retries > 0 {
				retried = append(retried, e.latency)
			}
		}
		if e.retries > 0 {
			retries = append(retries, e.retries)
		}
	}
	b.Retried = len(retries)
	b.Latency = quantiles(all)
	b.LatencyRetried = quantiles(retried)
	b.Retries = quantiles(retries)
	return b
}

// Prove returns nil if every flight came out exactly once, and in order if the ledger is
// ordered. After a run that was cut short, the notTaken flights that the pipeline did not
// accept may be missing.
func (b Balance) Prove(notTaken int) error {
	problems := b.Problems
	if b.Missing != notTaken {
		problems = append(problems, fmt.Sprintf("%d flights did not come out, %d expected", b.Missing, notTaken))
	}
	if len(problems) == 0 {
		return nil
	}
	more := len(problems) - maxProblems
	if more > 0 {
		problems = append(problems[:maxProblems:maxProblems], fmt.Sprintf("and %d more problems", more))
	}
	return errors.New("the books do not balance:\n  " + strings.Join(problems, "\n  "))
}

const maxProblems = 10

// quantiles sorts values. The p-quantile is the smallest value that is at least as large
// as a share p of them.
func quantiles[T time.Duration | int32](values []T) Quantiles[T] {
	n := len(values)
	if n == 0 {
		return Quantiles[T]{}
	}
	slices.Sort(values)
	at := func(percent int) T { return values[(n*percent+99)/100-1] }
	return Quantiles[T]{P50: at(50), P99: at(99), Max: values[n-1]}
}
