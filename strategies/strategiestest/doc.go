// Package strategiestest holds the conformance suite for retry strategies: the
// laws that operators rely on, for weir's own strategies and for yours.
//
//	func TestMyStrategy(t *testing.T) {
//		strategiestest.Run(t, func() *MyStrategy { return NewMyStrategy(3, time.Second) })
//	}
//
// Run it with -race: some laws are about calls from many goroutines.
package strategiestest
