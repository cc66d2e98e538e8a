package strategiestest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// steps returns delays from a table and panics beyond it, where the suite must not call
// it.
type steps []time.Duration

func (s steps) CanRetry(n int) bool             { return n <= len(s) }
func (s steps) BackoffTime(n int) time.Duration { return s[n-1] }

func (s steps) RetryPredicate() predicates.AsyncRetryPredicate[int] {
	return predicates.RetryIf(predicates.EmptyResult[int], predicates.HasException)
}

func TestRunAcceptsSoundStrategies(t *testing.T) {
	t.Run("a user's", func(t *testing.T) {
		Run(t, func() steps { return steps{time.Second, 0, time.Minute} })
	})
	t.Run("an interface", func(t *testing.T) {
		Run(t, func() strategies.AsyncRetryStrategy[int] { return steps{} })
	})
}

// broken is a sound strategy, except that its fields replace methods.
type broken struct {
	canRetry  func(n int) bool
	backoff   func(n int) time.Duration
	predicate func() predicates.AsyncRetryPredicate[int]
	jitter    strategies.Jitter
}

func (b *broken) CanRetry(n int) bool {
	if b.canRetry != nil {
		return b.canRetry(n)
	}
	return n <= 200
}

func (b *broken) BackoffTime(n int) time.Duration {
	if b.backoff != nil {
		return b.backoff(n)
	}
	return time.Second
}

func (b *broken) RetryPredicate() predicates.AsyncRetryPredicate[int] {
	if b.predicate != nil {
		return b.predicate()
	}
	return nil
}

func (b *broken) Jitter() strategies.Jitter { return b.jitter }

// flink keeps the previous delay, like Flink's strategy.
func flink() strategies.AsyncRetryStrategy[int] {
	delay := time.Second
	return &broken{backoff: func(n int) time.Duration {
		if n <= 1 {
			delay = time.Second
		} else {
			delay = min(2*delay, time.Hour)
		}
		return delay
	}}
}

// counting wrongly counts the calls for all elements as the attempts of one element.
func counting() strategies.AsyncRetryStrategy[int] {
	calls := 0
	return &broken{canRetry: func(int) bool {
		calls++
		return calls <= 3
	}}
}

func withPredicate(p func() predicates.AsyncRetryPredicate[int]) func() strategies.AsyncRetryStrategy[int] {
	return func() strategies.AsyncRetryStrategy[int] { return &broken{predicate: p} }
}

func withJitter(j strategies.Jitter) func() strategies.AsyncRetryStrategy[int] {
	return func() strategies.AsyncRetryStrategy[int] { return &broken{jitter: j} }
}

func TestRunRejectsBrokenStrategies(t *testing.T) {
	instances := 0
	tests := []struct {
		name  string
		law   string
		fresh func() strategies.AsyncRetryStrategy[int]
		want  string
	}{
		{
			"changes its mind", "can retry is monotone",
			func() strategies.AsyncRetryStrategy[int] {
				return &broken{canRetry: func(n int) bool { return n != 3 }}
			},
			"CanRetry(4) is true after CanRetry(3) was false",
		},
		{
			"overflows", "delays are not negative",
			func() strategies.AsyncRetryStrategy[int] {
				return &broken{backoff: func(n int) time.Duration { return 1 << (n % 64) }}
			},
			"BackoffTime(63) is negative: -2562047h47m16.854775808s",
		},
		{"shared delay, order", "pure in any order", flink, "but "},
		{"shared delay, interleaved", "pure under interleaving", flink, "BackoffTime(2) is 2s, but 4s when asked after 2"},
		{"shared count, order", "pure in any order", counting, "CanRetry(1000000) is false, but true when asked first"},
		{"shared count, interleaved", "pure under interleaving", counting, "CanRetry(2) is true, but false when asked after 2"},
		{
			"differs from goroutine to goroutine", "pure under concurrency",
			func() strategies.AsyncRetryStrategy[int] {
				instances++
				delay := time.Duration(instances)
				return &broken{backoff: func(int) time.Duration { return delay }}
			},
			"BackoffTime(",
		},
		{
			"predicate comes and goes", "predicate is stable",
			func() strategies.AsyncRetryStrategy[int] {
				calls := 0
				return &broken{predicate: func() predicates.AsyncRetryPredicate[int] {
					calls++
					if calls == 1 {
						return nil
					}
					return predicates.RetryIf(predicates.EmptyResult[int], nil)
				}}
			},
			"RetryPredicate is nil: first true, then false",
		},
		{
			"result predicate takes a result for granted", "predicate is stable",
			withPredicate(func() predicates.AsyncRetryPredicate[int] {
				return predicates.RetryIf(func(results []int) bool { return results[0] == 0 }, nil)
			}),
			"ResultPredicate panics without results: ",
		},
		{
			"exception predicate takes a type for granted", "predicate is stable",
			withPredicate(func() predicates.AsyncRetryPredicate[int] {
				return predicates.RetryIf[int](nil, func(err error) bool {
					return err.(interface{ Timeout() bool }).Timeout()
				})
			}),
			"ExceptionPredicate panics over a *errors.errorString: ",
		},
		{
			"negative jitter", "jitter is sound",
			withJitter(func(base time.Duration, _ *rand.Rand) time.Duration { return base - 1 }),
			"jitter of 0s is negative: -1ns",
		},
		{
			"jitter from elsewhere", "jitter is sound",
			withJitter(func(base time.Duration, _ *rand.Rand) time.Duration { return rand.N(base + time.Second - base/2) }),
			"differs with the same random source",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var checked bool
			for _, law := range laws[int]() {
				if law.name == tt.law {
					checked = true
					err := law.broken(tt.fresh)
					require.Error(t, err)
					assert.Contains(t, err.Error(), tt.want)
				}
			}
			assert.True(t, checked, "no law %q", tt.law)
		})
	}
}
