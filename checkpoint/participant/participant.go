package participant

// Participant is a source, an operator or a sink that has a state in checkpoints.
//
// The coordinator calls the methods one at a time, on its own goroutine. A slow method
// delays the checkpoint, not the elements.
type Participant interface {
	// Pending announces the barrier of a checkpoint. A source puts it into its stream as
	// soon as it can. Others may make room for it. A source drops a barrier of an aborted
	// checkpoint when it gets another, but never the marker of [EndOfInput].
	Pending(b Barrier)
	// Completed reports that a checkpoint is stored. A source may then commit its
	// position, a sink publish its output. A completed checkpoint covers earlier, aborted
	// checkpoints.
	Completed(id uint64)
	// Aborted reports that a checkpoint will not complete, and why. Its barrier may still
	// arrive.
	Aborted(id uint64, reason error)
}
