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

// ReportSent counts a request that a client has sent, up to a number that no call reaches: there it stays.
func (t *Stages[E]) ReportSent() (counted bool) {
	for {
		s := t.state.Load()
		if s&over != 0 || s&requests == requests {
			return false
		}
		if t.state.CompareAndSwap(s, s+request) {
			return s+request&requests != requests
		}
	}
}

// ReportRefused takes a request back that ReportSent has counted.
func (t *Stages[E]) ReportRefused() {
	for {
		s := t.state.Load()
		if s&over != 0 || s&requests == requests || s&requests == 0 || t.state.CompareAndSwap(s, s-request) {
			return
		}
	}
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
func doubtIn(state uint32) bool { return state&requests != 0 }
