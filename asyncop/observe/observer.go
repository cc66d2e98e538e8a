package observe

import "context"

// Observer is called with the events of the elements of an operator: for metrics, traces, request ids. See asyncop.WithObserver.
//
//	Accepted ─▶ AttemptStarted ─▶ AttemptEnded ─▶ AttemptStarted ─▶ AttemptEnded ─▶ Ended
//
// Ended is called once for each element that the operator has received, however it ends (law O1). For an element that came too
// late to be accepted it is the only call.
//
// Calls are made in order and never overlap, on the operator's loop, so they must not block. AttemptEnded and Ended are called at the end of a
// step of the loop, some microseconds after the event. Where results go through a buffer (asyncop.WithBuffer), they are called when at least
// half of it is free. Completions of attempts that have ended are not reported, only counted ([Stats]).
//
// A panic in Accepted or AttemptStarted fails the attempt with a *asyncop.PanicError, as a panic in the function does; a
// panic in the other two is logged. Done waits until the next step (Via, To)
// has taken the results.
type Observer interface {
	// Accepted is called when element has taken its slot, before its first attempt. restored says that it comes from a
	// checkpoint: then it was accepted before the restart, too.
	//
	// The contexts of all attempts and of handlers of failures have the values of the context that it returns. The end of that context does not
	// affect the element. ctx has the values of the operator's context (asyncop.WithContext); return it, or nil, to add none.
	Accepted(ctx context.Context, element any, restored bool) context.Context

	// AttemptStarted is called before the call for an attempt, with the context that Accepted has returned. The contexts of the attempt, and of
	// the classifiers and strategies that judge it, have the values of the context that it returns. attempt counts from 1, and continues to
	// count after a restart.
	AttemptStarted(ctx context.Context, attempt int) context.Context

	// AttemptEnded is called when the decision about a retry is known, with the context that AttemptStarted has returned.
	AttemptEnded(ctx context.Context, outcome Outcome)

	// Ended is called when the element has ended, with the context that Accepted has returned. For an element that was not accepted, ctx has the
	// values of the operator's context.
	Ended(ctx context.Context, ending Ending)
}

// Gate is an [Observer] that may hold the input back: a window of requests, a limit on memory. The operator asks it before it
// takes an element, so back-pressure reaches the source. It is not asked for elements that are restored from a checkpoint,
// unless a [CheckpointedObserver] lacks a number for them. Its methods are called on the operator's loop and must not block; a
// panic in them ends the operator.
type Gate interface {
	// TryAdmit reports whether another element may come in. It may be asked more often than elements come.
	TryAdmit() bool

	// Notify calls f once, from any goroutine, when TryAdmit may return true again; at once if it would return true now.
	Notify(f func())
}

// CheckpointedObserver is an [Observer] with a state that goes into the checkpoints of its operator (asyncop.WithCheckpoints), such as the
// Tracker of exactlyonce/caller, which gives requests ids. It numbers the elements, and a restored element keeps its number. An operator has at
// most one CheckpointedObserver. Without checkpoints these methods are not called.
//
//	Restore ─▶ Restored … ─▶ Accepted … ─▶ Number …, Snapshot 7 ─▶ Accepted … ─▶ Completed 7
//
// After a restart the input behind a checkpoint has to come in the same order. If an operator upstream emits in the order of
// completion, the first barrier ends the run with an error.
//
// A panic in Restore makes the start of the coordinator fail, a panic in Number or Snapshot aborts the checkpoint, and a panic in
// Completed ends the run.
type CheckpointedObserver interface {
	Observer

	// Restore is called once, before all others, when the operator is made. state is the state that Snapshot returned for the checkpoint that
	// the operator resumes from, and numbers are the positive numbers of its elements, in the order of the input. At a fresh start both are nil.
	// An error makes the start of the coordinator fail.
	//
	// request asks for a checkpoint soon, and does not wait for it. If that checkpoint fails it is taken again. It may be called from any
	// goroutine: by a [Gate], for instance, that keeps elements back until a checkpoint is complete.
	Restore(state []byte, numbers []int64, request func()) error

	// Restored is called in place of Accepted for an element of a checkpoint, with the result of Number for it. Restored elements come before
	// others, in the order of the input.
	Restored(ctx context.Context, element any, number int64) context.Context

	// Number returns the number of an element, for the checkpoint that is being taken. ctx is the context that Accepted or Restored has
	// returned. With 0, the element counts as new after a restart: it waits for the gates again.
	Number(ctx context.Context) int64

	// Snapshot returns the state, which must not be changed afterwards. It is called when the barrier of a checkpoint comes,
	// after Number was called for each element in flight that has a slot. Checkpoints have ascending numbers, and not all
	// complete.
	Snapshot(checkpoint uint64) []byte

	// Completed is called when a checkpoint is stored. It covers those before it that did not complete. It is not called on the
	// operator's loop: it may be called at the same time as other methods, and after the last call of Ended.
	Completed(checkpoint uint64)
}
