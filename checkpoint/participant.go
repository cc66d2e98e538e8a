package checkpoint

// Participant is a source, an operator or a sink that has a state in checkpoints. It registers with the [Coordinator]
// before that is started, reports its state for every barrier that reaches it, and passes the barrier on.
//
// The methods are called one at a time, by the coordinator's goroutine, and should return soon: what takes long holds up
// the checkpoint, not the elements.
type Participant interface {
	// Pending announces the barrier of a checkpoint that was triggered. A source puts it into its stream as soon as it can;
	// others may make way for it. Of two barriers that a source has not sent yet, the older one is of an aborted checkpoint,
	// unless it is the marker of [EndOfInput], which comes once, and after which a source sends nothing but barriers.
	Pending(b Barrier)
	// Completed tells that a checkpoint is stored. A source may then commit its position, a sink publish its output. Not
	// every checkpoint completes: a later one covers those before it that did not.
	Completed(id uint64)
	// Aborted tells that a checkpoint will not complete, and why. Its barrier may still come.
	Aborted(id uint64, reason error)
}
