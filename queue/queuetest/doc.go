// Package queuetest is the conformance suite of [queue.Queue]: any implementation or wrapper can run it.
//
//	func TestMyQueue(t *testing.T) {
//		queuetest.Run(t, queuetest.Ordered, NewMyQueue)
//	}
//
// [Run] checks the order rules (law Q1), the bounds (law Q2), the input order of All and the panics on misuse, by cases, exhaustively for short
// inputs, and by random schedules. [Replay] runs a schedule decoded from bytes, for fuzz tests. Both compare the queue with a model that states
// the laws in a few lines, after every operation.
//
// By convention the suite's control elements have names that begin with W, its records any other.
package queuetest
