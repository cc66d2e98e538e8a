package call

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/predicates"
)

// Reporter receives reports of stages and requests.
type Reporter interface {
	ReportStage(stage predicates.Stage)
	ReportSent(deduplicated bool) (counted bool)
	ReportRefused(deduplicated bool)
}

// ReporterIn returns the reporter in ctx, or nil.
func ReporterIn(ctx context.Context) Reporter {
	r, _ := ctx.Value(ctxkey.Stage{}).(Reporter)
	return r
}

// NotDeduplicated passes on all requests as not deduplicated.
type NotDeduplicated struct{ Reporter }

// ReportSent implements Reporter.
func (u NotDeduplicated) ReportSent(bool) (counted bool) { return u.Reporter.ReportSent(false) }

// ReportRefused implements Reporter.
func (u NotDeduplicated) ReportRefused(bool) { u.Reporter.ReportRefused(false) }

// Stages is the [Reporter] of a token. It passes reports on to the outer call, even after
// the end of the attempt.
type Stages Token

var _ Reporter = (*Stages)(nil)

// ReportStage sets the bit of stage. The latest stage counts.
//
// The outer call does not get the stage, because it may make several calls. (An exception
// is core.endAttempt, which reports a stage to it.) The outer call counts a request when
// this call first reaches NetworkTime or a later stage. This request is never taken back.
//
// The end of the attempt freezes its bits. If neither of these stages was reported before
// the end, each later report of one counts a request.
func (t *Stages) ReportStage(stage predicates.Stage) {
	bit := [...]uint32{predicates.ClientDispatch: dispatching, predicates.NetworkTime: sent, predicates.ResponseReceived: answered}[stage]
	before, _ := t.update(func(s uint32) (uint32, bool) { return s | bit, s&bit != bit })
	wasSent := before&(sent|answered) != 0
	isSent := bit&(sent|answered) != 0
	if isSent && !wasSent && t.Host.OuterCall != nil {
		t.Host.OuterCall.ReportSent(false)
	}
}

// update sets the state to the result of change. It leaves the state as it is if change
// returns false, or if the attempt has ended. It returns the previous state, and reports
// whether it has set the state.
func (t *Stages) update(change func(s uint32) (uint32, bool)) (before uint32, updated bool) {
	for {
		s := t.state.Load()
		changed, hasChanged := change(s)
		if s&contextEnded != 0 || !hasChanged {
			return s, false
		}
		if t.state.CompareAndSwap(s, changed) {
			return s, true
		}
	}
}

// ReportSent counts a request, and reports whether it can be taken back. The server of a
// deduplicated request recognises repeats.
//
// The counter has room for 254 requests, more than calls make. The next request fills the
// counter. A full counter stays full, because it no longer has the number of requests.
func (t *Stages) ReportSent(deduplicated bool) (counted bool) {
	one, full := counter(deduplicated)
	before, updated := t.update(func(s uint32) (uint32, bool) { return s + one, s&full != full })
	counted = updated && (before+one)&full != full
	if t.Host.OuterCall != nil {
		counted = t.Host.OuterCall.ReportSent(deduplicated) || counted
	}
	return counted
}

// ReportRefused takes back a counted request. A full counter does not change.
func (t *Stages) ReportRefused(deduplicated bool) {
	one, full := counter(deduplicated)
	t.update(func(s uint32) (uint32, bool) { return s - one, s&full != full && s&full != 0 })
	if t.Host.OuterCall != nil {
		t.Host.OuterCall.ReportRefused(deduplicated)
	}
}

// Deduplicated reports whether there are requests that may have taken effect, and their
// servers recognise all of them. If the function itself has reported NetworkTime, the
// server is unknown, and Deduplicated returns false.
func (t *Stages) Deduplicated() bool {
	return deduplicatedIn(t.state.Load())
}

func deduplicatedIn(state uint32) bool {
	return state&deduplicatedRequests != 0 && state&(requests|sent) == 0
}

// counter returns the value of one request, and the counter's bits, which are all set
// when it is full.
func counter(deduplicated bool) (one, full uint32) {
	if deduplicated {
		return deduplicatedRequest, deduplicatedRequests
	}
	return request, requests
}

// reported returns the reports in a state: see the fields of [Released].
func reported(state uint32) (stage predicates.Stage, inDoubt, deduplicated bool) {
	inDoubt = state&(requests|deduplicatedRequests) != 0
	switch {
	case state&answered != 0:
		stage = predicates.ResponseReceived
	case state&sent != 0 || inDoubt:
		stage = predicates.NetworkTime
	case state&dispatching != 0:
		stage = predicates.ClientDispatch
	}
	return stage, inDoubt, deduplicatedIn(state)
}
