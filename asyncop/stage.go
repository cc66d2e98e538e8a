package asyncop

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/predicates"
)

// ReportStage tells how far the call that ctx belongs to has come, for reason-aware retries: see [predicates.Stage].
// Only the function knows it. Stages go forward only: a report of an earlier stage than the last one changes nothing,
// nor does one after the attempt is over, or with a context that is not an attempt's.
//
// What was not reported counts as [predicates.NetworkTime] from the start of the call on, the safe side. So the first
// report of a function that takes its time before it sends should be ClientDispatch:
//
//	asyncop.ReportStage(ctx, predicates.ClientDispatch)
//	conn, err := pool.Get(ctx)  // an error here cannot have had an effect
//	…
//	asyncop.MarkSent(ctx)
//	reply, err := conn.Do(ctx, request)
//
// A stage by itself is no reason for another attempt: it is the classifier of a reason-aware strategy that makes one of it,
// as those of packages netretry, httpretry and grpcretry do, or [predicates.ByStage].
//
// An attempt that the attempt timeout cuts off counts as NetworkTime even if ClientDispatch was reported, since its call
// may still be on its way to send. ReportStage panics if there is no such stage. Safe for concurrent use.
func ReportStage(ctx context.Context, stage predicates.Stage) {
	if stage > predicates.ResponseReceived {
		panic(fmt.Sprintf("asyncop: ReportStage: no such stage: %d", uint8(stage)))
	}
	if host, ok := ctx.Value(hostKey{}).(stageHost); ok {
		host.reportStage(stage)
	}
}

// MarkSent reports that the request is going out: [ReportStage] with predicates.NetworkTime. It belongs before the first
// byte is sent, not after it.
func MarkSent(ctx context.Context) { ReportStage(ctx, predicates.NetworkTime) }

// stageHost is what stages are reported to: an attempt, found through the context, so that wrappers need not know of it.
type stageHost interface {
	reportStage(stage predicates.Stage)
}

// reportStage implements stageHost. The bits of the earlier stages may be missing; the latest one counts.
func (a *attempt[IN, OUT]) reportStage(stage predicates.Stage) {
	bit := stageBit(stage)
	for {
		s := a.state.Load()
		if s&over != 0 || s&bit == bit || a.state.CompareAndSwap(s, s|bit) {
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
	case state&sent != 0:
		return predicates.NetworkTime
	case state&dispatching != 0:
		return predicates.ClientDispatch
	default:
		return predicates.Unreported
	}
}
