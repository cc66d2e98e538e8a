// Package strategiestest tests your own retry strategies, policies and classifiers.
//
// [Run] is the conformance suite for strategies: the laws that operators rely on.
//
//	func TestMyStrategy(t *testing.T) {
//		strategiestest.Run(t, func() *MyStrategy { return NewMyStrategy(3, time.Second) })
//	}
//
// Run it with -race.
//
// [Decide] shows what an operator does after an attempt:
//
//	d := strategiestest.Decide(policy, predicates.Attempt[Row]{Err: ErrBusy})
//	assert.True(t, d.Retry)
package strategiestest
