// Package participant is for authors of sources, operators, sinks and flows that work with checkpoints. You do not need it to
// build a pipeline out of existing parts.
//
// # Participants
//
// A [Participant] is a part of a pipeline that has a state to keep. It registers with the [Host], which (*checkpoint.Coordinator).Host returns,
// before the coordinator is started, and begins its work when [Host.Started] is closed. For each [Barrier] that reaches it in the stream it
// reports its [State] of that moment, by [Barrier.Report], and passes the barrier on. When it fails it calls [Host.Fail].
//
//	state, resumes := host.Register("counter", p)
//	if resumes {
//		if err := p.restore(state); err != nil {
//			host.Refuse("counter", err)
//		}
//	}
//
// A part without a state does not register. It passes on control elements ([IsControl]), in order with the elements.
//
// # The end of the stream
//
// A source whose input ends calls [Host.RequestFinal] with [Drain]. Then the marker [EndOfInput] is announced, and the source sends it and only
// barriers after it:
//
//	source    a  b  c  END  7  8           9      END: the marker of EndOfInput
//	operator     a  b       7  8  c  END   9      7, 8: checkpoints, which overtake c and END; 9: the final one
//
// A participant reports the marker, without a state, when all before it has left, and passes it on. The final checkpoint is taken when all
// participants have reported the marker. If a participant does not report it, the draining never ends, and the coordinator's warnings name the
// participant. Elements that a flow sends behind the marker, because it holds them back until the final barrier comes, are finished before that
// barrier, within the timeout of that checkpoint.
package participant
