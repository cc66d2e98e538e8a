package predicates

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/internal/ctxkey"
)

// ReportStage reports how far the call of ctx has come, for reason-aware retries: see
// [Stage]. A report of an earlier stage than the last is ignored. So is a report after
// the attempt has ended, or with a context that does not belong to an attempt.
//
// A call without a report counts as [NetworkTime] from its start on. So a function that
// works for a while before it sends should first report ClientDispatch:
//
//	predicates.ReportStage(ctx, predicates.ClientDispatch)
//	conn, err := pool.Get(ctx)  // an error here cannot have had an effect
//	…
//	predicates.ReportStage(ctx, predicates.NetworkTime)
//	reply, err := conn.Do(ctx, request)
//
// Classifiers use the stage to find the reason for another attempt.
//
// An attempt that the operator's attempt timeout cuts off counts as NetworkTime even if
// ClientDispatch was reported: its call may be about to send.
//
// If an operator runs in a call of another operator, a report of NetworkTime or later in
// the inner operator counts as a [ReportSent] of the outer call.
//
// ReportStage is for the whole call. The adapter of a client sees only its own requests,
// and uses [ReportSent]. ReportStage panics for an unknown stage. It is safe for
// concurrent use.
func ReportStage(ctx context.Context, stage Stage) {
	if stage > ResponseReceived {
		panic(fmt.Sprintf("predicates: ReportStage: no such stage: %d", uint8(stage)))
	}
	if r := reporterIn(ctx); r != nil {
		r.ReportStage(stage)
	}
}

// ReportSent is for the adapter of a client, such as httpretry.Transport. It reports that
// a request is about to be sent, before its first byte may be written. From then on the
// call counts as in [NetworkTime], and [Attempt.InDoubt] is set, even if a later request
// is refused.
//
//	sent := predicates.ReportSent(ctx)
//	reply, err := send(request)
//	if refused(reply, err) {
//		sent.Refused()
//	}
//
// An adapter reports each request once, except requests without effect, such as a GET.
// For an unsent request, it returns a [*StageError] of ClientDispatch instead.
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

// Refused withdraws the report: the request certainly did not take effect, because its
// server reported that, or it was not sent after all. Call it at most once.
func (s SentRequest) Refused() {
	if s.to != nil {
		s.to.ReportRefused(false)
	}
}

// WithDeduplicated returns a copy of ctx for a deduplicated request: its server
// recognises a repetition, by an identity that is the same in all attempts, and does not
// execute it again, as in package exactlyonce. A request reported under the copy
// ([ReportSent], and ReportStage of NetworkTime) counts as deduplicated.
//
// If all requests of a call that may have taken effect are deduplicated, it may be
// repeated: [Attempt.Idempotent] is then set, even if the element returns false. Another
// request that may have taken effect, or a NetworkTime reported under another context,
// prevents the repetition. The failure of such a call is still in doubt, because a later
// sender of the element lacks the identity, until the servers have answered with refusals
// that they keep, which the clients of package exactlyonce detect.
//
// WithDeduplicated is for adapters of clients. Use it only if you know that the server
// recognises the request: for a named endpoint, not for any server to which a header is
// sent.
func WithDeduplicated(ctx context.Context) context.Context {
	r := reporterIn(ctx)
	if r == nil {
		return ctx
	}
	e, ok := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
	if ok && ctx.Value(ctxkey.Numbered{}) == nil {
		e.NoteOthers()
	}
	return context.WithValue(ctx, ctxkey.Stage{}, deduplicated{r})
}

// WithStageReporter returns a copy of ctx whose reports go to report instead of the
// attempt, for tests of a client. [ReportSent] calls report with NetworkTime; Refused
// does not call it. If report is nil, the reports are dropped, for a request that does
// not belong to the call, such as a request for a token.
//
// report must be safe for concurrent use.
func WithStageReporter(ctx context.Context, report func(stage Stage)) context.Context {
	var r stageReporter = silent{}
	if report != nil {
		r = reporterFunc(report)
	}
	return context.WithValue(ctx, ctxkey.Stage{}, r)
}

// stageReporter receives reports. Package asyncop implements it.
type stageReporter interface {
	ReportStage(stage Stage)
	// ReportSent counts a request, unless the attempt has ended.
	ReportSent(deduplicated bool) (counted bool)
	ReportRefused(deduplicated bool)
}

func reporterIn(ctx context.Context) stageReporter {
	r, _ := ctx.Value(ctxkey.Stage{}).(stageReporter)
	return r
}

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
