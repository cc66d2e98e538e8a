package asyncop

import (
	"context"

	"github.com/weirflow/weir/predicates"
)

// ReportStage reports how far the call that ctx belongs to has come: see [predicates.ReportStage], which it calls.
//
// An attempt that the attempt timeout cuts off counts as NetworkTime even if ClientDispatch was reported, since its call
// may still be on its way to send.
func ReportStage(ctx context.Context, stage predicates.Stage) { predicates.ReportStage(ctx, stage) }

// MarkSent reports that the request is going out: [ReportStage] with predicates.NetworkTime. It belongs before the first
// byte is sent, not after it.
func MarkSent(ctx context.Context) { predicates.ReportStage(ctx, predicates.NetworkTime) }

// stages is an attempt as what stages are reported to. Package predicates finds it through the attempt's context.
type stages[IN, OUT any] attempt[IN, OUT]

// ReportStage sets the bit of stage. Those of the earlier stages may be missing; the latest one counts.
func (a *stages[IN, OUT]) ReportStage(stage predicates.Stage) {
	bit := stageBit(stage)
	for {
		s := a.state.Load()
		if s&over != 0 || s&bit == bit || a.state.CompareAndSwap(s, s|bit) {
			return
		}
	}
}

// ReportSent counts a request that a client has sent, up to a number that nobody reaches: there it stays.
func (a *stages[IN, OUT]) ReportSent() (counted bool) {
	for {
		s := a.state.Load()
		if s&over != 0 || s&requests == requests {
			return false
		}
		if a.state.CompareAndSwap(s, s+request) {
			return (s+request)&requests != requests
		}
	}
}

// ReportRefused takes a request back that ReportSent has counted.
func (a *stages[IN, OUT]) ReportRefused() {
	for {
		s := a.state.Load()
		if s&over != 0 || s&requests == requests || s&requests == 0 || a.state.CompareAndSwap(s, s-request) {
			return
		}
	}
}

// stageBit returns the bit of an attempt's state that stands for stage; none for Unreported.
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

// stageIn returns the latest stage in an attempt's state.
func stageIn(state uint32) predicates.Stage {
	switch {
	case state&answered != 0:
		return predicates.ResponseReceived
	case state&sent != 0 || inDoubt(state):
		return predicates.NetworkTime
	case state&dispatching != 0:
		return predicates.ClientDispatch
	default:
		return predicates.Unreported
	}
}

// inDoubt tells whether a client has reported a request that it has not taken back.
func inDoubt(state uint32) bool { return state&requests != 0 }
