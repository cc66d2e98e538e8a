// Package strategiestest tests retry strategies, policies and classifiers of your own.
//
// [Run] is the conformance suite for strategies: the laws that operators rely on.
//
//	func TestMyStrategy(t *testing.T) {
//		strategiestest.Run(t, func() *MyStrategy { return NewMyStrategy(3, time.Second) })
//	}
//
// Run it with -race: some laws are about calls from many goroutines.
//
// [Decide] shows what an operator does after an attempt:
//
//	d := strategiestest.Decide(policy, predicates.Attempt[Row]{Err: ErrBusy})
//	assert.True(t, d.Retry)
package strategiestest
