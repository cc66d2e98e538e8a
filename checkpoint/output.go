package checkpoint

import "context"

// Output is the target of a [Sink]: the elements between two barriers become visible as a
// whole, when the checkpoint of the second barrier is complete. This is a two-phase
// commit, decided in the coordinator's store.
//
// The methods are never called concurrently. Their contexts end when the run has failed
// or was closed; the contexts of Restore, FreshStart and Commit end some seconds after
// Close of the coordinator was called. An error is then harmless: a restart calls
// Restore.
//
// An output may have a method Check(state []byte) error, which returns an error if
// Restore would fail, and CheckFresh() error for FreshStart. They do not change the
// output: all outputs are checked before any is changed. Before that, a method Lock()
// (unlock func() error, err error) reserves the output for this sink, or returns an error
// if another sink or run has it. unlock is called once after the last call but Close,
// which may come before or after it. An output that wraps another passes these calls on.
type Output[T any] interface {
	// Restore undoes all writes and prepares after a state that Prepare has returned,
	// perhaps in an earlier process, and commits that state. It is called once, before
	// all other methods, if the pipeline resumes from a checkpoint. Otherwise see
	// [FreshStarter].
	Restore(ctx context.Context, state []byte) error
	// Write takes an element, which need not be durable and must not be visible. A Commit
	// waits for a running Write: if Write does not return within [WithTimeout], the run
	// has failed.
	Write(ctx context.Context, v T) error
	// Prepare makes the written elements durable, so that Commit has all it needs. It
	// returns a state that Restore can resume from. A later Prepare covers earlier ones.
	// The next call may reuse the memory of the state.
	Prepare(ctx context.Context) (state []byte, err error)
	// Commit makes all elements prepared up to a state visible. A later state covers
	// earlier states. A Commit may be repeated with the same state: after an error, even
	// if it took effect in part, and after a success. Each element becomes visible once.
	//
	// The sink repeats a failing Commit until [WithTimeout] has passed, unless the error
	// matches [ErrFenced]. Then the run has failed, and a restart commits by Restore.
	Commit(ctx context.Context, state []byte) error
	// Close is called once, last. Elements that were prepared and not committed stay for
	// Restore.
	Close() error
}

// FreshStarter is implemented by an [Output] that must act, or may refuse, when the run
// does not resume from a checkpoint: it removes elements prepared by an earlier run, or
// checks that such elements do not exist. An output that cannot undo published elements,
// such as a topic, need not implement it.
type FreshStarter interface {
	// FreshStart is called once, before all other methods, in place of Restore. After it,
	// Commit must not publish elements of earlier runs. If it can neither keep nor undo
	// published elements, it leaves the output unchanged and returns an error, which
	// fails Start.
	FreshStart(ctx context.Context) error
}
