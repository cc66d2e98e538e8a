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
