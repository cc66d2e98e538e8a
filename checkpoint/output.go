package checkpoint

import "context"

// Output is where a [Sink] writes: what is written between two barriers becomes visible as a whole, when the checkpoint
// of the second is complete. This is a two-phase commit with the coordinator's store as the record of the decision.
//
// The methods are called one at a time. Their contexts end when the run has failed or was closed, and those of Restore,
// FreshStart and Commit when the coordinator is being closed and has waited for some seconds. A method that returns an error
// then does no harm: a restart calls Restore. An output may have a method Check(state []byte) error, which changes nothing and says
// that Restore would fail: all outputs are asked before one is changed. Package checkpointtest checks an output of your own against these rules.
type Output[T any] interface {
	// Restore undoes what was written and prepared after a state that Prepare has returned, in this process or in an
	// earlier one, and commits that state. It is called once, before all others, if the pipeline resumes from a checkpoint.
	// Without one it is not called: see [FreshStarter].
	Restore(ctx context.Context, state []byte) error
	// Write takes an element. It need not be durable, and must not be visible.
	Write(ctx context.Context, v T) error
	// Prepare makes durable what was written, so that Commit has all it needs. It returns a state that Restore can go on
	// from. A later Prepare covers what was prepared before. The next call may reuse the memory of the state.
	Prepare(ctx context.Context) (state []byte, err error)
	// Commit makes visible what was prepared up to a state. A later state covers earlier ones. A Commit may be repeated with
	// the same state: after an error, whatever part of it was done, and also after a success. What it makes visible is
	// visible once.
	//
	// The sink repeats a Commit that fails until [WithTimeout] is over, unless the error matches [ErrFenced]. After that the
	// run has failed, and a restart commits by Restore.
	Commit(ctx context.Context, state []byte) error
	// Close is called once, last. What was prepared and not committed stays for Restore.
	Close() error
}

// FreshStarter is implemented by an [Output] that has something to do, or to refuse, when there is no checkpoint to resume
// from. It may remove what an earlier run has prepared, or make sure that nothing of an earlier run is there. An output
// that cannot undo what it has published, such as a topic, need not implement it.
type FreshStarter interface {
	// FreshStart is called once, before all others, in place of Restore. After it, nothing of what was written by earlier runs
	// is published by Commit. If something is published that it can neither keep nor undo, it changes nothing and returns an
	// error. Start of the coordinator then fails with that error.
	FreshStart(ctx context.Context) error
}
