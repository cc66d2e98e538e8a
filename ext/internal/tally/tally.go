// Package tally counts operators' reports to an observer, for metrics of several systems.
package tally

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/predicates"
)

// Tally counts for the metrics of operators with one name. Its owner's lock guards it.
type Tally struct {
	ended     [len(endings)]int64
	inDoubt   int64
	unnamed   [counting.Ends]int64 // ends without a reason
	named     map[named]int64
	reasons   map[predicates.Reason]struct{}
	operators []operator       // running, or with running calls
	past      asyncop.Stats    // counters of ended operators
	failed    map[Failed]int64 // of ended operators, at most maxFailed
}

type named struct {
	end    counting.End
	reason predicates.Reason
}

var endings = [...]observe.EndKind{
	observe.Emitted, observe.Empty, observe.HandedOver, observe.Dropped, observe.Failed, observe.Abandoned, observe.Kept, observe.Discarded,
}

// maxReasons bounds the distinguished reasons: each is a time series.
const maxReasons = 100

var other = predicates.NewReason("other", false, false)

type operator struct {
	stats  func() asyncop.Stats
	groups func() []observe.Group
	done   <-chan struct{}
}

func (o operator) hasEnded() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// Attach adds an operator: see asyncop.WithObserver.
func (t *Tally) Attach(stats func() asyncop.Stats, done <-chan struct{}) {
	t.letGo()
	t.operators = append(t.operators, operator{stats: stats, done: done})
}

// AttachGroups adds the failures of the last attached operator.
func (t *Tally) AttachGroups(groups func() []observe.Group) {
	if n := len(t.operators); n > 0 {
		t.operators[n-1].groups = groups
	}
}

// Failed identifies similar failures.
type Failed struct{ Error, Reason string }

// Bounds of failures. Each group is a time series, and successive operators may share it.
const (
	maxFailed = 100
	topFailed = 10
)

func keepMost(all map[Failed]int64, n int) {
	top := slices.SortedFunc(maps.Keys(all), func(a, b Failed) int {
		return cmp.Or(cmp.Compare(all[b], all[a]), strings.Compare(a.Error, b.Error), strings.Compare(a.Reason, b.Reason))
	})
	for _, f := range top[min(len(top), n):] {
		delete(all, f)
	}
}

func (o operator) addGroups(to map[Failed]int64) {
	if o.groups == nil {
		return
	}
	for _, g := range o.groups() {
		f := Failed{strings.ToValidUTF8(g.Error, "\uFFFD"), strings.ToValidUTF8(g.Reason, "\uFFFD")}
		if !g.Rest {
			to[f] += g.Count
		}
	}
}

func (t *Tally) topGroups() map[Failed]int64 {
	all := maps.Clone(t.failed)
	if all == nil {
		all = map[Failed]int64{}
	}
	for _, o := range t.operators {
		o.addGroups(all)
	}
	keepMost(all, topFailed)
	return all
}

// letGo reduces ended operators to their counters. An operator with a call that ignores
// its context's end stays until the call returns: it still loads the service, and its
// late completion counts.
func (t *Tally) letGo() {
	live := t.operators[:0]
	for _, o := range t.operators {
		ended := o.hasEnded() // before reading statistics, which are then final
		s := o.stats()
		if ended && s.Running == 0 {
			addCounters(&t.past, s)
			if t.failed == nil {
				t.failed = map[Failed]int64{}
			}
			o.addGroups(t.failed)
			keepMost(t.failed, maxFailed)
		} else {
			live = append(live, o)
		}
	}
	clear(t.operators[len(live):])
	t.operators = live
}

// CountAttempt counts the end of an attempt.
func (t *Tally) CountAttempt(a *counting.AttemptEnd) {
	if a.Reason.IsZero() {
		t.unnamed[a.End]++
		return
	}
	if t.named == nil {
		t.named = map[named]int64{}
	}
	t.named[named{a.End, t.Bounded(a.Reason)}]++
}

// Bounded returns the reason, or other if there are too many.
func (t *Tally) Bounded(reason predicates.Reason) predicates.Reason {
	if _, known := t.reasons[reason]; known || reason.IsZero() {
		return reason
	}
	if len(t.reasons) >= maxReasons {
		return other
	}
	if t.reasons == nil {
		t.reasons = map[predicates.Reason]struct{}{}
	}
	t.reasons[reason] = struct{}{}
	return reason
}

// AttemptEndOf converts an outcome to the form that is counted.
func AttemptEndOf(o observe.Outcome) counting.AttemptEnd {
	return counting.AttemptEnd{
		End: counting.EndOf(o.Results, o.Err), Retry: o.Retry, Reason: o.Reason, Duration: o.Duration, Delay: o.Delay,
	}
}

// EndingOf returns an element's ending as a label: "emitted", "handed_over", ….
func EndingOf(how observe.EndKind) string { return strings.ReplaceAll(how.String(), " ", "_") }

// Element counts an element.
func (t *Tally) Element(e *counting.Element) {
	if int(e.How) < len(t.ended) {
		t.ended[e.How]++
	}
	if e.InDoubt {
		t.inDoubt++
	}
}

// ElementOf returns the counted part of an ending.
func ElementOf(e observe.Ending) counting.Element {
	return counting.Element{
		How: uint8(e.How), InDoubt: e.InDoubt, Queued: e.Queued, Total: e.Total,
		Accepted: e.Total > 0 || e.Attempts > 0 || e.How != observe.Discarded && e.How != observe.Kept,
	}
}

// Reading is the state of a Tally.
type Reading struct {
	Stats   asyncop.Stats // sums, but the greatest age
	Ended   map[string]int64
	InDoubt int64
	Ends    map[End]int64
	Failed  map[Failed]int64 // the ten groups with the most failures
}

// End is how attempts ended, and the classifier's reason.
type End struct{ End, Reason string }

// Read returns the counts so far. They include all endings, and all ends of attempts
// without a reason, from the beginning.
func (t *Tally) Read() Reading {
	t.letGo()
	r := Reading{Stats: t.past, Ended: map[string]int64{}, InDoubt: t.inDoubt, Ends: map[End]int64{}, Failed: t.topGroups()}
	for _, o := range t.operators {
		s := o.stats()
		addCounters(&r.Stats, s)
		if o.hasEnded() {
			r.Stats.Running += s.Running
		} else {
			addGauges(&r.Stats, s)
		}
	}
	for i, n := range t.ended {
		r.Ended[EndingOf(endings[i])] = n
	}
	for i, n := range t.unnamed {
		r.Ends[End{counting.End(i).String(), ""}] = n
	}
	for o, n := range t.named { // different reasons may have the same name
		r.Ends[End{o.end.String(), strings.ToValidUTF8(o.reason.Name(), "\uFFFD")}] += n
	}
	return r
}

// addCounters adds numbers that only grow.
func addCounters(to *asyncop.Stats, s asyncop.Stats) {
	to.Accepted += s.Accepted
	to.Completed += s.Completed
	to.Emitted += s.Emitted
	to.Attempts += s.Attempts
	to.RetriesOnResult += s.RetriesOnResult
	to.RetriesOnError += s.RetriesOnError
	to.Timeouts += s.Timeouts
	to.AttemptTimeouts += s.AttemptTimeouts
	to.Exhausted += s.Exhausted
	to.CutByEndOfInput += s.CutByEndOfInput
	to.OverBudget += s.OverBudget
	to.TooManyWaiting += s.TooManyWaiting
	to.Failures += s.Failures
	to.Failed += s.Failed
	to.Dropped += s.Dropped
	to.HandedOver += s.HandedOver
	to.Rescued += s.Rescued
	to.LateCompletions += s.LateCompletions
	to.Discarded += s.Discarded
	to.Undelivered += s.Undelivered
	to.Abandoned += s.Abandoned
}

// addGauges adds numbers that rise and fall.
func addGauges(to *asyncop.Stats, s asyncop.Stats) {
	to.Capacity += s.Capacity
	to.MaxCalls += s.MaxCalls
	to.InFlight += s.InFlight
	to.Running += s.Running
	to.Deciding += s.Deciding
	to.WaitingForRetry += s.WaitingForRetry
	to.WaitingForKey += s.WaitingForKey
	to.WaitingToLeave += s.WaitingToLeave
	to.OldestAge = max(to.OldestAge, s.OldestAge)
	if s.LastErrorAge > 0 && (to.LastErrorAge == 0 || s.LastErrorAge < to.LastErrorAge) {
		to.LastErrorAge = s.LastErrorAge
	}
}

// ---- Metrics that are read from statistics

// Metric is a metric, or several that differ in a label, read from statistics S.
type Metric[S any] struct {
	Name  string // words with dots: "elements.in_flight"
	Help  string
	Unit  string // the counted thing, such as "element"
	Gauge bool   // rises and falls
	Label string // or ""
	Of    []Value[S]
}

// Value is one value of a metric.
type Value[S any] struct {
	Label string
	Of    func(s *S) int64
}

// Metrics are read from an operator's statistics. OldestAge and LastErrorAge are read
// elsewhere, because they are times.
var Metrics = []Metric[asyncop.Stats]{
	{
		Name: "elements.accepted", Help: "Elements that took a slot.", Unit: "element",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Accepted }}},
	},
	{
		Name: "elements.timed_out", Help: "Elements whose total time ran out.", Unit: "element",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Timeouts }}},
	},
	{
		Name: "elements.rescued", Help: "Elements with results that a handler returned in place of a failure.", Unit: "element",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Rescued }}},
	},
	{
		Name: "results.emitted", Help: "Results sent downstream.", Unit: "result",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Emitted }}},
	},
	{
		Name: "attempts", Help: "Calls begun, retries included.", Unit: "attempt",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Attempts }}},
	},
	{
		Name: "attempts.timed_out", Help: "Attempts whose own time ran out.", Unit: "attempt",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.AttemptTimeouts }}},
	},
	{
		Name: "completions.late", Help: "Completions that came too late and changed nothing.", Unit: "completion",
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.LateCompletions }}},
	},
	{
		Name: "retries", Help: "Retries begun, by what they were begun for.", Unit: "attempt", Label: "cause",
		Of: []Value[asyncop.Stats]{
			{"result", func(s *asyncop.Stats) int64 { return s.RetriesOnResult }},
			{"error", func(s *asyncop.Stats) int64 { return s.RetriesOnError }},
		},
	},
	{
		Name: "retries.refused", Help: "Elements whose last outcome asked for a retry that they did not get, by who refused it.",
		Unit: "element", Label: "cause",
		Of: []Value[asyncop.Stats]{
			{"strategy", func(s *asyncop.Stats) int64 { return s.Exhausted - s.CutByEndOfInput - s.OverBudget - s.TooManyWaiting }},
			{"budget", func(s *asyncop.Stats) int64 { return s.OverBudget }},
			{"too_many_waiting", func(s *asyncop.Stats) int64 { return s.TooManyWaiting }},
			{"end_of_input", func(s *asyncop.Stats) int64 { return s.CutByEndOfInput }},
		},
	},
	{
		Name: "elements.in_flight", Help: "Elements with a slot.", Unit: "element", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.InFlight }}},
	},
	{
		Name: "elements.capacity", Help: "Slots: how many elements may be in flight.", Unit: "element", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Capacity }}},
	},
	{
		Name: "calls.limit", Help: "How many calls may run at once.", Unit: "call", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.MaxCalls }}},
	},
	{
		Name: "elements.waiting_for_retry", Help: "Elements in back-off, or whose retry waits for a permit.", Unit: "element", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.WaitingForRetry }}},
	},
	{
		Name: "elements.waiting_for_key", Help: "Elements that wait for another one of their key, or for its call.", Unit: "element", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.WaitingForKey }}},
	},
	{
		Name: "elements.waiting_to_leave", Help: "Complete elements that wait for their turn in the order of the results, or for downstream.",
		Unit: "element", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.WaitingToLeave }}},
	},
	{
		Name: "elements.deciding", Help: "Elements whose strategy is being asked off the loop.", Unit: "element", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Deciding }}},
	},
	{
		Name: "calls.running", Help: "Calls that run, including calls that ignore the end of their operator.", Unit: "call", Gauge: true,
		Of: []Value[asyncop.Stats]{{"", func(s *asyncop.Stats) int64 { return s.Running }}},
	},
}
