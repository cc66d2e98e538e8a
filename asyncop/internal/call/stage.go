package call

import "github.com/weirflow/weir/predicates"

// Stages is a token as what stages are reported to. Package predicates finds it through the context of the call.
type Stages[E any] Token[E]

// ReportStage sets the bit of stage. Those of the earlier stages may be missing; the latest one counts.
func (t *Stages[E]) ReportStage(stage predicates.Stage) {
	bit := stageBit(stage)
	for {
		s := t.state.Load()
		if s&over != 0 || s&bit == bit || t.state.CompareAndSwap(s, s|bit) {
			return
		}
	}
}

// ReportSent counts a request that a client has sent, up to a number that no call reaches: there it stays. A tracked one is
// recognised by its server when it comes again.
func (t *Stages[E]) ReportSent(tracked bool) (counted bool) {
	one, all := counter(tracked)
	for {
		s := t.state.Load()
		if s&over != 0 || s&all == all {
			return false
		}
		if t.state.CompareAndSwap(s, s+one) {
			return (s+one)&all != all
		}
	}
}

// ReportRefused takes a request back that ReportSent has counted.
func (t *Stages[E]) ReportRefused(tracked bool) {
	one, all := counter(tracked)
	for {
		s := t.state.Load()
		if s&over != 0 || s&all == all || s&all == 0 || t.state.CompareAndSwap(s, s-one) {
			return
		}
	}
}

// Tracked reports whether the call may be repeated in flight: of its requests, one at least may have taken effect, and the
// servers of all that may have recognise them when they come again. What the function itself has reported as sent is unknown.
func (t *Stages[E]) Tracked() bool {
	return trackedIn(t.state.Load())
}

func trackedIn(state uint32) bool {
	return state&trackedRequests != 0 && state&(requests|sent) == 0
}

// counter returns the bits that count requests: one of them, and all.
func counter(tracked bool) (one, all uint32) {
	if tracked {
		return trackedRequest, trackedRequests
	}
	return request, requests
}

// stageBit returns the bit of the state that stands for stage; none for Unreported.
func stageBit(stage predicates.Stage) uint32 {
	switch stage {
	case predicates.ClientDispatch:
		return dispatching
	case predicates.NetworkTime:
		return sent
	case predicates.ResponseReceived:
		return answered
	default:
		return 0
	}
}

// stageIn returns the latest stage in a state.
func stageIn(state uint32) predicates.Stage {
	switch {
	case state&answered != 0:
		return predicates.ResponseReceived
	case state&sent != 0 || doubtIn(state):
		return predicates.NetworkTime
	case state&dispatching != 0:
		return predicates.ClientDispatch
	default:
		return predicates.Unreported
	}
}

// doubtIn reports whether a client has reported a request that it has not taken back.
func doubtIn(state uint32) bool { return state&(requests|trackedRequests) != 0 }
