// Package drive is the loop of an operator. It moves items from a port into the core, and
// results from the core into the port.
//
// DESIGN.md lists the laws, such as C1, in section 3.
//
//   - driver.go: a [Driver] is the loop. Each step looks for signals, runs a step of the
//     core, accepts elements, handles a barrier and emits results. If there was no work,
//     the loop parks.
//   - config.go: its settings. life.go: its states.
//   - items.go: items in, results out, and the port for the channels of a flow. ports.go:
//     the interface of a port, and the ports with rings. results.go: the goroutines at
//     the other ends of the rings. chained.go: the port for the caller's goroutine.
//   - transfer.go: hands the results to the next step of a pipeline.
//   - finish.go: the end of the operator.
//   - checkpointing.go: its part in checkpoints. state.go: the encoding of a state.
//     budget.go: the end of a run whose budget is spent.
//   - observing.go: observers, messages, gates, statistics.
//   - ring.go: a bounded queue between two goroutines.
//
// # Owner
//
// The goroutine of the loop owns the core and the marked fields of the driver. In, Wire,
// Out, NewTransfer, Results, AwaitSlots, Chained, Stop, EndPurged, CutByUpstream,
// DownstreamFailed, Err, Done, InputClosed, Outliving and Counts are safe for concurrent
// use.
package drive
