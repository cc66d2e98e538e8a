package checkpoint

// Output is where a [Sink] writes: what is written between two barriers becomes visible as a whole, when the checkpoint
// of the second is complete. This is a two-phase commit with the coordinator's store as the record of the decision.
//
// The methods are called one at a time. Package checkpointtest checks one of your own against these rules.
type Output[T any] interface {
	// Restore undoes what was written and prepared after a state that Prepare has returned, in this process or in an
	// earlier one, and commits that state. With nil, for a fresh start, it undoes everything. It is called once, before
	// all others.
	Restore(state []byte) error
	// Write takes an element. It need not be durable, and must not be visible.
	Write(v T) error
	// Prepare makes durable what was written, so that Commit cannot fail for want of it, and returns a state that tells
	// Restore about it. Preparing again covers what was prepared before.
	Prepare() (state []byte, err error)
	// Commit makes visible what was prepared up to a state. A later state covers earlier ones.
	Commit(state []byte) error
	// Close is called once, last. What was prepared and not committed stays for Restore.
	Close() error
}
