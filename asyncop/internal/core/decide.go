package core

import (
	"context"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// judgement is what the policy says of an outcome.
type judgement = decision.Decision

// judge stands between the outcome of an attempt and the element: it shows the attempt to the policy, which says whether and when
// there is another. It holds no state of elements; that is in their slots.
type judge[OUT any] struct {
	looksClosely bool  // the policy looks at more of an attempt than its number and outcome
	isDeciding   bool  // about the outcome of the element of the call that runs, whose attempt has ended
	isAnswered   bool  // by a strategy that was asked elsewhere
	isHeard      bool  // features know of the outcome
	outage       bool  // the attempt met one
	outcome      error // that is being decided about

	// view is what the policy sees of the attempt that is being judged. There is one, used again and again; a strategy that
	// is asked elsewhere gets a copy.
	view    predicates.Attempt[OUT]
	tracked bool // the servers of the requests in doubt of view recognise them when they come again
}

func newJudge[OUT any](policy *decision.Steps[OUT]) judge[OUT] {
	return judge[OUT]{looksClosely: policy.NeedsElement()}
}

// decide shows an outcome to the policy. A strategy that may block is asked elsewhere.
func (g *Machine[IN, OUT]) decide(s *Slot[IN, OUT], a *call.Attempt[OUT], failed error, o outcome[OUT]) {
	if g.looksClosely {
		g.tick()
	} else {
		g.refresh()
	}
	g.outcome, g.isDeciding = failed, true
	g.calling(s, g.resumes.judge)
	d, ask := g.verdict(s, a, failed, o)
	g.called()
	g.doubt(s)
	if ask {
		g.ask(s, failed)
		return
	}
	g.decidedOn(s, failed, &d, nil)
}

// judgeBroke goes on after the policy has broken.
func (g *Machine[IN, OUT]) judgeBroke(s *Slot[IN, OUT], err error) {
	if !g.isAnswered {
		g.doubt(s)
		if !g.isHeard {
			g.hear(s, g.outcome, predicates.Reason{}, 0)
		}
	}
	g.decidedOn(s, g.outcome, &judgement{}, err)
}

// verdict shows an outcome to the policy, and asks a strategy that does not block. ask: the strategy is still to be asked.
func (g *Machine[IN, OUT]) verdict(s *Slot[IN, OUT], a *call.Attempt[OUT], failed error, o outcome[OUT]) (d judgement, ask bool) {
	v := &g.view
	v.Number, v.Err, v.Remaining = int(s.attempts), failed, g.remaining(s)
	v.Stage, v.InDoubt, v.Results, g.tracked = o.stage, o.inDoubt, o.results, o.tracked
	if g.looksClosely {
		v.Input = s.in
		v.Values = g.context(s, a)
		v.Reasons = g.slots.reasons.get(s.place).retried
		v.Elapsed = g.now - s.accepted
		v.Idempotent = g.Policy.IsIdempotent(v.Input)
	}
	found, err := g.Policy.Find(v)
	if g.heard != nil {
		g.hears(s, failed)
	}
	if !found {
		return judgement{Err: failed}, false
	}
	if d, ask = g.Policy.Judge(v, err, g.situation()); !ask || !g.Policy.AtOnce && g.ask != nil {
		return d, ask
	}
	ctx := g.Host.Life
	if g.looksClosely { // the values that a question has; it ends with the operator
		ctx = call.WithEnd(g.contextBeside(s, &a.Token), ctx)
	}
	action, err := g.Policy.Ask(ctx, v)
	return g.Policy.Conclude(v, action, err, g.situation()), false
}

// hears passes on the outcome that is judged. Attempts that met an outage do not count.
func (g *Machine[IN, OUT]) hears(s *Slot[IN, OUT], failed error) {
	v := &g.view
	pushback, _ := decision.PushbackOf(v)
	g.outage = g.hear(s, failed, v.Reason, pushback)
	g.isHeard = true
	v.Number = max(1, int(s.attempts)-g.forgiven(s))
}

// contextBeside returns the context of user code that runs for an element beside its calls.
func (g *Machine[IN, OUT]) contextBeside(s *Slot[IN, OUT], t *call.Token) context.Context {
	var own call.Cancellable = t
	if g.contextOf != nil {
		return g.contextOf(s, own)
	}
	return own
}

// doubt notes what the policy has found out about the outcome: the deadline of s may come next, or this is its end.
func (g *Machine[IN, OUT]) doubt(s *Slot[IN, OUT]) { s.doubts(g.view.Reason, g.view.Stage, g.tracked) }

func (g *Machine[IN, OUT]) situation() decision.Situation {
	now := decision.Situation{Finishing: g.noRetries, Waiting: int(g.counts.WaitingForRetry), Random: g.Random}
	if !g.outage {
		now.MayRetry = g.mayRetry
	}
	return now
}

// decidedOn does what the policy has decided about an outcome with err. If it panicked, s ends with that (law A6).
func (g *Machine[IN, OUT]) decidedOn(s *Slot[IN, OUT], err error, d *judgement, panicked error) {
	g.forgetView()
	if g.looksClosely && (!d.Reason.IsZero() || len(g.slots.reasons.at) > 0) {
		r := g.slots.reasons.get(s.place)
		r.last = d.Reason
		g.slots.reasons.set(s.place, r)
	}
	switch {
	case panicked != nil:
		g.fails(s, guard.Join(panicked, err), false)
		return
	case d.Verdict == decision.Final:
		g.settle(s, d.Err)
		return
	case d.Verdict == decision.Retried:
		if d.Err != nil {
			s.err = d.Err
		}
		if d.Before != nil {
			g.hold(s, d.Before)
		}
		s.attempt = nil
		s.retry = 0
		if err == nil {
			s.retry = ByResult
		}
		if d.Demanded > 0 {
			s.retry |= Demanded
		}
		g.backOff(s, d)
		return
	}
	s.verdict = d.Verdict
	for _, f := range g.decided {
		f(s, *d, false)
	}
	if d.Verdict == decision.Failed {
		g.fails(s, g.Hooks.DecisionFailed(d.Err), false)
		return
	}
	g.counts.Exhausted++
	switch d.Verdict {
	case decision.Finishing:
		g.counts.CutByEndOfInput++
	case decision.OverBudget:
		g.counts.OverBudget++
	case decision.TooManyWaiting:
		g.counts.TooManyWaiting++
	default: // Refused
	}
	if d.Err == nil && g.ExhaustedAsFailure {
		d.Err = g.Hooks.Exhausted(*d)
	}
	g.settle(s, d.Err)
}

// forgetView lets go of what the view refers to.
func (g *Machine[IN, OUT]) forgetView() {
	g.outcome, g.isDeciding, g.isAnswered, g.isHeard, g.outage = nil, false, false, false, false
	if g.looksClosely {
		g.view = predicates.Attempt[OUT]{}
		return
	}
	g.view.Results, g.view.Err = nil, nil
}

// LogRetries adds a feature: logs says whether something is to be written about the outcomes that had a reason for another attempt,
// and write gets them.
func LogRetries[IN, OUT any](g *Machine[IN, OUT], logs func() bool, write func(r Report[IN], d decision.Decision, again bool)) {
	g.decided = append(g.decided, func(s *Slot[IN, OUT], d judgement, again bool) {
		if logs() {
			write(g.report(s), d, again)
		}
	})
}
