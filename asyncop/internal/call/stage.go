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

// NotDeduplicated is a reporter for requests whose servers do not recognise repetitions.
type NotDeduplicated struct{ Reporter }

// ReportSent implements Reporter.
func (u NotDeduplicated) ReportSent(bool) (counted bool) { return u.Reporter.ReportSent(false) }

// ReportRefused implements Reporter.
func (u NotDeduplicated) ReportRefused(bool) { u.Reporter.ReportRefused(false) }

// Stages is the [Reporter] of a token. Package predicates finds it in the context of the
// call. It passes reports on to the call around the operator, also for attempts that have
// ended, because their calls may still run.
type Stages Token

// ReportStage sets the bit of stage. The bits of earlier stages may be missing: the
// latest one counts. For a call around the operator it is one request of several.
func (t *Stages) ReportStage(stage predicates.Stage) {
	bit := [...]uint32{predicates.ClientDispatch: dispatching, predicates.NetworkTime: sent, predicates.ResponseReceived: answered}[stage]
	before, _ := t.update(func(s uint32) (uint32, bool) { return s | bit, s&bit != bit })
	if before&bit != bit && bit&(sent|answered) != 0 && t.Host.Around != nil {
		t.Host.Around.ReportSent(false)
	}
}

// update changes the state of an attempt that has not ended, and returns the state before
// the change. The function to returns false if it does not change the state.
func (t *Stages) update(to func(s uint32) (uint32, bool)) (before uint32, updated bool) {
	for {
		s := t.state.Load()
		next, changes := to(s)
		if s&ended != 0 || !changes {
			return s, false
		}
		if t.state.CompareAndSwap(s, next) {
			return s, true
		}
	}
}

// ReportSent counts a request that a client has sent. The count stays at its maximum,
// which no call reaches. The server of a deduplicated request recognises it when it is
// repeated.
func (t *Stages) ReportSent(deduplicated bool) (counted bool) {
	one, all := counter(deduplicated)
	before, counted := t.update(func(s uint32) (uint32, bool) { return s + one, s&all != all })
	counted = counted && (before+one)&all != all
	if t.Host.Around != nil {
		counted = t.Host.Around.ReportSent(deduplicated) || counted
	}
	return counted
}

// ReportRefused takes back a request that ReportSent has counted. An attempt that did not
// count the request ignores it.
func (t *Stages) ReportRefused(deduplicated bool) {
	one, all := counter(deduplicated)
	t.update(func(s uint32) (uint32, bool) { return s - one, s&all != all && s&all != 0 })
	if t.Host.Around != nil {
		t.Host.Around.ReportRefused(deduplicated)
	}
}

// Deduplicated reports whether the servers recognise all requests of the call that may
// have taken effect, and there is at least one. A stage that the function itself has
// reported as sent makes it false, because its server is unknown.
func (t *Stages) Deduplicated() bool {
	return deduplicatedIn(t.state.Load())
}

func deduplicatedIn(state uint32) bool {
	return state&deduplicatedRequests != 0 && state&(requests|sent) == 0
}

// counter returns the bits that count requests: one request, and the mask of the counter.
func counter(deduplicated bool) (one, all uint32) {
	if deduplicated {
		return deduplicatedRequest, deduplicatedRequests
	}
	return request, requests
}

// reported returns the latest stage in a state, whether a client has reported a request
// and not taken it back, and whether the servers recognise all such requests.
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
