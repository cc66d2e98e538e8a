// Package drive is the loop of an operator. It knows the core by its calls only, and puts it between two ends: the channels
// of a go-streams flow, or the rings of asyncop.Results. Or the loop runs on the goroutine that ranges over the results:
// chained.go.
//
//   - A [Driver] is the loop: a step looks for signals, lets the core take a turn, accepts what is there, lets a barrier pass, emits
//     what downstream takes and hands over failures; and parks if there was nothing to do. How it ends is in finish.go.
//   - Its part in checkpoints is in checkpointing.go, and the bytes of a state are in state.go.
//   - A ring is a bounded queue between two goroutines.
//
// # Owner
//
// The goroutine of the loop owns the core and the fields of the driver that say so. If user code ends that goroutine, a
// successor takes over, so the loop keeps no state on its stack (law A6). Its methods that others call are In, Out, Transfer,
// Share, Results, Chained, Stop, Err, Done, Counts and BreakOff: they are safe for concurrent use.
package drive
