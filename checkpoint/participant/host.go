package participant

// Host is the coordinator of a pipeline for participants, made by
// (*checkpoint.Coordinator).Host. It is safe for concurrent use.
type Host interface {
	// Register adds a participant under a name that stays the same from run to run. It
	// returns the participant's state in the restored checkpoint; resumes is false for a
	// fresh start.
	//
	// All participants register before the start. Start fails for a nil participant, for
	// a name that is taken or not valid, and for a name without a state in the
	// checkpoint. A participant that registers later ends the run with an error.
	Register(name string, p Participant) (state State, resumes bool)
	// Refuse makes the start fail because a participant cannot use its state. It panics
	// if reason is nil.
	Refuse(name string, reason error)
	// Started returns a channel that is closed when the participants may begin.
	Started() <-chan struct{}

	// Fail ends the run because a participant has failed. Sources end, and sinks stop
	// publishing. The first reason counts. It panics if reason is nil.
	Fail(name string, reason error)
	// RequestCheckpoint asks for a checkpoint soon, for a participant that cannot
	// continue before one is complete. It does not wait. A failed checkpoint counts as
	// failed and is repeated until one is complete or the run ends.
	RequestCheckpoint()
	// RequestFinal asks for a final checkpoint, [Drain] or [Suspend], and does not wait
	// for it. A source whose input has ended asks for a Drain, and keeps sending barriers
	// until the final barrier. It panics for another kind.
	RequestFinal(kind Kind)
	// Ended returns a channel that is closed when checkpointing has ended: after a final
	// checkpoint, a failure, or a close.
	Ended() <-chan struct{}
	// Err returns why checkpointing has ended: nil before the end and after a complete
	// final checkpoint.
	Err() error
}
