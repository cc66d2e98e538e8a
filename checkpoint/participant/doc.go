// Package participant is for authors of sources, operators, sinks and flows that work
// with checkpoints. You do not need it to build a pipeline out of existing parts.
//
// # Participants
//
// A [Participant] is a part of a pipeline that has a state to keep. It registers with the
// [Host], which (*checkpoint.Coordinator).Host returns, before the coordinator is
// started, and begins its work when [Host.Started] is closed. When a [Barrier] reaches it
// in the stream, it reports its [State] with [Barrier.Report] and passes the barrier on.
// When it fails it calls [Host.Fail].
//
//	state, resumes := host.Register("counter", p)
//	if resumes {
//		if err := p.restore(state); err != nil {
//			host.Refuse("counter", err)
//		}
//	}
//
// A part without a state does not register. It passes on control elements ([IsControl]),
// in order with the elements.
//
// # The end of the stream
//
// A source whose input ends calls [Host.RequestFinal] with [Drain]. Then the marker
// [EndOfInput] is announced, and the source sends it and only barriers after it: package
// checkpoint has a picture. A participant reports the marker, without a state, when all
// elements before it have left, and passes it on. If a participant does not report it,
// the draining never ends, and the coordinator's warnings name the participant. A flow
// may hold back elements until the final barrier and send them after the marker; they are
// finished before that barrier, within the timeout of its checkpoint.
package participant
