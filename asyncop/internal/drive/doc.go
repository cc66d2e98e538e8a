// Package drive is the loop of an operator. It moves items from a port into the core, and results from the core into the port. The port is
// the channels of a go-streams flow, the rings of asyncop.Results, or the caller's goroutine (ResultsOf).
//
//   - driver.go: a [Driver] is the loop. A step looks for signals, lets the core take a turn, accepts what is there, lets a barrier pass
//     and emits what downstream takes. If there was nothing to do, the loop parks.
//   - items.go: items in, results out, and the port that is the channels of a flow. ports.go: what a port is, and those with rings;
//     results.go runs the goroutines at their other ends. chained.go: the port that is the caller's goroutine.
//   - finish.go: how the operator ends.
//   - checkpointing.go: its part in checkpoints. state.go: the bytes of a state.
//   - observing.go: observers, messages, gates, statistics.
//   - ring.go: a bounded queue between two goroutines.
//
// # Owner
//
// The goroutine of the loop owns the core and the fields of the driver that say so. If user code ends that goroutine, a
// successor takes over, so the loop keeps no state on its stack (law A6). The methods that others call are In, Out, Transfer,
// Results, Chained, Stop, Err, Done and Counts. They are safe for concurrent use.
package drive
