package strategies_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// What an operator does with a strategy's jitter: it comes after the strategy,
// and from the operator's random source.
func ExampleJittered() {
	var strategy strategies.AsyncRetryStrategy[string] = strategies.FixedDelay[string](3, time.Second).
		RetryIfException(predicates.HasException).
		WithJitter(strategies.EqualJitter)

	var jitter strategies.Jitter
	if j, ok := strategy.(strategies.Jittered); ok {
		jitter = j.Jitter()
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		base := strategy.BackoffTime(1)
		d := jitter.Apply(base, random)
		fmt.Println(base, d >= base/2 && d <= base)
	}
	// Output:
	// 1s true
	// 1s true
	// 1s true
}

// A jitter of your own: delays end on full seconds, for a service that opens
// its doors once a second, and spread over three of them.
func ExampleJitter() {
	onTheSecond := func(base time.Duration, random *rand.Rand) time.Duration {
		return base.Truncate(time.Second) + time.Duration(1+random.IntN(3))*time.Second
	}
	strategy := strategies.FixedDelay[string](3, 1500*time.Millisecond).WithJitter(onTheSecond)

	random := rand.New(rand.NewPCG(1, 2))
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[strategy.Jitter().Apply(strategy.BackoffTime(1), random)] = true
	}
	fmt.Println(len(seen), seen[2*time.Second], seen[3*time.Second], seen[4*time.Second])
	// Output: 3 true true true
}
