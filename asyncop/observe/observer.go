package observe

import "context"

// Observer is called with the events of an operator's elements. See asyncop.WithObserver.
//
//	Accepted ─▶ AttemptStarted ─▶ AttemptEnded ─▶ AttemptStarted ─▶ AttemptEnded ─▶ Ended
//
// Ended is called once for each element that the operator has received (law O1). It is
// the only call for an element that came too late to be accepted.
//
// Calls are made in order and one at a time, on the operator's loop, so they must not
// block. AttemptEnded and Ended come some microseconds after the event. Where results go
// through a buffer (asyncop.WithBuffer), they come when at least half of it is free. Late
// completions are only counted ([Stats]).
//
// A panic in Accepted or AttemptStarted fails the attempt with a *asyncop.PanicError,
// like a panic in the function. A panic in AttemptEnded or Ended is logged.
type Observer interface {
	// Accepted is called when element has taken its slot, before its first attempt.
	// restored is true if it comes from a checkpoint.
	//
	// The contexts of all attempts and of failure handlers have the values of the
	// returned context, but not its end. ctx has the values of the operator's context.
	// To add no values, return ctx or nil.
	Accepted(ctx context.Context, element any, restored bool) context.Context

	// AttemptStarted is called before the call of an attempt, with the context from
	// Accepted. The contexts of the attempt, and of its classifiers and strategies, have
	// the values of the returned context. attempt counts from 1, across restarts.
	AttemptStarted(ctx context.Context, attempt int) context.Context

	// AttemptEnded is called after the decision about a retry, with the context from
	// AttemptStarted.
	AttemptEnded(ctx context.Context, outcome Outcome)

	// Ended is called when the element has ended, with the context from Accepted or, if
	// it was not accepted, the values of the operator's context.
	Ended(ctx context.Context, ending Ending)
}

// Gate is an [Observer] that may hold the input back, such as a limit on memory. The
// operator asks it before it takes an element, so back-pressure reaches the source. It is
// not asked for restored elements, unless a [CheckpointedObserver] lacks their numbers.
// Its methods are called on the operator's loop and must not block. A panic ends the
// operator.
type Gate interface {
	// TryAdmit reports whether another element may come in. It may be called more often
	// than elements come.
	TryAdmit() bool

	// Notify calls f once, from any goroutine, when TryAdmit may return true again, or at
	// once if it would return true now.
	Notify(f func())
}

// CheckpointedObserver is an [Observer] with a state in the checkpoints of its operator
// (asyncop.WithCheckpoints), such as the Tracker of exactlyonce/caller, which gives
// requests ids. It numbers the elements, and a restored element keeps its number. An
// operator has at most one. Without checkpoints these methods are not called.
//
//	Restore ─▶ Restored … ─▶ Accepted … ─▶ Number …, Snapshot 7 ─▶ Accepted … ─▶ Completed 7
//
// After a restart the input behind a checkpoint must come in the same order. If an
// operator upstream emits in the order of completion, the first barrier ends the run with
// an error.
//
// A panic in Restore fails the start of the coordinator, a panic in Number or Snapshot
// aborts the checkpoint, and a panic in Completed ends the run.
type CheckpointedObserver interface {
	Observer

	// Restore is called once, before all other methods, by the operator's constructor.
	// state is from Snapshot, and numbers are the positive numbers of the restored
	// elements, in input order. At a fresh start both are nil. An error fails the start
	// of the coordinator.
	//
	// request asks for a checkpoint soon, and does not wait. If that checkpoint fails, it
	// is repeated. Any goroutine may call it, for example a [Gate] that waits for a
	// checkpoint.
	Restore(state []byte, numbers []int64, request func()) error

	// Restored is called in place of Accepted for an element of a checkpoint, with its
	// number. Restored elements come first, in input order.
	Restored(ctx context.Context, element any, number int64) context.Context

	// Number returns the number of an element for a checkpoint. ctx is from Accepted or
	// Restored. An element with number 0 waits for the gates again after a restart.
	Number(ctx context.Context) int64

	// Snapshot returns the state, which must not be changed afterwards. It is called
	// after Number for each element with a slot. Checkpoints have ascending numbers, and
	// may fail.
	Snapshot(checkpoint uint64) []byte

	// Completed is called when a checkpoint is stored, which includes earlier checkpoints
	// that failed. It is not called on the loop, so it may overlap other calls, and may
	// come after the last Ended.
	Completed(checkpoint uint64)
}
