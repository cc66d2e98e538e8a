package strategiestest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirflow/weir/strategies"
)

// Run checks the strategies that newStrategy returns against the laws of
// [strategies.AsyncRetryStrategy], in a subtest for each law. newStrategy must return a
// new strategy with the same configuration each time. The laws are:
//
//   - CanRetry, once false, stays false for all later attempts.
//   - CanRetry and BackoffTime depend on the attempt alone, not on earlier calls, their
//     order or their goroutines. A strategy that shares state between elements on purpose
//     cannot pass.
//   - BackoffTime is never negative if CanRetry is true; otherwise it is not called.
//   - RetryPredicate always has the same of its two predicates. They do not panic for
//     empty results and any error.
//   - The jitter of a strategy with a method Jitter() strategies.Jitter is never
//     negative, and draws only from its argument random.
func Run[OUT any, S strategies.AsyncRetryStrategy[OUT]](t *testing.T, newStrategy func() S) {
	t.Helper()
	fresh := func() strategies.AsyncRetryStrategy[OUT] { return newStrategy() }
	for _, law := range laws[OUT]() {
		t.Run(law.name, func(t *testing.T) {
			if err := law.broken(fresh); err != nil {
				t.Error(err)
			}
		})
	}
}

// law is a law for strategies. broken returns an error if the strategies made by fresh
// break the law, so that tests of the suite can check broken strategies.
type law[OUT any] struct {
	name   string
	broken func(fresh func() strategies.AsyncRetryStrategy[OUT]) error
}

func laws[OUT any]() []law[OUT] {
	return []law[OUT]{
		{"can retry is monotone", canRetryIsMonotone[OUT]},
		{"delays are not negative", delaysAreNotNegative[OUT]},
		{"pure in any order", pureInAnyOrder[OUT]},
		{"pure under interleaving", pureUnderInterleaving[OUT]},
		{"pure under concurrency", pureUnderConcurrency[OUT]},
		{"predicate is stable", predicateIsStable[OUT]},
		{"jitter is sound", jitterIsSound[OUT]},
	}
}

func canRetryIsMonotone[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	s := fresh()
	refused := 0
	for _, n := range probes() {
		switch can := s.CanRetry(n); {
		case can && refused > 0:
			return fmt.Errorf("CanRetry(%d) is true after CanRetry(%d) was false", n, refused)
		case !can && refused == 0:
			refused = n
		}
	}
	return nil
}

func delaysAreNotNegative[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	s := fresh()
	for _, n := range probes() {
		if delay := ask(s, n).delay; delay < 0 {
			return fmt.Errorf("BackoffTime(%d) is negative: %v", n, delay)
		}
	}
	return nil
}

func pureInAnyOrder[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	attempts := probes()
	want := answers(fresh(), attempts)

	backwards := slices.Clone(attempts)
	slices.Reverse(backwards)
	orders := [][]int{attempts, backwards}
	for seed := range uint64(3) {
		orders = append(orders, shuffled(attempts, seed))
	}

	used := fresh() // called in all orders, the others in one
	for _, order := range orders {
		for _, s := range []strategies.AsyncRetryStrategy[OUT]{fresh(), used} {
			if err := differ(want, s, order); err != nil {
				return err
			}
		}
	}
	return nil
}

func pureUnderInterleaving[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	const last = 12
	want := answers(fresh(), probes())
	s := fresh()
	for start := range last { // each element starts one step later
		for n := start + 1; n >= 1; n-- {
			if err := differ(want, s, []int{n, n}); err != nil {
				return err
			}
		}
	}
	return nil
}

func pureUnderConcurrency[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	const goroutines = 8
	attempts := probes()
	want := answers(fresh(), attempts)
	s := fresh()
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() { errs[i] = differ(want, s, shuffled(attempts, uint64(i))) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func predicateIsStable[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	s := fresh()
	first, second := s.RetryPredicate(), s.RetryPredicate()
	if (first == nil) != (second == nil) {
		return fmt.Errorf("RetryPredicate is nil: first %t, then %t", first == nil, second == nil)
	}
	if first == nil {
		return nil
	}

	onResult, onError := first.ResultPredicate(), first.ExceptionPredicate()
	if was, is := onResult == nil, second.ResultPredicate() == nil; was != is {
		return fmt.Errorf("ResultPredicate is nil: first %t, then %t", was, is)
	}
	if was, is := onError == nil, second.ExceptionPredicate() == nil; was != is {
		return fmt.Errorf("ExceptionPredicate is nil: first %t, then %t", was, is)
	}

	if onResult != nil {
		for _, results := range [][]OUT{nil, {}} {
			if v := panicOf(func() { onResult(results) }); v != nil {
				return fmt.Errorf("ResultPredicate panics without results: %v", v)
			}
		}
	}
	if onError != nil {
		plain := errors.New("strategiestest: an error")
		for _, err := range []error{plain, fmt.Errorf("wrapped: %w", plain), errors.Join(plain, plain)} {
			if v := panicOf(func() { onError(err) }); v != nil {
				return fmt.Errorf("ExceptionPredicate panics over a %T: %v", err, v)
			}
		}
	}
	return nil
}

type jittered interface{ Jitter() strategies.Jitter }

func jitterIsSound[OUT any](fresh func() strategies.AsyncRetryStrategy[OUT]) error {
	s, ok := fresh().(jittered)
	if !ok {
		return nil
	}
	jitter := s.Jitter()
	if jitter == nil {
		return nil
	}

	const draws = 100
	bases := []time.Duration{0, 1, time.Millisecond, time.Hour, math.MaxInt64}
	sample := func() []time.Duration {
		random := rand.New(rand.NewPCG(1, 2))
		var ds []time.Duration
		for _, base := range bases {
			for range draws {
				ds = append(ds, jitter(base, random))
			}
		}
		return ds
	}

	first, second := sample(), sample()
	for i, d := range first {
		base := bases[i/draws]
		if d < 0 {
			return fmt.Errorf("jitter of %v is negative: %v", base, d)
		}
		if d != second[i] {
			return fmt.Errorf("jitter of %v differs with the same random source: %v, then %v", base, d, second[i])
		}
	}
	return nil
}

// probes returns the attempts to check, ascending: small numbers, and some for which
// careless arithmetic overflows. They end at a million to spare strategies that count up
// to the attempt.
func probes() []int {
	var ns []int
	for n := 1; n <= 130; n++ {
		ns = append(ns, n)
	}
	return append(ns, 1_000, 1<<16, 1_000_000)
}

type answer struct {
	can   bool
	delay time.Duration // 0 where can is false
}

func ask[OUT any](s strategies.AsyncRetryStrategy[OUT], n int) answer {
	if !s.CanRetry(n) {
		return answer{}
	}
	return answer{can: true, delay: s.BackoffTime(n)}
}

func answers[OUT any](s strategies.AsyncRetryStrategy[OUT], attempts []int) map[int]answer {
	m := make(map[int]answer, len(attempts))
	for _, n := range attempts {
		m[n] = ask(s, n)
	}
	return m
}

// differ returns an error if a result differs from want.
func differ[OUT any](want map[int]answer, s strategies.AsyncRetryStrategy[OUT], attempts []int) error {
	for i, n := range attempts {
		got := ask(s, n)
		when := "first"
		if i > 0 {
			when = fmt.Sprintf("after %d", attempts[i-1])
		}
		if got.can != want[n].can {
			return fmt.Errorf("CanRetry(%d) is %t, but %t when asked %s", n, want[n].can, got.can, when)
		}
		if got.delay != want[n].delay {
			return fmt.Errorf("BackoffTime(%d) is %v, but %v when asked %s", n, want[n].delay, got.delay, when)
		}
	}
	return nil
}

func shuffled(attempts []int, seed uint64) []int {
	c := slices.Clone(attempts)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
	return c
}

func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}
