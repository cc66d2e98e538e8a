// Package queuetest is the conformance suite of [queue.Queue], for implementations and
// wrappers.
//
//	func TestMyQueue(t *testing.T) {
//		queuetest.Run(t, queuetest.Ordered, NewMyQueue)
//	}
//
// [Run] checks the order (law Q1), the capacity (law Q2), the input order of All and the
// panics on misuse. [Replay] runs a schedule decoded from bytes, for fuzz tests. Both
// compare the queue with a simple model after every operation.
//
// In the suite, the names of control elements begin with W, the names of records do not.
package queuetest
