package ledger

import (
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
	Missing   int // read, and not come out

	Losses   []Loss
	Problems []string // what must not be, Missing aside

	Latency        Quantiles[time.Duration] // of enriched flights, from the first call to the output
	LatencyRetried Quantiles[time.Duration] // of those that were retried
	Retried        int                      // flights that were retried
	Retries        Quantiles[int32]         // per flight that was retried
}

// Quantiles are taken of all values, not of a sample.
type Quantiles[T any] struct {
	P50, P99, Max T
}

// Ended is the number of flights that came out, one way or another.
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
	if l.more > 0 {
		b.Problems = append(b.Problems, fmt.Sprintf("and %d more problems", l.more))
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
	b.Latency, b.LatencyRetried, b.Retries = quantiles(all), quantiles(retried), quantiles(retries)
	return b
}

// Prove returns nil if every flight came out exactly once, and in order if the ledger is
// ordered. Of a run that was cut short, notTaken flights may be missing: those that the
// pipeline says it did not accept.
func (b Balance) Prove(notTaken int) error {
	problems := b.Problems
	if b.Missing != notTaken {
		problems = append(problems, fmt.Sprintf("%d flights did not come out, %d expected", b.Missing, notTaken))
	}
	if len(problems) == 0 {
		return nil
	}
	return &ProofError{Problems: problems}
}

// ProofError says what does not balance.
type ProofError struct {
	Problems []string
}

func (e *ProofError) Error() string {
	return "the books do not balance:\n  " + strings.Join(e.Problems, "\n  ")
}

// quantiles sorts values. The p-quantile of n values is the smallest that is not below a
// share p of them.
func quantiles[T time.Duration | int32](values []T) Quantiles[T] {
	n := len(values)
	if n == 0 {
		return Quantiles[T]{}
	}
	slices.Sort(values)
	at := func(percent int) T { return values[(n*percent+99)/100-1] }
	return Quantiles[T]{P50: at(50), P99: at(99), Max: values[n-1]}
}
