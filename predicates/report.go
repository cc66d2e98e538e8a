package predicates

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/internal/ctxkey"
)

// ReportStage reports how far the call that ctx belongs to has come, for reason-aware retries: see [Stage]. An operator's attempt is found
// through its context. Stages go forward only: a report of an earlier stage than the last is ignored. So is a report after the attempt is over,
// or with a context that does not belong to an attempt.
//
// A call without a report counts as [NetworkTime] from the start of the call on, which is the safe assumption. So a function that works for a while before it
// sends should first report ClientDispatch:
//
//	predicates.ReportStage(ctx, predicates.ClientDispatch)
//	conn, err := pool.Get(ctx)  // an error here cannot have had an effect
//	…
//	predicates.ReportStage(ctx, predicates.NetworkTime)
//	reply, err := conn.Do(ctx, request)
//
// A stage by itself is not a reason for another attempt. The classifier of a policy makes a reason from it, as the classifiers of packages
// netretry, httpretry and grpcretry do.
//
// An attempt that the operator's attempt timeout cuts off counts as NetworkTime even if
// ClientDispatch was reported: its call may still be on its way to send.
//
// Inside an operator that runs in a call of another operator, a report of NetworkTime or later is for the outer call what
// [ReportSent] is: one of its requests is going out.
//
// ReportStage reports for the whole call. The adapter of a client sees only its own requests, and uses [ReportSent]. ReportStage panics on an
// unknown stage. It is safe for concurrent use.
func ReportStage(ctx context.Context, stage Stage) {
	if stage > ResponseReceived {
		panic(fmt.Sprintf("predicates: ReportStage: no such stage: %d", uint8(stage)))
	}
	if r := reporterIn(ctx); r != nil {
		r.ReportStage(stage)
	}
}

// ReportSent is for the adapter of a client, such as httpretry.Transport: it reports that a request of the call is going out,
// before its first byte may have been written. From then on the call counts as in [NetworkTime], and [Attempt.InDoubt] is set.
// The refusal of a later request does not change that.
//
//	sent := predicates.ReportSent(ctx)
//	reply, err := send(request)
//	if refused(reply, err) {
//		sent.Refused()
//	}
//
// An adapter reports each request once, except requests without effect, such as a GET. For a request that was not sent, it returns a
// [*StageError] of ClientDispatch and does not report: it does not know the other requests of the call.
//
// ReportSent does not allocate. It is safe for concurrent use.
func ReportSent(ctx context.Context) SentRequest {
	r := reporterIn(ctx)
	if r == nil || !r.ReportSent(false) {
		return SentRequest{}
	}
	return SentRequest{r}
}

// SentRequest is a request that [ReportSent] has reported.
type SentRequest struct{ to stageReporter }

// Refused takes the report back: the request certainly did not take effect, because its server
// reported that, or because it was not sent after all. It must be called at most once.
func (s SentRequest) Refused() {
	if s.to != nil {
		s.to.ReportRefused(false)
	}
}

// WithDeduplicated returns a copy of ctx for a request that its server recognises when it is repeated, and then does not execute a
// second time: it carries an identity that is the same in all attempts, as the requests of package exactlyonce do. A request reported
// under the copy ([ReportSent], and ReportStage of NetworkTime) is a deduplicated request of the attempt.
//
// A call may be repeated in flight if all its requests that may have taken effect are deduplicated, and there is such a request: [Attempt.Idempotent]
// is then set, even for an element that says no. Another request that may have taken effect, or a NetworkTime that the function reports under
// its own context, makes the call unrepeatable again. A failure stays in doubt: a later sender of the element does not have such an identity.
//
// WithDeduplicated is for adapters of clients. Use it only for a server that is known to
// recognise the request: by a named endpoint, not by a header that is sent to any.
func WithDeduplicated(ctx context.Context) context.Context {
	r := reporterIn(ctx)
	if r == nil {
		return ctx
	}
	return context.WithValue(ctx, ctxkey.Stage{}, deduplicated{r})
}

// WithStageReporter returns a copy of ctx whose reports go to report instead of the attempt. [ReportSent] is a report of
// NetworkTime, and Refused none. With a nil report they are dropped: for a request that does not belong to the call, such as
// a request for a token. Tests of a client use it to see what it reports.
//
// report must be safe for concurrent use.
func WithStageReporter(ctx context.Context, report func(stage Stage)) context.Context {
	var r stageReporter = silent{}
	if report != nil {
		r = reporterFunc(report)
	}
	return context.WithValue(ctx, ctxkey.Stage{}, r)
}

// stageReporter is what reports go to. Package asyncop implements it.
type stageReporter interface {
	ReportStage(stage Stage)
	// ReportSent counts a request, unless the attempt is over.
	ReportSent(deduplicated bool) (counted bool)
	// ReportRefused takes a counted request back.
	ReportRefused(deduplicated bool)
}

func reporterIn(ctx context.Context) stageReporter {
	r, _ := ctx.Value(ctxkey.Stage{}).(stageReporter)
	return r
}

// deduplicated is a reporter whose requests are deduplicated.
type deduplicated struct{ stageReporter }

func (t deduplicated) ReportStage(stage Stage) {
	if stage == NetworkTime {
		t.ReportSent(true)
		return
	}
	t.stageReporter.ReportStage(stage)
}
func (t deduplicated) ReportSent(bool) bool { return t.stageReporter.ReportSent(true) }
func (t deduplicated) ReportRefused(bool)   { t.stageReporter.ReportRefused(true) }

type silent struct{}

func (silent) ReportStage(Stage)    {}
func (silent) ReportSent(bool) bool { return false }
func (silent) ReportRefused(bool)   {}

type reporterFunc func(stage Stage)

func (f reporterFunc) ReportStage(stage Stage) { f(stage) }
func (f reporterFunc) ReportSent(bool) bool    { f(NetworkTime); return false }
func (f reporterFunc) ReportRefused(bool)      {}
