package streams_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Random schedules against a model. Bytes are decoded to a configuration and operations, which are done to a real
// operator in a synctest bubble, so time is exact and a deadlock is found, and to a model, which knows what follows from
// each by the laws. After every operation both must agree: on what was emitted, what runs, and every number of Stats.
// At the end the laws are checked once more on the history alone, without the model.

var modelSeeds = flag.Int("model.seeds", 0, "random schedules of TestRandomSchedules (0: a default)")

var modelSeed = flag.Uint64("model.seed", 0, "run the random schedule of this seed only, and print it")

func TestRandomSchedules(t *testing.T) {
	schedule := func(seed uint64) []byte {
		random := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 16+random.IntN(150))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		return data
	}
	if *modelSeed > 0 {
		t.Log(runModel(t, schedule(*modelSeed), "-model.seed"))
		return
	}
	n := 2500
	switch {
	case *modelSeeds > 0:
		n = *modelSeeds
	case suite.Race || testing.Short():
		n = 300
	}
	base := rand.Uint64() >> 16
	for i := range n {
		seed := base + uint64(i)
		runModel(t, schedule(seed), fmt.Sprintf("-model.seed=%d", seed))
	}
}

func FuzzOperator(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		data := make([]byte, 120)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 400 {
			t.Skip("longer schedules find nothing that shorter ones do not")
		}
		runModel(t, data, "fuzz input")
	})
}

// runModel runs one schedule and fails t if operator and model disagree. It returns what was done.
func runModel(t *testing.T, data []byte, name string) (history string) {
	t.Helper()
	r := newModelRun(data)
	defer func() {
		if p := recover(); p != nil { // a deadlock, or goroutines that are left
			t.Logf("%s: %v", name, r)
			panic(p)
		}
	}()
	synctest.Test(t, func(*testing.T) { r.run() })
	if r.broken != nil {
		t.Fatalf("%s: %v\n%v", name, r.broken, r)
	}
	return r.String()
}

// ---- Configuration

type modelConfig struct {
	unordered, blocking      bool
	capacity, calls, buffer  int // calls 0: WithMaxConcurrentCalls not given
	timeout, attemptTimeout  time.Duration
	retries                  int // -1: NoRetry
	delay                    time.Duration
	exponential              bool
	onEmpty, onError         bool // what is retried; onError: HasException, else ErrorIs(errModelAgain) if onAgain
	onAgain                  bool
	policy                   modelPolicy
	exhausted, drain, early  bool
	handler, heeds           bool // heeds: calls that block return when their context ends
	holds, immediate, mayEnd bool // holds: an AsyncInvoke can block the loop; immediate: or complete at once
	results                  bool // driven by Results, not as a flow
	to                       bool // a flow whose results To takes, not Out
	keys, most               int  // keys 0: no key order; most: elements that may wait for their key, 0: any number
}

// places is how many results find a place while downstream takes none.
func (c *modelConfig) places() int {
	if c.results || c.to {
		return max(1, c.buffer) + 1 // one is in the hands of whoever ranges over Results, or of To
	}
	return c.buffer
}

type modelPolicy string

const modelFail modelPolicy = "fail"

const modelDrop modelPolicy = "drop"

const modelSide modelPolicy = "side"

const modelFeed = 4096 // more than a schedule sends, or gets

const modelHandlerLimit = 6 * time.Millisecond

var errModelAgain = errors.New("again")

var errModelFinal = errors.New("final")

var errModelCancel = errors.New("cancelled")

type modelBytes []byte

func (b *modelBytes) next() int {
	if len(*b) == 0 {
		return 0
	}
	v := (*b)[0]
	*b = (*b)[1:]
	return int(v)
}

func modelPick[T any](b *modelBytes, from ...T) T { return from[b.next()%len(from)] }

func newModelConfig(b *modelBytes) modelConfig {
	const ms = time.Millisecond
	yes := func(percent int) bool { return b.next()*100 < percent*256 }
	c := modelConfig{
		unordered:      yes(50),
		blocking:       yes(30),
		capacity:       1 + b.next()%8,
		calls:          modelPick(b, 0, 0, 1, 2, 3),
		buffer:         modelPick(b, 0, 1, 64),
		timeout:        modelPick(b, 10*ms, 15*ms, 30*ms, 100*ms, 0),
		attemptTimeout: modelPick(b, 0, 0, 0, 3*ms, 7*ms, 15*ms),
		retries:        modelPick(b, 1, 2, 3, 0, strategies.Unlimited, -1),
		delay:          modelPick(b, 1*ms, 2*ms, 5*ms, 0, 20*ms),
		exponential:    yes(40),
		onEmpty:        yes(60),
		onError:        yes(30),
		onAgain:        yes(60),
		policy:         modelPick(b, modelDrop, modelSide, modelFail, modelDrop),
		exhausted:      yes(30),
		drain:          yes(30),
		early:          yes(20),
		handler:        yes(30),
		heeds:          yes(50),
		holds:          yes(30),
		immediate:      yes(40),
		mayEnd:         yes(60),
		results:        yes(35),
		to:             yes(50),
		keys:           modelPick(b, 0, 0, 0, 1, 2, 3),
		most:           modelPick(b, 0, 0, 1, 2),
	}
	c.drain = c.drain || c.results // Results always does
	if c.timeout == 0 {
		c.retries = -1
	}
	c.to = c.to && !c.results
	// What these do to each other at one instant is the business of no law: who is first.
	if c.blocking || c.policy == modelFail {
		c.holds = false
	}
	if c.blocking || c.holds {
		c.immediate = false
	}
	if c.holds {
		c.calls = 0
	}
	if c.keys == 0 {
		c.most = 0
	} else {
		c.unordered = true
		if c.policy == modelSide {
			c.policy = modelDrop // when a failure is taken beside what ends at the same instant, no law says: see the core's model
		}
		if c.blocking && c.heeds { // nor which of those that return at one instant lets others start first
			c.attemptTimeout, c.immediate = 0, false
		}
	}
	if c.holds && c.timeout == 0 && c.attemptTimeout == 0 {
		c.attemptTimeout = time.Hour // without any limit, times are only those of the turn, which a call that holds the loop makes long
	}
	return c
}

func (c *modelConfig) strategy() strategies.Retry[any] {
	if c.retries < 0 {
		return strategies.NoRetry[any]()
	}
	var onResult predicates.ResultPredicate[any]
	var onError predicates.ExceptionPredicate
	if c.onEmpty {
		onResult = predicates.EmptyResult
	}
	switch {
	case c.onError:
		onError = predicates.HasException
	case c.onAgain:
		onError = predicates.ErrorIs(errModelAgain)
	}
	if c.exponential {
		return strategies.ExponentialBackoff[any](c.retries, c.delay, 8*c.delay, 2).
			RetryIfResult(onResult).RetryIfException(onError)
	}
	return strategies.FixedDelay[any](c.retries, c.delay).RetryIfResult(onResult).RetryIfException(onError)
}

func (c *modelConfig) backoff(attempts int) time.Duration {
	if c.exponential {
		return min(c.delay<<min(attempts-1, 10), 8*c.delay)
	}
	return c.delay
}

// modelOutcome is what a call ends with.
type modelOutcome struct {
	results []string
	err     string // see modelClass
}

func modelResults(key string, n int) (o modelOutcome) {
	for i := range n {
		o.results = append(o.results, key+string(rune('a'+i)))
	}
	return o
}

// ---- The model

type modelPhase uint8

const (
	mWall modelPhase = iota
	mFresh
	mBehind
	mRunning
	mBackoff
	mReady
	mHandling
	mFailing
	mDone
)

type modelElement struct {
	in          modelInput
	phase       modelPhase
	accepted    time.Duration
	at          time.Duration // its timer; modelNever: none
	order       int           // since when it is armed, ready, failing or done
	attempts    int
	first, last time.Duration // attempts
	byResult    bool
	results     []string
	lastErr     string // of its attempts
	err         string // its failure
	call        *modelCall
	inLane      bool // it has not ended as far as its key is concerned
	early       bool // it is done or failing, and others of its key are before it
}

type modelCall struct {
	e             *modelElement
	attempt       int // 0: the timeout handler
	at, deadline  time.Duration
	answered      bool // by the user
	over, expired bool // ended by the operator; by a timeout
}

func (c *modelCall) key() string { return fmt.Sprintf("%d.%d", c.e.in.id, c.attempt) }

// model is the operator as the laws have it. Every method leaves it as the operator is when nothing moves any more.
type model struct {
	modelConfig
	now       time.Duration
	endedAt   time.Duration
	source    []modelInput // sent and not accepted
	reading   bool
	noRetries bool
	queue     []*modelElement
	permits   int
	clicks    int // reports what came first

	holdNext bool
	held     *modelCall // its AsyncInvoke blocks the loop
	mail     []func()   // completions that wait meanwhile

	outOpen, sideOpen bool
	outPlaces         int // while out is not open
	out, side         []string
	sideRest          []string // what the failure sink gets after the end
	calls             []*modelCall
	told              string
	stats             asyncop.Stats
	ended, done       bool
	discards          int // at most, if results
	err               string
}

const modelNever = time.Duration(-1)

func newModel(c modelConfig) *model {
	m := &model{modelConfig: c, reading: true, outOpen: true, sideOpen: true}
	m.permits = m.maxPermits()
	return m
}

func (m *model) maxPermits() int { return cmp.Or(m.modelConfig.calls, m.capacity) }

// advance lets time pass. At each instant deadlines go before other timers, and equal ones in arming order (laws T1, A5).
func (m *model) advance(to time.Duration) {
	for m.held == nil && !m.ended {
		next := modelNever
		for _, e := range m.queue {
			for _, at := range []time.Duration{m.deadline(e), e.at} {
				if at != modelNever && (next == modelNever || at < next) {
					next = at
				}
			}
		}
		if next == modelNever || next > to {
			break
		}
		m.now = max(m.now, next)
		m.fire()
		m.settle()
	}
	m.now = to
}

func (m *model) deadline(e *modelElement) time.Duration {
	if m.timeout == 0 || e.phase < mFresh || e.phase > mReady {
		return modelNever
	}
	return e.accepted + m.timeout
}

func (m *model) fire() {
	for _, e := range m.queue {
		if d := m.deadline(e); d != modelNever && d <= m.now && !m.ended {
			m.timeOut(e)
		}
	}
	due := slices.DeleteFunc(slices.Clone(m.queue), func(e *modelElement) bool { return e.at == modelNever || e.at > m.now })
	slices.SortFunc(due, func(a, b *modelElement) int { return cmp.Or(cmp.Compare(a.at, b.at), a.order-b.order) })
	for _, e := range due {
		if m.ended {
			return
		}
		call := e.call
		e.at = modelNever
		switch e.phase {
		case mBackoff:
			m.enter(e, mReady)
		case mRunning:
			m.stats.AttemptTimeouts++
			m.expire(call, true)
			m.outcome(e, modelOutcome{err: "attempt timeout"})
		case mHandling:
			m.expire(call, true)
			m.fail(e, m.timeoutError(e, "limit"))
		default:
			panic("model: timer")
		}
	}
}

// settle does what is to be done now: starts, accepts, emits.
func (m *model) settle() {
	for m.held == nil && !m.ended {
		if !(m.startOne() || m.acceptOne() || m.emitOne() || m.sideOne()) {
			if m.reading || len(m.queue) > 0 {
				break
			}
			m.end("")
		}
	}
	for m.ended && m.sideOpen && len(m.sideRest) > 0 {
		m.side, m.sideRest = append(m.side, m.sideRest[0]), m.sideRest[1:]
	}
	m.done = m.done || m.ended && len(m.sideRest) == 0
}

// startOne starts an attempt: retries before first attempts, oldest first.
func (m *model) startOne() bool {
	var e *modelElement
	for _, o := range m.queue {
		switch {
		case o.phase != mFresh && o.phase != mReady || m.permits == 0 || m.keys > 0 && !m.mayCall(o):
		case e == nil, o.phase > e.phase, o.phase == mReady && o.accepted == e.accepted && o.order < e.order:
			e = o
		}
	}
	if e == nil {
		return false
	}
	if e.phase == mReady {
		m.stats.WaitingForRetry--
		if e.byResult {
			m.stats.RetriesOnResult++
		} else {
			m.stats.RetriesOnError++
		}
	}
	m.permits--
	e.attempts++
	m.stats.Attempts++
	e.last = m.now
	if e.attempts == 1 {
		e.first = m.now
	}
	deadline := m.deadline(e)
	m.enter(e, mRunning)
	if end := m.now + m.attemptTimeout; m.attemptTimeout > 0 && (deadline == modelNever || end < deadline) {
		deadline, e.at = end, end
	}
	call := m.newCall(e, e.attempts, deadline)
	if m.holdNext {
		m.holdNext, m.held = false, call
	} else if e.in.immediate > 0 && e.attempts == 1 {
		o, late := e.in.outcome()
		m.answer(call, o)
		m.stats.LateCompletions += int64(late)
	}
	return true
}

func (m *model) newCall(e *modelElement, attempt int, deadline time.Duration) *modelCall {
	e.call = &modelCall{e: e, attempt: attempt, at: m.now, deadline: deadline}
	m.calls = append(m.calls, e.call)
	return e.call
}

// forgetUnmade forgets the timeout handlers that were to be called in the very instant in which the run was cut off, and were
// not: a worker may come to them before that or after it.
func (m *model) forgetUnmade(made func(key string) bool) {
	if !m.ended {
		return
	}
	m.calls = slices.DeleteFunc(m.calls, func(call *modelCall) bool {
		cut := call.attempt == 0 && call.at == m.endedAt && call.over && !call.expired && !made(call.key())
		if cut && m.heeds {
			m.stats.LateCompletions--
		}
		return cut
	})
}

// acceptOne accepts an element while a slot is free (law Q2), and notices the end of the input then.
func (m *model) acceptOne() bool {
	if !m.reading || len(m.source) == 0 || len(m.queue) == m.capacity || m.crowded() {
		return false
	}
	in := m.source[0]
	m.source = m.source[1:]
	e := &modelElement{in: in, accepted: m.now, at: modelNever, phase: mFresh}
	switch in.kind {
	case modelClose:
		m.endInput()
		return true
	case modelWatermark:
		e.phase = mWall
	default:
		m.stats.Accepted++
		e.inLane = m.keys > 0
	}
	m.queue = append(m.queue, e)
	if e.inLane && !m.mayCall(e) {
		e.phase = mBehind
	}
	return true
}

// ---- Law K1

// lane are the elements of a key that have not ended.
func (m *model) lane(key int) (lane []*modelElement) {
	for _, e := range m.queue {
		if e.inLane && e.in.id%m.keys == key {
			lane = append(lane, e)
		}
	}
	return lane
}

// mayCall: it is the first of its key, and no call of that runs on.
func (m *model) mayCall(e *modelElement) bool {
	key := e.in.id % m.keys
	if m.lane(key)[0] != e {
		return false
	}
	for _, call := range m.calls {
		if m.blocking && call.attempt > 0 && call.over && !call.answered && call.e.in.id%m.keys == key {
			return false
		}
	}
	return true
}

// crowded: as many elements of a key wait as may.
func (m *model) crowded() bool {
	for key := range m.keys {
		if m.most > 0 && len(m.lane(key)) > m.most {
			return true
		}
	}
	return false
}

// first reports whether e takes effect now. If it does not, it does when it is the first of its key.
func (m *model) first(e *modelElement) bool {
	e.early = e.inLane && m.lane(e.in.id % m.keys)[0] != e
	return !e.early
}

// leave: e has ended, and the next one of its key has its turn.
func (m *model) leave(e *modelElement) {
	if !e.inLane {
		return
	}
	key := e.in.id % m.keys
	lane := m.lane(key)
	e.inLane = false
	if lane[0] != e {
		return
	}
	for _, next := range lane[1:] {
		if !next.early {
			break
		}
		m.enter(next, next.phase)
		if next.early = false; next.phase == mFailing {
			return
		}
		next.inLane = false
	}
	m.mayStart(key)
}

// mayStart lets the first of a key start, if it may.
func (m *model) mayStart(key int) {
	lane := m.lane(key)
	if len(lane) == 0 || !m.mayCall(lane[0]) {
		return
	}
	switch lane[0].phase {
	case mBehind:
		m.enter(lane[0], mFresh)
	case mReady:
		m.enter(lane[0], mReady)
	}
}

// endInput: those in back-off get one last attempt at once, and there are no more retries (law A5).
func (m *model) endInput() {
	m.reading = false
	m.noRetries = !m.drain
	for _, e := range m.queue {
		if e.phase == mBackoff && m.noRetries {
			e.at = modelNever
			m.enter(e, mReady)
		}
	}
}

// head: ordered the oldest, if it is done; unordered the one of the first segment that was done first (law Q1).
func (m *model) head() int {
	head := -1
	for i, e := range m.queue {
		if e.phase == mWall && i == 0 {
			return 0
		}
		if e.phase == mWall || i > 0 && !m.unordered {
			return head
		}
		if e.phase == mDone && !e.early && (head < 0 || e.order < m.queue[head].order) {
			head = i
		}
	}
	return head
}

func (m *model) emitOne() bool {
	i := m.head()
	if i < 0 {
		return false
	}
	e := m.queue[i]
	if e.phase == mWall || len(e.results) > 0 {
		if !m.outOpen {
			if m.outPlaces == 0 {
				return false
			}
			m.outPlaces--
		}
		if e.phase == mWall {
			m.out = append(m.out, fmt.Sprintf("W%d", e.in.id))
		} else {
			m.stats.Emitted++
			m.out = append(m.out, e.results[0])
			if e.results = e.results[1:]; len(e.results) > 0 {
				return true
			}
		}
	}
	if e.phase == mDone && e.err == "" {
		m.stats.Completed++
	}
	m.queue = slices.Delete(m.queue, i, i+1)
	return true
}

func (m *model) sideOne() bool {
	var oldest *modelElement
	for _, e := range m.queue {
		if e.phase == mFailing && !e.early && (oldest == nil || e.order < oldest.order) {
			oldest = e
		}
	}
	if oldest == nil || !m.sideOpen {
		return false
	}
	m.side = append(m.side, oldest.sideLine(oldest.err))
	m.stats.HandedOver++
	m.enter(oldest, mDone)
	m.leave(oldest)
	return true
}

func (e *modelElement) sideLine(err string) string {
	return fmt.Sprintf("%d: %s attempts=%d first=%v last=%v", e.in.id, err, e.attempts, e.first, e.last)
}

// answer is a completion by the user: the first one of the current attempt counts (law A2).
func (m *model) answer(call *modelCall, o modelOutcome) {
	late := call.answered || call.over
	call.answered = true
	if m.blocking && call.attempt > 0 {
		m.permits++
		if m.keys > 0 && late && !m.ended {
			m.mayStart(call.e.in.id % m.keys)
		}
	}
	switch {
	case late:
		m.stats.LateCompletions++
	case m.held != nil:
		m.mail = append(m.mail, func() { m.complete(call, o) })
	default:
		m.complete(call, o)
	}
}

func (m *model) complete(call *modelCall, o modelOutcome) {
	e := call.e
	e.at = modelNever
	if call.attempt > 0 {
		if !m.blocking {
			m.permits++
		}
		m.outcome(e, o)
		return
	}
	if o.err == "panic" { // the outcome of a handler is final (A3)
		o.err = m.timeoutError(e, "panic")
	}
	m.finish(e, o)
}

func (m *model) outcome(e *modelElement, o modelOutcome) {
	again := o.err == "" && m.onEmpty && len(o.results) == 0
	if o.err != "" {
		e.lastErr = o.err
		again = m.onError || m.onAgain && o.err == "again"
	}
	if m.retries < 0 || !again {
		m.finish(e, o)
		return
	}
	if m.noRetries || e.attempts > m.retries { // A4, A5
		m.stats.Exhausted++
		if e.attempts <= m.retries {
			m.stats.CutByEndOfInput++
		}
		if o.err == "" && m.exhausted {
			o.err = "exhausted"
		}
		m.finish(e, o)
		return
	}
	e.byResult = o.err == ""
	delay := m.backoff(e.attempts)
	past := m.now+delay >= m.deadline(e)
	m.enter(e, mBackoff)
	m.stats.WaitingForRetry++
	switch {
	case past && m.early:
		m.timeOut(e)
	case past: // it waits for its deadline
	case delay == 0:
		m.enter(e, mReady)
	default:
		e.at = m.now + delay
	}
}

// timeOut has the last word (law A3).
func (m *model) timeOut(e *modelElement) {
	m.stats.Timeouts++
	e.at = modelNever
	switch e.phase {
	case mRunning:
		m.expire(e.call, true)
	case mBackoff, mReady:
		m.stats.WaitingForRetry--
	}
	if !m.handler {
		m.fail(e, m.timeoutError(e, ""))
		return
	}
	m.enter(e, mHandling)
	e.at = m.now + modelHandlerLimit
	if m.runningHandlers() == 2*m.capacity {
		e.at = modelNever
		m.fail(e, m.timeoutError(e, "too many"))
		return
	}
	m.newCall(e, 0, e.at)
}

func (m *model) runningHandlers() (n int) {
	for _, call := range m.calls {
		if call.attempt == 0 && !call.answered {
			n++
		}
	}
	return n
}

// expire ends a call from the operator's side.
func (m *model) expire(call *modelCall, byTimeout bool) {
	call.over, call.expired = true, byTimeout
	blocks := m.blocking || call.attempt == 0
	if blocks && m.heeds { // it returns at once
		call.answered = true
		m.stats.LateCompletions++
	}
	if call.attempt > 0 && (!blocks || m.heeds) {
		m.permits++
	}
}

func (m *model) timeoutError(e *modelElement, handler string) string {
	return fmt.Sprintf("timeout after %d [%s] [%s]", e.attempts, e.lastErr, handler)
}

func (m *model) finish(e *modelElement, o modelOutcome) {
	if o.err != "" {
		m.fail(e, o.err)
		return
	}
	e.results = o.results
	m.enter(e, mDone)
	if m.first(e) {
		m.leave(e)
	}
}

func (m *model) fail(e *modelElement, err string) {
	m.stats.Failures++
	e.err = err
	switch m.policy {
	case modelSide:
		m.enter(e, mFailing)
		m.first(e)
	case modelDrop:
		m.stats.Dropped++
		m.enter(e, mDone)
		m.leave(e)
	case modelFail:
		m.stats.Failed++
		m.enter(e, mDone)
		m.end(fmt.Sprintf("element %d attempts=%d elapsed=%v: %s", e.in.id, e.attempts, m.now-e.accepted, err))
	}
}

// end ends the operator; nothing is emitted any more and every context ends (law F1).
func (m *model) end(err string) {
	m.ended, m.endedAt = true, m.now
	m.discards = min(len(m.source), max(1, m.buffer)) + 1 // no more is asked of the input, once it has yielded one
	for _, e := range m.queue {
		switch {
		case e.phase == mWall || e.phase == mDone && e.err != "":
			continue
		case e.phase == mDone && len(e.results) == 0:
			m.stats.Completed++
			continue
		case e.phase == mRunning || e.phase == mHandling:
			m.expire(e.call, false)
		case e.phase == mBackoff || e.phase == mReady:
			m.stats.WaitingForRetry--
		}
		if e.phase == mFailing {
			m.sideRest = append(m.sideRest, e.sideLine(e.err))
			m.stats.HandedOver++
			continue
		}
		m.stats.Abandoned++
		if m.policy == modelSide {
			m.sideRest = append(m.sideRest, e.sideLine(err))
		}
	}
	m.queue = nil
	m.err = err
	if n := m.stats.Abandoned; n > 0 {
		m.err = fmt.Sprintf("%s, %d abandoned", err, n)
	}
	if m.reading && err != "" {
		m.told = m.err
	}
}

func (m *model) stop() {
	if m.reading && !m.ended {
		m.told = "stopped"
		m.endInput()
	}
}

func (m *model) release() {
	m.held = nil
	for _, mail := range m.mail { // T1: before the timers that came due meanwhile
		mail()
	}
	m.mail = nil
	m.fire()
}

func (m *model) enter(e *modelElement, p modelPhase) {
	m.clicks++
	e.phase, e.order = p, m.clicks
}

func (m *model) statistics() asyncop.Stats {
	s := m.stats
	s.Capacity, s.MaxCalls = int64(m.capacity), int64(min(m.capacity, m.maxPermits()))
	s.Running = int64(m.maxPermits() - m.permits)
	for _, e := range m.queue {
		if e.phase == mBehind {
			s.WaitingForKey++
		}
	}
	s.InFlight = s.Accepted - s.Completed - s.Dropped - s.HandedOver - s.Failed - s.Abandoned
	oldest := slices.IndexFunc(m.queue, func(e *modelElement) bool { return e.in.kind != modelWatermark })
	if s.InFlight > 0 && oldest >= 0 {
		s.OldestAge = m.now - m.queue[oldest].accepted
	}
	if m.ended {
		for _, in := range m.source {
			if in.kind != modelClose && !(m.results && s.Discarded == int64(m.discards)) {
				s.Discarded++
			}
		}
	}
	return s
}

// ---- The operator beside it

type modelInput struct {
	id        int
	kind      modelInputKind
	immediate modelImmediate
}

type modelInputKind uint8

const (
	modelRecord modelInputKind = iota
	modelWatermark
	modelClose
)

// modelImmediate is how the first attempt of an element ends inside AsyncInvoke.
type modelImmediate uint8

const (
	modelNotNow modelImmediate = iota
	modelNow
	modelNowThenError
	modelNowThenPanic
	modelNowEmpty
	modelNowError
	modelNowPanic
	modelImmediates
)

func (in modelInput) outcome() (o modelOutcome, late int) {
	switch in.immediate {
	case modelNowEmpty:
		return modelOutcome{}, 0
	case modelNowError:
		return modelOutcome{err: "again"}, 0
	case modelNowPanic:
		return modelOutcome{err: "panic"}, 0
	case modelNow:
		return modelResults(fmt.Sprintf("%d.1", in.id), 1), 0
	default:
		return modelResults(fmt.Sprintf("%d.1", in.id), 1), 1
	}
}

// modelRun does a schedule to an operator and a model.
type modelRun struct {
	modelConfig
	bytes  modelBytes
	model  *model
	ops    []string
	broken error

	op        *asyncop.AsyncWaitOperator[modelInput, any]
	start     time.Time
	cancel    context.CancelCauseFunc
	feed      chan any // unbounded in effect; a goroutine sends it to In
	closed    bool
	sent      []modelInput
	out, side *modelTap
	sideIn    chan any // closed at the end
	holdNext  atomic.Bool
	gate      chan struct{}
	stopped   chan error

	mu    sync.Mutex
	calls map[string]*modelHandle // guarded by mu; by key
	told  []error                 // guarded by mu
	wrong []string                // guarded by mu
}

// modelHandle is a call of the function or of its timeout handler, as the user sees it.
type modelHandle struct {
	ctx     context.Context
	done    <-chan struct{} // of ctx; for every other element, since it is made when it is asked for
	at      time.Duration
	result  asyncop.ResultFuture[any]
	answer  chan modelOutcome // for calls that block
	ended   time.Duration     // when the user completed it; modelNever: not
	element int
	attempt int
}

func newModelRun(data []byte) *modelRun {
	r := &modelRun{bytes: data, calls: map[string]*modelHandle{}}
	r.modelConfig = newModelConfig(&r.bytes)
	r.model = newModel(r.modelConfig)
	return r
}

func (r *modelRun) String() string {
	return fmt.Sprintf("%+v\n%s", r.modelConfig, strings.Join(r.ops, "\n"))
}

// modelTap reads a channel while it is open.
type modelTap struct {
	ch   chan any
	turn chan bool
	done chan struct{} // closed when ch is
	text func(any) string

	mu    sync.Mutex
	items []string // guarded by mu
}

func newModelTap(ch <-chan any, text func(any) string) *modelTap {
	t := &modelTap{turn: make(chan bool), done: make(chan struct{}), text: text}
	go func() {
		defer close(t.done)
		for from := ch; ; {
			select {
			case open := <-t.turn:
				if from = nil; open {
					from = ch
				}
			case v, ok := <-from:
				if !ok {
					return
				}
				t.mu.Lock()
				t.items = append(t.items, t.text(v))
				t.mu.Unlock()
			}
		}
	}()
	return t
}

func (t *modelTap) got() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.items)
}

func (t *modelTap) set(open bool) {
	select {
	case t.turn <- open:
	case <-t.done:
	}
}

// modelSink is a sink that is not awaited.
type modelSink chan any

func (s modelSink) In() chan<- any   { return s }
func (s modelSink) AwaitCompletion() {}

// takeInto returns a failure sink that sends to a channel.
func takeInto(side chan<- any) func(context.Context, asyncop.Failure[modelInput]) error {
	return func(ctx context.Context, f asyncop.Failure[modelInput]) error {
		select {
		case side <- f:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *modelRun) begin() {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	r.start = time.Now()
	opts := []asyncop.Option{
		asyncop.WithContext(ctx),
		asyncop.WithBuffer(r.buffer),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)),
		asyncop.WithHandlerLimit(modelHandlerLimit),
		asyncop.WithUpstreamCancel(func(cause error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, cause)
		}),
	}
	optional := func(on bool, opt func() asyncop.Option) {
		if on {
			opts = append(opts, opt())
		}
	}
	side := make(chan any)
	r.side, r.sideIn = newModelTap(side, r.sideText), side
	optional(r.modelConfig.calls > 0, func() asyncop.Option { return asyncop.WithMaxConcurrentCalls(r.modelConfig.calls) })
	optional(r.attemptTimeout > 0, func() asyncop.Option { return asyncop.WithAttemptTimeout(r.attemptTimeout) })
	optional(r.policy == modelDrop, asyncop.WithDropOnFailure)
	optional(r.policy == modelSide, func() asyncop.Option { return asyncop.WithFailureSink(takeInto(side)) })
	optional(r.exhausted, asyncop.WithExhaustedAsFailure)
	optional(r.drain && !r.results, asyncop.WithDrainRetries)
	optional(r.early, asyncop.WithEarlyTimeout)

	fn := asyncop.Func(r.invoke)
	if r.blocking {
		fn = asyncop.BlockingMany(r.block)
	}
	if r.handler {
		fn = optest.TimeoutMethod(fn, r.block)
	}
	construct := asyncop.OrderedWaitWithRetry[modelInput, any]
	if r.unordered {
		construct = asyncop.UnorderedWaitWithRetry[modelInput, any]
	}
	optional(r.most > 0, func() asyncop.Option { return asyncop.WithMaxWaitingPerKey(r.most) })
	if r.keys > 0 {
		key := func(in modelInput) int { return in.id % r.keys }
		r.op = asyncop.KeyOrderedWait(fn, key, r.timeout, r.capacity, r.strategy(), opts...)
	} else {
		r.op = construct(fn, r.timeout, r.capacity, r.strategy(), opts...)
	}
	out := r.op.Out
	switch {
	case r.results:
		out = r.rangeOver
	case r.to:
		out = r.takeAll
	}
	r.feed = make(chan any, modelFeed)
	r.out = newModelTap(out(), func(v any) string {
		if w, ok := v.(asyncop.Watermark); ok {
			return fmt.Sprintf("W%d", w.Timestamp.Unix())
		}
		return v.(string)
	})
	if r.results {
		return
	}
	go func() {
		defer close(r.op.In())
		for v := range r.feed {
			r.op.In() <- v
		}
	}()
}

// takeAll takes the results by To.
func (r *modelRun) takeAll() <-chan any {
	in := make(modelSink)
	go r.op.To(in)
	return in
}

// rangeOver drives the operator by Results.
func (r *modelRun) rangeOver() <-chan any {
	out := make(chan any)
	input := func(yield func(modelInput) bool) {
		for v := range r.feed {
			if !yield(v.(modelInput)) {
				return
			}
		}
	}
	go func() {
		defer close(out)
		var last error
		for v, err := range r.op.Results(input) {
			if last = err; err == nil {
				out <- v
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		want := r.op.Err()
		if want == nil && len(r.told) > 0 { // that the operator was stopped
			want = asyncop.ErrStopped
		}
		if !errors.Is(last, want) || last == nil && want != nil {
			r.wrong = append(r.wrong, fmt.Sprintf("Results ended with %v, not with %v", last, want))
		}
	}()
	return out
}

func (r *modelRun) invoke(ctx context.Context, in modelInput, result asyncop.ResultFuture[any]) error {
	h := r.enter(ctx, in, result)
	if r.holdNext.CompareAndSwap(true, false) {
		<-r.gate
	}
	if in.immediate == modelNotNow || asyncop.AttemptFromContext(ctx) > 1 {
		return nil
	}
	o, late := in.outcome()
	h.ended = h.at
	switch {
	case o.err == "panic":
		panic(errModelFinal)
	case o.err != "":
		return errModelAgain
	}
	result.Complete(modelAnys(o.results)...)
	if late > 0 && in.immediate == modelNowThenPanic {
		panic(errModelFinal)
	} else if late > 0 {
		return errModelFinal
	}
	return nil
}

// block is the blocking function, and the timeout handler.
func (r *modelRun) block(ctx context.Context, in modelInput) ([]any, error) {
	h := r.enter(ctx, in, nil)
	var end <-chan struct{}
	if r.heeds {
		end = ctx.Done()
	}
	select {
	case o := <-h.answer:
		return o.unpack()
	case <-end:
		return nil, ctx.Err()
	}
}

func (r *modelRun) enter(ctx context.Context, in modelInput, result asyncop.ResultFuture[any]) *modelHandle {
	h := &modelHandle{
		ctx: ctx, at: time.Since(r.start), result: result, answer: make(chan modelOutcome, 1), ended: modelNever,
		element: in.id, attempt: asyncop.AttemptFromContext(ctx),
	}
	if in.id%2 == 0 {
		h.done = ctx.Done()
	}
	key := fmt.Sprintf("%d.%d", h.element, h.attempt)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls[key] != nil {
		r.wrong = append(r.wrong, "called twice: "+key)
	}
	r.calls[key] = h
	return h
}

func modelAnys(results []string) []any {
	var out []any
	for _, s := range results {
		out = append(out, s)
	}
	return out
}

func (o modelOutcome) unpack() ([]any, error) {
	switch o.err {
	case "":
		return modelAnys(o.results), nil
	case "control":
		return []any{"never emitted", asyncop.Watermark{}}, nil
	case "again":
		return nil, errModelAgain
	case "panic":
		panic("as told")
	default:
		return nil, errModelFinal
	}
}

// modelClass names errors as the model does.
func modelClass(err error) string {
	var (
		element   *asyncop.ElementError
		abandoned *asyncop.AbandonedError
		timeout   *asyncop.TimeoutError
		attempt   *asyncop.AttemptTimeoutError
		panicked  *asyncop.PanicError
	)
	with := func(s string, n int) string {
		if n > 0 {
			return fmt.Sprintf("%s, %d abandoned", s, n)
		}
		return s
	}
	switch {
	case err == nil:
		return ""
	case errors.As(err, &abandoned):
		return with(modelClass(abandoned.Cause), abandoned.Abandoned)
	case errors.As(err, &element):
		return with(fmt.Sprintf("element %d attempts=%d elapsed=%v: %s", element.Element.(modelInput).id,
			element.Attempts, element.Elapsed, modelClass(element.Err)), element.Abandoned)
	case errors.As(err, &timeout):
		handler := ""
		switch {
		case optest.ErrHandlerLimit.In(timeout.Handler):
			handler = "limit"
		case errors.As(timeout.Handler, &panicked):
			handler = "panic"
		case timeout.Handler != nil && strings.Contains(timeout.Handler.Error(), "twice as many"):
			handler = "too many"
		case timeout.Handler != nil:
			handler = timeout.Handler.Error()
		}
		return fmt.Sprintf("timeout after %d [%s] [%s]", timeout.Attempts, modelClass(timeout.Last), handler)
	case errors.As(err, &attempt):
		return "attempt timeout"
	case errors.As(err, &panicked):
		return "panic"
	case optest.ErrControlResult.In(err):
		return "control"
	case errors.Is(err, asyncop.ErrRetriesExhausted):
		return "exhausted"
	case errors.Is(err, asyncop.ErrStopped):
		return "stopped"
	default:
		return err.Error()
	}
}

func (r *modelRun) sideText(v any) string {
	f := v.(asyncop.Failure[modelInput])
	e := modelElement{in: f.Element, attempts: f.Attempts}
	if f.Attempts > 0 {
		e.first, e.last = f.FirstAttempt.Sub(r.start), f.LastAttempt.Sub(r.start)
	}
	return e.sideLine(modelClass(f.Err))
}

// ---- Operations

func (r *modelRun) run() {
	r.begin()
	defer r.tearDown()
	r.compare("begin")
	for after := 0; len(r.bytes) > 0 && r.broken == nil && after < 8; {
		r.compare(r.operation())
		if r.model.done {
			after++
		}
	}
	for _, finish := range []func() string{r.release, r.openAll} {
		if r.broken == nil {
			r.compare(finish())
		}
	}
	for range 1000 {
		if r.broken != nil {
			return
		}
		open := r.open()
		switch {
		case !r.closed && r.mayClose():
			r.compare(r.closeInput())
		case len(open) > 0:
			r.compare(r.complete(open[0], 0))
		case r.model.ended:
			r.checkEnd()
			r.checkLaws()
			return
		default:
			r.compare(r.pass(30 * time.Millisecond))
		}
	}
	r.report("no end")
}

func (r *modelRun) operation() string {
	m := r.model
	op, arg := r.bytes.next()%32, r.bytes.next()
	if m.held != nil && op > 23 { // see newModelConfig: a held loop allows for less
		return r.release()
	}
	rare := r.mayEnd && arg%4 == 0
	switch {
	case op < 8:
		return r.send(modelRecord, arg)
	case op < 10:
		return r.send(modelWatermark, 0)
	case op < 18:
		if open := r.open(); len(open) > 0 {
			return r.complete(open[arg%len(open)], r.bytes.next())
		}
		return r.send(modelRecord, arg)
	case op < 19:
		if calls := m.calls; len(calls) > 0 {
			return r.complete(calls[arg%len(calls)], r.bytes.next())
		}
		return r.send(modelRecord, arg)
	case op < 24:
		return r.pass(time.Millisecond * [...]time.Duration{1, 1, 1, 2, 2, 3, 4, 5, 8, 20, 100}[arg%11])
	case op < 25 && !(r.unordered && (r.holds || r.immediate && r.policy == modelSide)):
		m.outOpen, m.outPlaces = !m.outOpen, r.places()
		r.out.set(m.outOpen)
		return fmt.Sprintf("downstream open: %v", m.outOpen)
	case op == 25 && r.keys == 0 && !(r.unordered && !m.outOpen && !m.sideOpen): // failures that wait hold up their keys: see the core's model
		m.sideOpen = !m.sideOpen
		r.side.set(m.sideOpen)
		return fmt.Sprintf("failure sink open: %v", m.sideOpen)
	case op < 28 && r.holds && !r.closed:
		m.holdNext = true
		r.gate = make(chan struct{})
		r.holdNext.Store(true)
		return "the next call holds the loop"
	case op == 29 && rare && r.mayClose():
		return r.closeInput()
	case op == 30 && rare && r.stopped == nil:
		r.stopped = make(chan error, 1)
		go func() { r.stopped <- r.op.Stop(context.Background()) }()
		m.stop()
		return "stop"
	case op == 31 && rare:
		r.cancel(errModelCancel)
		if !m.ended {
			m.end("cancelled")
		}
		return "cancel"
	default:
		return r.send(modelRecord, arg)
	}
}

func (r *modelRun) send(kind modelInputKind, arg int) string {
	if r.closed {
		return r.pass(time.Millisecond)
	}
	if r.results {
		kind = modelRecord // it knows no control elements
	}
	in := modelInput{id: len(r.sent) + 1, kind: kind}
	if r.immediate && kind == modelRecord && arg%2 == 0 {
		kinds := modelImmediates
		if r.policy == modelFail { // what else the same instant brings is the business of no law
			kinds = modelNowEmpty
		}
		in.immediate = modelImmediate(arg / 2 % int(kinds))
	}
	r.sent = append(r.sent, in)
	r.model.source = append(r.model.source, in)
	if kind == modelWatermark {
		r.feed <- asyncop.Watermark{Timestamp: time.Unix(int64(in.id), 0)}
	} else {
		r.feed <- in
	}
	return fmt.Sprintf("send %+v", in)
}

func (r *modelRun) closeInput() string {
	if r.model.holdNext || r.model.held != nil { // whether a held loop sees the end or a completion first is open
		return r.release()
	}
	if !r.closed {
		r.closed = true
		close(r.feed)
		r.model.source = append(r.model.source, modelInput{kind: modelClose})
	}
	return "close"
}

// mayClose reports whether it is certain when the end of the input will be noticed: other things that happen at the same
// instant, such as calls that end by themselves, come before or after it, and no law says which.
func (r *modelRun) mayClose() bool {
	m := r.model
	return m.ended || !(r.immediate || r.blocking && r.heeds) || len(m.source) == 0 && len(m.queue) < r.capacity && !m.crowded()
}

// open lists the calls that were not answered and may still end the attempt, or that block.
func (r *modelRun) open() (open []*modelCall) {
	for _, call := range r.model.calls {
		blocks := r.blocking || call.attempt == 0
		if !call.answered && (!call.over || blocks) {
			open = append(open, call)
		}
	}
	return open
}

func (r *modelRun) complete(call *modelCall, arg int) string {
	o := modelResults(call.key(), 1)
	switch arg % 8 {
	case 1, 2:
		o = modelOutcome{}
	case 3, 4:
		o = modelOutcome{err: "again"}
	case 5:
		o = modelOutcome{err: "final"}
	case 6:
		o = modelResults(call.key(), 2)
	case 7:
		o = modelOutcome{err: "control"}
		if r.blocking || call.attempt == 0 {
			o.err = "panic"
		}
	}
	h := r.calls[call.key()]
	if h.ended == modelNever {
		h.ended = time.Since(r.start)
	}
	switch {
	case h.result != nil:
		results, err := o.unpack()
		if err != nil {
			h.result.CompleteExceptionally(err)
		} else {
			h.result.Complete(results...)
		}
	case call.answered:
		return "(answered) " + call.key()
	default:
		h.answer <- o
	}
	r.model.answer(call, o)
	return fmt.Sprintf("complete %s with %+v", call.key(), o)
}

func (r *modelRun) pass(d time.Duration) string {
	time.Sleep(d)
	r.model.advance(time.Since(r.start))
	return fmt.Sprintf("pass %v", d)
}

func (r *modelRun) release() string {
	r.holdNext.Store(false)
	r.model.holdNext = false
	if r.model.held != nil {
		close(r.gate)
		r.model.release()
	}
	return "release"
}

func (r *modelRun) openAll() string {
	r.out.set(true)
	r.side.set(true)
	r.model.outOpen, r.model.sideOpen = true, true
	return "open all"
}

// tearDown lets everything end, so that what is left in the bubble is a leak.
func (r *modelRun) tearDown() {
	r.release()
	r.openAll()
	r.cancel(errModelCancel)
	r.closeInput()
	<-r.op.Done()
	close(r.sideIn)
	for _, h := range r.calls {
		select {
		case h.answer <- modelOutcome{}:
		default:
		}
	}
}

// ---- Comparison

// compare waits until nothing moves and compares operator and model.
func (r *modelRun) compare(what string) {
	m := r.model
	m.settle()
	synctest.Wait()
	r.ops = append(r.ops, fmt.Sprintf("%8v %s", time.Since(r.start), what))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, wrong := range r.wrong {
		r.report("%s", wrong)
	}
	if m.held == nil { // else something of the same instant may have left before the loop was held, or not
		received := m.out
		if !m.outOpen { // the rest is in Out's buffer
			received = m.out[:len(m.out)-(r.places()-m.outPlaces)]
		}
		r.same("out", strings.Join(received, " "), strings.Join(r.out.got(), " "))
		want, got := slices.Clone(m.side), r.side.got()
		if r.holds { // those that failed while the loop was held come in no defined order
			slices.Sort(want)
			slices.Sort(got)
		}
		r.same("failure sink", strings.Join(want, "; "), strings.Join(got, "; "))
	}
	m.forgetUnmade(func(key string) bool { return r.calls[key] != nil })
	r.same("calls", len(m.calls), len(r.calls))
	for _, call := range m.calls {
		h := r.calls[call.key()]
		if h == nil {
			r.report("call %s is missing", call.key())
			continue
		}
		r.same("start of "+call.key(), call.at, h.at)
		deadline, ok := h.ctx.Deadline()
		r.same("deadline of "+call.key(), call.deadline != modelNever, ok)
		if ok {
			r.same("deadline of "+call.key(), call.deadline, deadline.Sub(r.start))
		}
		var ended error
		if call.expired {
			ended = context.DeadlineExceeded
		} else if call.over || call.answered {
			ended = context.Canceled
		}
		r.same("context of "+call.key(), ended, h.ctx.Err())
		select {
		case <-h.done:
			r.same("end of context of "+call.key(), ended != nil, true)
		default:
			r.same("end of context of "+call.key(), ended != nil && h.done != nil, false)
		}
	}
	if m.held != nil {
		return
	}
	if m.done || !m.ended {
		want, got := m.statistics(), r.op.Stats()
		got.LastError = nil // has tests of its own
		r.same("stats", want, got)
	}
	isDone := false
	select {
	case <-r.op.Done():
		isDone = true
	default:
	}
	r.same("done", m.done, isDone)
	if m.ended {
		r.same("err", m.err, modelClass(r.op.Err()))
	} else {
		r.same("err", nil, r.op.Err())
	}
	told := ""
	for _, err := range r.told {
		told += modelClass(err)
	}
	r.same("upstream was told", m.told, told)
}

func (r *modelRun) same(what string, want, got any) {
	if want != got {
		r.report("%s:\n  model    %+v\n  operator %+v", what, want, got)
	}
}

func (r *modelRun) report(format string, args ...any) {
	r.broken = errors.Join(r.broken, fmt.Errorf(format, args...))
}

func (r *modelRun) checkEnd() {
	select {
	case <-r.out.done:
	default:
		r.report("F1: Out is not closed")
	}
	if r.stopped != nil {
		r.same("result of Stop", modelClass(r.op.Err()), modelClass(<-r.stopped))
	}
}

// checkLaws looks at what was observed alone.
func (r *modelRun) checkLaws() {
	s := r.op.Stats()
	r.same("A1: accepted", s.Accepted, s.Completed+s.Dropped+s.HandedOver+s.Failed+s.Abandoned)
	r.same("A1: in flight after the end", int64(0), s.InFlight)
	r.same("failures", s.Failures, s.Dropped+s.HandedOver+s.Failed)

	// A1, Q1: results of an element come from one attempt, together, and not twice; it does not fail as well.
	place := map[int]int{} // element → index of its last result
	from := map[int]string{}
	walls := []int{}
	last := 0
	ofKey := map[int]int{}
	for i, v := range r.out.got() {
		if strings.HasPrefix(v, "W") {
			var wall int
			fmt.Sscanf(v, "W%d", &wall)
			walls = append(walls, wall)
			for _, in := range r.sent[:wall-1] {
				if _, ok := place[in.id]; !ok {
					place[in.id] = -2 // Q1: too late for it from now on
				}
			}
			last = wall
			continue
		}
		var id int
		fmt.Sscanf(v, "%d.", &id)
		attempt := v[:len(v)-1]
		p, seen := place[id]
		switch {
		case seen && (p != i-1 || from[id] != attempt):
			r.report("A1, Q1: %s is out of place in %v", v, r.out.got())
		case !r.unordered && id < last:
			r.report("Q1: %s is out of order in %v", v, r.out.got())
		case len(walls) > 0 && id < walls[len(walls)-1]:
			r.report("Q1: %s crossed a watermark in %v", v, r.out.got())
		case r.keys > 0 && id < ofKey[id%r.keys]:
			r.report("K1: %s is out of order in %v", v, r.out.got())
		}
		if r.keys > 0 {
			ofKey[id%r.keys] = id
		}
		place[id], from[id], last = i, attempt, id
	}
	for w := range walls {
		if i := slices.Index(r.out.got(), fmt.Sprintf("W%d", walls[w])); w > 0 && walls[w] < walls[w-1] {
			r.report("Q1: watermarks in %v", r.out.got())
		} else {
			for _, v := range r.out.got()[:i] {
				var id int
				if fmt.Sscanf(v, "%d.", &id); id > walls[w] {
					r.report("Q1: %s overtook a watermark in %v", v, r.out.got())
				}
			}
		}
	}
	for key, h := range r.calls {
		if h.attempt == 0 {
			continue
		}
		if r.retries != strategies.Unlimited && h.attempt > max(0, r.retries)+1 {
			r.report("A4: call %s, but %d retries", key, r.retries)
		}
		if d, ok := h.ctx.Deadline(); ok && d.Sub(r.start) <= h.at {
			r.report("A5: call %s at %v, its deadline was %v", key, h.at, d.Sub(r.start))
		}
		before := r.calls[fmt.Sprintf("%d.%d", h.element, h.attempt-1)]
		if h.attempt > 1 && before == nil {
			r.report("call %s without one before", key)
		} else if h.attempt > 1 && (!r.model.noRetries || r.drain) {
			// An attempt that timed out ended no earlier than that.
			ended := before.at + r.attemptTimeout
			if before.ended != modelNever {
				ended = min(before.ended, cmp.Or(ended-before.at, 1<<40)+before.at)
			}
			if h.at < ended+r.backoff(h.attempt-1) {
				r.report("T1: call %s at %v, the one before ended at %v", key, h.at, ended)
			}
		}
	}
}
