package checkpoint

import "context"

// Output is the target of a [Sink]: the elements between two barriers become visible as a
// whole, when the checkpoint of the second is complete. This is a two-phase commit with
// the coordinator's store as the record of the decision.
//
// The methods are never called concurrently. Their contexts end when the run has failed
// or was closed; the contexts of Restore, FreshStart and Commit end when the coordinator
// is being closed and has waited for some seconds. A method that returns an error then is
// harmless: a restart calls Restore. Package checkpointtest checks an output of your own
// against these rules.
//
// An output may have a method Check(state []byte) error, which returns an error if
// Restore would fail, and a method CheckFresh() error, which does the same for
// FreshStart. They do not change the output: all outputs are checked before any is
// changed. A method Lock() (unlock func() error, err error) keeps others away, also
// before any output is changed: its error says that another sink or run has the output.
// unlock is called once after the last call but Close, which may come before or after it.
// An output that wraps another passes these calls on.
type Output[T any] interface {
	// Restore undoes all writes and prepares after a state that Prepare has returned, in
	// this process or in an earlier process, and commits that state. It is called once,
	// before all other methods, if the pipeline resumes from a checkpoint. Otherwise it
	// is not called: see [FreshStarter].
	Restore(ctx context.Context, state []byte) error
	// Write takes an element. It need not be durable, and must not be visible. A Commit
	// waits for a Write that runs: if the time of [WithTimeout] is over before Write
	// returns, the run has failed.
	Write(ctx context.Context, v T) error
	// Prepare makes the written elements durable, so that Commit has all it needs. It
	// returns a state that Restore can resume from. A later Prepare covers the earlier
	// ones. The next call may reuse the memory of the state.
	Prepare(ctx context.Context) (state []byte, err error)
	// Commit makes all elements prepared up to a state visible. A later state covers
	// earlier states. A Commit may be repeated with the same state: after an error,
	// whatever part of it was done, and even after a success. Each element becomes
	// visible once.
	//
	// The sink repeats a Commit that fails until [WithTimeout] is over, unless the error
	// matches [ErrFenced]. After that the run has failed, and a restart commits by
	// Restore.
	Commit(ctx context.Context, state []byte) error
	// Close is called once, last. Elements that were prepared and not committed stay for
	// Restore.
	Close() error
}

// FreshStarter is implemented by an [Output] that must act, or may refuse, when the run
// does not resume from a checkpoint. It may remove elements that an earlier run has
// prepared, or make sure that an earlier run has left none. An output that cannot undo
// what it has published, such as a topic, need not implement it.
type FreshStarter interface {
	// FreshStart is called once, before all other methods, in place of Restore. After it,
	// Commit must not publish elements of earlier runs. If elements are already published
	// that it can neither keep nor undo, it leaves the output unchanged and returns an
	// error. Start of the coordinator then fails with that error.
	FreshStart(ctx context.Context) error
}
