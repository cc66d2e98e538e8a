// Package participant is for authors of sources, operators, sinks and flows that work
// with checkpoints.
//
// # Participants
//
// A [Participant] is a part of a pipeline that has a state to keep. It registers with the
// [Host] before the coordinator is started, and begins its work when [Host.Started] is
// closed. When a [Barrier] reaches it, it reports its [State] with [Barrier.Report] and
// passes the barrier on. When it fails it calls [Host.Fail].
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
// checkpoint has a picture. The coordinator's warnings name participants that do not
// report the marker. A flow may send elements after the marker, until the final barrier;
// they are finished within the timeout of its checkpoint.
package participant
