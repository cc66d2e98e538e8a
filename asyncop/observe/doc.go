// Package observe has what observers of an operator implement and get: metrics, traces, request ids, windows on the input. Package
// asyncop has the same names; a package that only observes imports this package, which needs only package predicates.
//
//   - An [Observer] is called with the events of elements. A [Gate] may hold the input back, and a [CheckpointedObserver] has a state.
//   - An [Outcome] is how an attempt has ended, an [Ending] how an element has.
//   - [Stats] are the counts of an operator.
package observe
