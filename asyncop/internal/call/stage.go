package call

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/predicates"
)

// Reporter is what stages and requests are reported to.
type Reporter interface {
	ReportStage(stage predicates.Stage)
	ReportSent(deduplicated bool) (counted bool)
	ReportRefused(deduplicated bool)
}

// ReporterIn returns what is reported to under ctx, or nil.
func ReporterIn(ctx context.Context) Reporter {
	r, _ := ctx.Value(ctxkey.Stage{}).(Reporter)
	return r
}

// NotDeduplicated is a reporter for requests that their servers do not recognise when
// they are repeated.
type NotDeduplicated struct{ Reporter }

// ReportSent implements Reporter.
func (u NotDeduplicated) ReportSent(bool) (counted bool) { return u.Reporter.ReportSent(false) }

// ReportRefused implements Reporter.
func (u NotDeduplicated) ReportRefused(bool) { u.Reporter.ReportRefused(false) }

// Stages is a token as what stages are reported to. Package predicates finds it through
// the context of the call. What the calls of an operator report, the call around it
// learns, also from attempts that are over: they may have left a call behind.
type Stages Token

// ReportStage sets the bit of stage. Those of the earlier stages may be missing; the
// latest one counts. For the call around the operator that is one request of several.
func (t *Stages) ReportStage(stage predicates.Stage) {
	bit := [...]uint32{predicates.ClientDispatch: dispatching, predicates.NetworkTime: sent, predicates.ResponseReceived: answered}[stage]
	before, _ := t.update(func(s uint32) (uint32, bool) { return s | bit, s&bit != bit })
	if before&bit != bit && bit&(sent|answered) != 0 && t.Host.Around != nil {
		t.Host.Around.ReportSent(false)
	}
}

// update changes the state of an attempt that is not over, and returns it as it was
// before; to returns false if nothing is to be changed.
func (t *Stages) update(to func(s uint32) (uint32, bool)) (before uint32, updated bool) {
	for {
		s := t.state.Load()
		next, changes := to(s)
		if s&over != 0 || !changes {
			return s, false
		}
		if t.state.CompareAndSwap(s, next) {
			return s, true
		}
	}
}

// ReportSent counts a request that a client has sent, up to a number that no call
// reaches: there it stays. The server of a deduplicated request recognises it when it is
// repeated.
func (t *Stages) ReportSent(deduplicated bool) (counted bool) {
	one, all := counter(deduplicated)
	before, counted := t.update(func(s uint32) (uint32, bool) { return s + one, s&all != all })
	if counted = counted && (before+one)&all != all; t.Host.Around != nil {
		counted = t.Host.Around.ReportSent(deduplicated) || counted
	}
	return counted
}

// ReportRefused takes a request back that ReportSent has counted. An attempt that has not
// counted it does not take it back either.
func (t *Stages) ReportRefused(deduplicated bool) {
	one, all := counter(deduplicated)
	t.update(func(s uint32) (uint32, bool) { return s - one, s&all != all && s&all != 0 })
	if t.Host.Around != nil {
		t.Host.Around.ReportRefused(deduplicated)
	}
}

// Deduplicated reports whether the call may be repeated in flight: of its requests, one
// at least may have taken effect, and the servers of all that may have recognise them
// when they are repeated. What the function itself has reported as sent is unknown.
func (t *Stages) Deduplicated() bool {
	return deduplicatedIn(t.state.Load())
}

func deduplicatedIn(state uint32) bool {
	return state&deduplicatedRequests != 0 && state&(requests|sent) == 0
}

// counter returns the bits that count requests: one of them, and all.
func counter(deduplicated bool) (one, all uint32) {
	if deduplicated {
		return deduplicatedRequest, deduplicatedRequests
	}
	return request, requests
}

// reported returns the latest stage in a state, whether a client has reported a request
// that it has not taken back, and whether the servers of all such requests recognise
// them.
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
