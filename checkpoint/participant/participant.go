package participant

// Participant is a source, an operator or a sink that has a state in checkpoints.
//
// The coordinator never calls the methods concurrently, and calls them on a goroutine of
// its own. They should return soon: a slow method delays the checkpoint, not the
// elements.
type Participant interface {
	// Pending announces the barrier of a checkpoint that was triggered. A source puts it
	// into its stream as soon as it can. Others may make room for it. If a source gets a
	// barrier while it has another to send, the older barrier belongs to an aborted
	// checkpoint and is dropped. The marker of [EndOfInput] is not dropped: it comes
	// once, and only barriers follow it.
	Pending(b Barrier)
	// Completed reports that a checkpoint is stored. A source may then commit its
	// position, a sink publish its output. Not every checkpoint completes: a later
	// checkpoint covers earlier, aborted checkpoints.
	Completed(id uint64)
	// Aborted reports that a checkpoint will not complete, and why. Its barrier may still
	// arrive.
	Aborted(id uint64, reason error)
}
