package strategies_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/strategies"
)

// A custom jitter: delays end on full seconds, for a service that accepts calls once a
// second, and spread over three of them.
func ExampleJitter() {
	onTheSecond := func(base time.Duration, random *rand.Rand) time.Duration {
		return base.Truncate(time.Second) + time.Duration(1+random.IntN(3))*time.Second
	}
	strategy := strategies.FixedDelay[string](3, 1500*time.Millisecond).WithJitter(onTheSecond)

	jitter := strategy.Jitter() // an operator applies it, with its own random source
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[jitter(strategy.BackoffTime(1), random)] = true
	}
	fmt.Println(len(seen), seen[2*time.Second], seen[3*time.Second], seen[4*time.Second])
	// Output: 3 true true true
}
