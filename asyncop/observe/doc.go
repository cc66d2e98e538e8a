// Package observe has the interfaces and data types of observers of an operator, for
// metrics, traces, request ids, or windows on the input. Observers need not import
// package asyncop.
//
//   - An [Observer] is called with the events of elements. A [Gate] may hold the input
//     back, and a [CheckpointedObserver] has a state.
//   - An [Outcome] describes the end of an attempt, an [Ending] the end of an element.
//   - [Stats] are the counts of an operator.
package observe
