package modeltest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// Config has the options of the operator.
type Config struct {
	Unordered              bool
	Capacity, MaxCalls     int // MaxCalls 0 means Capacity
	Timeout                time.Duration
	AttemptTimeout         time.Duration // 0 for no limit, like Timeout
	Retries                int           // -1 means that outcomes are not judged
	Again                  func(o Outcome) bool
	Backoff                func(attempts int) time.Duration
	EarlyTimeout           bool
	DrainRetries           bool
	ExhaustedAsFailure     bool
	OnFailure              Policy
	FirstOffer, LastOffer  time.Duration // to a sink that has refused
	Handler                bool          // of timeouts
	HandlerLimit           time.Duration // 0 for no limit
	Blocking, HeedsContext bool          // calls hold their permits until they return or, with HeedsContext, until their contexts end
	KeyOrder               bool
	MaxWaiting             int // of a key; 0 for no limit
	BatchSize              int // 0 without batches; otherwise calls block
	BatchWait              time.Duration
	ComeAgain              bool // cut off elements are redelivered, as with checkpoints
	ReserveDivisor         int  // a restored element has 1/ReserveDivisor of Timeout for an attempt; 0 means no reserve
	ReadAhead              int  // after its end the operator reads at most ReadAhead+1 elements; 0 means all
}

// Policy is the treatment of elements that fail.
type Policy string

// Policies.
const (
	FailRun  Policy = "fail"
	Drop     Policy = "drop"
	HandOver Policy = "hand over"
)

// Input is an element before it has a slot.
type Input struct {
	ID      int
	Name    string
	Key     int
	Control bool     // a watermark
	AtOnce  *Outcome // of the first call, which completes before it returns
	Twice   bool     // the first call completes twice
}

// Outcome is the outcome of a call.
type Outcome struct {
	Results []string
	Err     string
}

// Event is an action of the operator.
type Event struct {
	Kind   EventKind
	Name   string // of the result, or of the element
	Detail string
}

// EventKind is the kind of an event.
type EventKind byte

// Events.
const (
	Started    EventKind = '(' // a call
	Emitted    EventKind = '>' // a result, or a control element
	Dropped    EventKind = '!'
	HandedOver EventKind = '^' // to the sink; the detail is the failure
	Refused    EventKind = '?' // by the sink; the detail is the wait before the next offer
)

// Never is the time of an unarmed timer.
const Never = time.Duration(-1)

// Phase is the state of an element.
type Phase uint8

// Phases.
const (
	Control Phase = iota // a watermark: no element overtakes it
	Fresh                // waits for its first attempt
	Behind               // waits for its key
	Running
	Backoff // waits for its retry
	Ready   // its retry waits for a permit, or for a call of its key
	Handling
	Failing // waits for the sink
	Done    // waits to leave
)

// Element is an element in a slot.
type Element struct {
	Input

	phase       Phase
	accepted    time.Duration
	at          time.Duration // of its timer, or Never
	order       int           // of arming, or of becoming ready, failing or done
	attempts    int
	first, last time.Duration // of attempts
	byResult    bool          // its retry is due to a result
	results     []string
	lastErr     string // of its last failed attempt
	err         string // its failure
	call        *Call
	extra       time.Duration // added to the timeout
	wait        time.Duration // before the last offer to the sink

	inLine bool // it blocks the later elements of its key
	early  bool // it is done or failing before it is the first of its key
}

// Call is a call of the function or the timeout handler.
type Call struct {
	Element      *Element
	Attempt      int // 0 for the timeout handler
	At, Deadline time.Duration

	Answered       bool // by the user
	Ended, Expired bool // by the operator; by a timeout
	returned       bool // its permit is free
}

// Key returns the name of the call: "a#2" is the second attempt of a.
func (c *Call) Key() string { return fmt.Sprintf("%s#%d", c.Element.Name, c.Attempt) }

// RunsOn reports whether a blocking call has outlived its attempt.
func (c *Call) RunsOn() bool { return c.Attempt > 0 && !c.returned && (c.Ended || c.Answered) }

// Model is an operator as the laws define it.
type Model struct {
	Config

	Now    time.Duration
	Source []Input // sent, not accepted
	Queue  []*Element
	Calls  []*Call
	Events []Event
	Shared Shared

	OutOpen  bool // downstream takes elements
	Places   int  // room for elements while downstream blocks
	SinkOpen bool // the sink takes each failure at once

	HoldNext bool
	Held     *Call // blocks the loop

	Ended   bool
	EndedAt time.Duration
	Err     string
	Told    string // error that upstream received

	NoRetries  bool         // law A5
	NoneFollow bool         // the last element has come: batches do not wait
	Batches    [][]*Element // running

	reading    bool
	running    int // permits in use
	clicks     int // counts changes of phase
	mail       []func()
	offered    *Element
	rest       []*Element    // failures that the sink gets after the end
	readySince time.Duration // when retries began to wait for a permit
	ahead      int           // elements of Source that were read for a barrier
	discards   int           // upper limit of discarded elements, with control elements
	stats      observe.Stats
}

// New returns the model of a new operator.
func New(c Config) *Model {
	c.MaxCalls = cmp.Or(c.MaxCalls, c.Capacity)
	return &Model{Config: c, reading: true, OutOpen: true, SinkOpen: true}
}

// Did returns the names of the events of a kind, each with its detail.
func (m *Model) Did(kind EventKind) (names []string) {
	for _, e := range m.Events {
		if e.Kind == kind {
			names = append(names, e.Name+e.Detail)
		}
	}
	return names
}

func (m *Model) note(kind EventKind, name, detail string) {
	m.Events = append(m.Events, Event{kind, name, detail})
}

func (m *Model) enter(e *Element, p Phase) {
	m.clicks++
	e.phase, e.order = p, m.clicks
}

// Settle does the work that is due now: completions before the timers in Advance (law
// T1), and starts before acceptance.
func (m *Model) Settle() {
	for m.Held == nil && !m.Ended {
		if !(m.startOne() || m.acceptOne() || m.emitOne() || m.offerOne()) {
			if m.reading || len(m.Queue) > 0 {
				break
			}
			m.End("")
		}
	}
	for ; m.Ended && m.SinkOpen && len(m.rest) > 0; m.rest = m.rest[1:] {
		m.handedOver(m.rest[0])
	}
}

// Step does the work of a step of the loop before results are emitted.
func (m *Model) Step() {
	m.Fire()
	for m.startOne() || m.offerOne() {
	}
}

// IsDone reports whether the model has ended and the sink has every failure.
func (m *Model) IsDone() bool { return m.Ended && len(m.rest) == 0 }

// ---- Accept

// Send sends an element.
func (m *Model) Send(in Input) { m.Source = append(m.Source, in) }

// CloseInput closes the input.
func (m *Model) CloseInput() { m.Send(Input{}) }

// HasSlot reports whether a slot is free (law Q2) and no key is crowded (law K1).
func (m *Model) HasSlot() bool { return len(m.Queue) < m.Capacity && !m.crowded() }

func (m *Model) acceptOne() bool {
	if !m.reading || len(m.Source) == 0 || !m.HasSlot() {
		return false
	}
	in := m.Source[0]
	m.Source = m.Source[1:]
	m.ahead = max(0, m.ahead-1)
	if in == (Input{}) {
		m.endInput()
		return true
	}
	m.Put(in)
	return true
}

// Put accepts an element, if HasSlot.
func (m *Model) Put(in Input) *Element {
	e := &Element{Input: in, accepted: m.Now, at: Never}
	m.Queue = append(m.Queue, e)
	if in.Control {
		return e
	}
	m.stats.Accepted++
	e.phase, e.inLine = Fresh, m.KeyOrder
	if !m.mayCall(e) {
		e.phase = Behind
	}
	return e
}

func (m *Model) endInput() {
	m.reading, m.NoneFollow = false, true
	if !m.DrainRetries {
		m.EndRetries()
	}
}

// EndRetries ends retries: elements in back-off get one last attempt at once (law A5).
func (m *Model) EndRetries() {
	m.NoRetries = true
	for _, e := range m.Queue {
		if e.phase == Backoff {
			m.ready(e)
		}
	}
}

// Stop ends the input.
func (m *Model) Stop() {
	if m.reading && !m.Ended {
		m.Told = "stopped"
		m.endInput()
	}
}

// ---- Start

// startable returns the elements that wait for a permit: retries before first attempts,
// oldest first (law B3).
func (m *Model) startable() []*Element {
	var retries, fresh []*Element
	for _, e := range m.Queue {
		switch {
		case e.phase == Ready && m.mayCall(e):
			retries = append(retries, e)
		case e.phase == Fresh:
			fresh = append(fresh, e)
		}
	}
	slices.SortFunc(retries, func(a, b *Element) int { return cmp.Or(cmp.Compare(a.accepted, b.accepted), a.order-b.order) })
	return append(retries, fresh...)
}

func (m *Model) startOne() bool {
	if m.BatchSize > 0 {
		return m.goes(true) && m.startBatch()
	}
	waiting := m.startable()
	if len(waiting) == 0 || !m.takePermit() {
		return false
	}
	m.start(waiting[0])
	return true
}

func (m *Model) takePermit() bool {
	if m.running == m.MaxCalls || !m.Shared.free(m) {
		return false
	}
	m.running++
	m.Shared.next = m.Now + m.Shared.Interval
	return true
}

func (m *Model) start(e *Element) {
	if e.phase == Ready {
		m.stats.WaitingForRetry--
		switch {
		case e.attempts == 0: // it was restored
		case e.byResult:
			m.stats.RetriesOnResult++
		default:
			m.stats.RetriesOnError++
		}
	}
	m.stats.Attempts++
	e.attempts++
	if e.attempts == 1 {
		e.first = m.Now
	}
	e.last = m.Now
	deadline := m.deadline(e)
	m.enter(e, Running)
	if end := m.Now + m.AttemptTimeout; m.AttemptTimeout > 0 && (deadline == Never || end < deadline) {
		deadline, e.at = end, end
	}
	call := m.newCall(e, e.attempts, deadline)
	m.note(Started, call.Key(), "")
	if m.HoldNext {
		m.HoldNext, m.Held = false, call
	} else if e.AtOnce != nil && e.attempts == 1 {
		m.Complete(call, *e.AtOnce)
		if e.Twice {
			m.stats.LateCompletions++
		}
	}
}

func (m *Model) newCall(e *Element, attempt int, deadline time.Duration) *Call {
	e.call = &Call{Element: e, Attempt: attempt, At: m.Now, Deadline: deadline}
	m.Calls = append(m.Calls, e.call)
	return e.call
}

// Release ends the call in Held.
func (m *Model) Release() {
	inPlace := m.Held.Answered // law Q1: it completed before it returned
	m.Held = nil
	for _, mail := range m.mail { // law T1: before the timers
		mail()
	}
	m.mail = nil
	for inPlace && m.Held == nil && !slices.ContainsFunc(m.startable(), m.isDue) && m.startOne() {
	}
	m.Fire()
}

// ---- End of an attempt

// Complete completes a call for the user. The first completion of the current attempt
// counts (law A2).
func (m *Model) Complete(c *Call, o Outcome) {
	late := c.Answered || c.Ended
	c.Answered = true
	switch {
	case late:
		m.stats.LateCompletions++
	case m.Held != nil:
		m.mail = append(m.mail, func() { m.complete(c, o) })
	default:
		m.complete(c, o)
	}
}

// Return returns a blocking call, which frees its permit and its key.
func (m *Model) Return(c *Call) {
	c.returned = true
	m.running--
	if m.KeyOrder && !m.Ended {
		m.mayStart(c.Element.Key)
	}
}

func (m *Model) complete(c *Call, o Outcome) {
	e := c.Element
	e.at = Never
	if c.Attempt > 0 {
		if !m.Blocking {
			m.running--
		}
		m.outcome(e, o)
		return
	}
	if o.Err == "panic" { // the outcome of a handler is final (law A3)
		o.Err = e.timeoutError("panic")
	}
	if o.Err == "" {
		m.stats.Rescued++
	}
	m.finish(e, o)
}

// outcome retries the element if the law allows it (laws A4, A5).
func (m *Model) outcome(e *Element, o Outcome) {
	if o.Err != "" {
		e.lastErr = o.Err
	}
	if m.Retries < 0 || !m.Again(o) {
		m.finish(e, o)
		return
	}
	if m.NoRetries || e.attempts > m.Retries {
		m.stats.Exhausted++
		if e.attempts <= m.Retries {
			m.stats.CutByEndOfInput++
		}
		if o.Err == "" && m.ExhaustedAsFailure {
			o.Err = "exhausted"
		}
		m.finish(e, o)
		return
	}
	e.byResult = o.Err == ""
	due := m.Now + m.Backoff(e.attempts)
	past := due >= m.deadline(e)
	m.enter(e, Backoff)
	m.stats.WaitingForRetry++
	switch {
	case past && m.EarlyTimeout:
		m.timeOut(e)
	case past: // it waits for its deadline
		e.at = m.deadline(e)
	case due == m.Now:
		m.ready(e)
	default:
		e.at = due
	}
}

func (m *Model) ready(e *Element) {
	if !slices.ContainsFunc(m.Queue, func(e *Element) bool { return e.phase == Ready }) {
		m.readySince = m.Now
	}
	e.at = Never
	m.enter(e, Ready)
}

func (m *Model) expire(c *Call, byTimeout bool) {
	c.Ended, c.Expired = true, byTimeout
	blocks := m.Blocking || c.Attempt == 0
	if blocks && m.HeedsContext { // it returns at once
		c.Answered = true
		m.stats.LateCompletions++
	}
	if c.Attempt > 0 && (!blocks || m.HeedsContext) {
		c.returned = true
		m.running--
	}
}

// ---- End of an element

func (m *Model) finish(e *Element, o Outcome) {
	if o.Err != "" {
		m.fail(e, o.Err)
		return
	}
	e.results = o.Results
	m.enter(e, Done)
	if m.isFirst(e) {
		m.leaveLine(e)
	}
}

func (m *Model) fail(e *Element, err string) {
	m.stats.Failures++
	e.err = err
	switch m.OnFailure {
	case HandOver:
		m.enter(e, Failing)
		m.isFirst(e)
	case Drop:
		m.stats.Dropped++
		m.note(Dropped, e.Name, "")
		m.enter(e, Done)
		m.leaveLine(e)
	case FailRun:
		m.stats.Failed++
		m.enter(e, Done)
		m.End(fmt.Sprintf("element %d attempts=%d elapsed=%v: %s", e.ID, e.attempts, m.Now-e.accepted, err))
	}
}

// head returns the index of the element that leaves next, or -1: the oldest if it is done
// or, unordered, the first that was done before the first control element (law Q1).
func (m *Model) head() int {
	head := -1
	for i, e := range m.Queue {
		if e.phase == Control && i == 0 {
			return 0
		}
		if e.phase == Control || i > 0 && !m.Unordered {
			return head
		}
		if e.phase == Done && !e.early && (head < 0 || e.order < m.Queue[head].order) {
			head = i
		}
	}
	return head
}

// emitOne emits one result. After the last one the element leaves.
func (m *Model) emitOne() bool {
	i := m.head()
	if i < 0 {
		return false
	}
	e := m.Queue[i]
	if e.phase == Control || len(e.results) > 0 {
		if !m.OutOpen {
			if m.Places == 0 {
				return false
			}
			m.Places--
		}
		if e.phase == Control {
			m.note(Emitted, e.Name, "")
		} else {
			m.stats.Emitted++
			m.note(Emitted, e.results[0], "")
			e.results = e.results[1:]
			if len(e.results) > 0 {
				return true
			}
		}
	}
	if e.phase == Done && e.err == "" {
		m.stats.Completed++
	}
	m.Queue = slices.Delete(m.Queue, i, i+1)
	return true
}

// End ends every context, and accounts for each element (laws A1, F1).
func (m *Model) End(err string) {
	m.Ended, m.EndedAt = true, m.Now
	m.discards = min(len(m.Source), m.ReadAhead) + 1
	cut := 0
	for _, e := range m.Queue {
		switch {
		case e.phase == Control || e.phase == Done && e.err != "":
			continue
		case e.phase == Done && len(e.results) == 0:
			m.stats.Completed++
			continue
		case e.phase == Running || e.phase == Handling:
			m.expire(e.call, false)
		case e.phase == Backoff || e.phase == Ready:
			m.stats.WaitingForRetry--
		}
		switch {
		case e.phase == Failing && !m.ComeAgain:
			m.stats.HandedOver++
		case e.phase == Failing:
			m.stats.Abandoned++
		default:
			m.stats.Abandoned++
			e.err = err
			cut++
		}
		if m.OnFailure == HandOver && !m.ComeAgain {
			m.rest = append(m.rest, e)
		}
	}
	m.Queue = nil
	m.Err = err
	if cut > 0 {
		m.Err = fmt.Sprintf("%s, %d abandoned", err, cut)
	}
	if m.reading && err != "" {
		m.Told = m.Err
	}
}

// Stats returns all statistics except the last error.
func (m *Model) Stats() observe.Stats {
	s := m.stats
	s.Capacity, s.MaxCalls = int64(m.Capacity), int64(min(m.Capacity, m.MaxCalls))
	s.Running = int64(m.running)
	for _, e := range m.Queue {
		if e.phase == Behind {
			s.WaitingForKey++
		}
	}
	s.InFlight = s.Accepted - s.Completed - s.Dropped - s.HandedOver - s.Failed - s.Abandoned // law A1
	oldest := slices.IndexFunc(m.Queue, func(e *Element) bool { return !e.Control })
	if s.InFlight > 0 && oldest >= 0 {
		s.OldestAge = m.Now - m.Queue[oldest].accepted
	}
	if m.Ended {
		discarded := 0
		for i, in := range m.Source {
			if in == (Input{}) || in.Control && i < m.ahead {
				continue
			}
			if m.ReadAhead > 0 && discarded == m.discards {
				break
			}
			discarded++
			if !in.Control {
				s.Discarded++
			}
		}
	}
	return s
}
