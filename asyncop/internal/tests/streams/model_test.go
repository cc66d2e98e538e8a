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
	"github.com/weirflow/weir/asyncop/internal/modeltest"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Random schedules against a model. Bytes are decoded to a configuration and operations.
// The operations are done to a real operator in a synctest bubble, so time is exact and a
// deadlock is found, and to a model, which derives the effects of each from the laws.
// After every operation both must agree on the emitted results, the running calls, and
// every number of Stats. At the end the laws are checked once more on the history alone,
// without the model.

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
	case suite.Race || !suite.Full():
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

// runModel runs one schedule and fails t if operator and model disagree. It returns the
// history of operations.
func runModel(t *testing.T, data []byte, name string) (history string) {
	t.Helper()
	r := newModelRun(data)
	defer func() {
		if p := recover(); p != nil { // a deadlock, or goroutines that have not ended
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
	modeltest.Config

	buffer                   int
	delay                    time.Duration
	exponential              bool
	onEmpty, onError         bool // the outcomes that are retried; onError: HasException, or ErrorIs(errModelAgain) if onAgain
	onAgain                  bool
	holds, immediate, mayEnd bool // holds: an AsyncInvoke can block the loop; immediate: or complete immediately
	results                  bool // driven by Results, not as a flow
	to                       bool // a flow whose results go to To, not Out
	keys                     int  // 0 means no key order
}

// places returns the number of results that can be buffered while downstream is blocked.
func (c *modelConfig) places() int {
	if c.results || c.to {
		return max(1, c.buffer) + 1 // the goroutine that iterates over Results, or To, holds one
	}
	return c.buffer
}

const modelFeed = 4096 // more than a schedule sends or receives

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

func newModelConfig(b *modelBytes) *modelConfig {
	const ms = time.Millisecond
	yes := func(percent int) bool { return b.next()*100 < percent*256 }
	c := &modelConfig{
		Config: modeltest.Config{
			Unordered:          yes(50),
			Blocking:           yes(30),
			Capacity:           1 + b.next()%8,
			MaxCalls:           modelPick(b, 0, 0, 1, 2, 3),
			Timeout:            modelPick(b, 10*ms, 15*ms, 30*ms, 100*ms, 0),
			AttemptTimeout:     modelPick(b, 0, 0, 0, 3*ms, 7*ms, 15*ms),
			Retries:            modelPick(b, 1, 2, 3, 0, strategies.Unlimited, -1),
			OnFailure:          modelPick(b, modeltest.Drop, modeltest.HandOver, modeltest.FailRun, modeltest.Drop),
			ExhaustedAsFailure: yes(30),
			DrainRetries:       yes(30),
			EarlyTimeout:       yes(20),
			Handler:            yes(30),
			HandlerLimit:       6 * ms,
			ComeAgain:          yes(35),
			ReserveDivisor:     10,
			HeedsContext:       yes(50),
		},
		buffer:      modelPick(b, 0, 1, 64),
		delay:       modelPick(b, 1*ms, 2*ms, 5*ms, 0, 20*ms),
		exponential: yes(40),
		onEmpty:     yes(60),
		onError:     yes(30),
		onAgain:     yes(60),
		holds:       yes(30),
		immediate:   yes(40),
		mayEnd:      yes(60),
		results:     yes(35),
		to:          yes(50),
		keys:        modelPick(b, 0, 0, 0, 1, 2, 3),
	}
	c.MaxWaiting = modelPick(b, 0, 0, 1, 2)
	c.Again, c.Backoff = c.again, c.backoff
	if c.results {
		c.DrainRetries, c.ReadAhead = true, max(1, c.buffer)
	}
	if c.Timeout == 0 {
		c.Retries = -1
	}
	c.to = c.to && !c.results
	c.ComeAgain = c.ComeAgain && !c.results && !c.to
	// No law defines the order of these events at the same instant.
	if c.Blocking || c.OnFailure == modeltest.FailRun {
		c.holds = false
	}
	if c.Blocking || c.holds {
		c.immediate = false
	}
	if c.holds {
		c.MaxCalls = 0
	}
	if c.KeyOrder = c.keys > 0; !c.KeyOrder {
		c.MaxWaiting = 0
	} else {
		c.Unordered = true
		if c.OnFailure == modeltest.HandOver {
			c.OnFailure = modeltest.Drop // no law defines when a failure is handed over beside other ends at the same instant: see the core's test
		}
		if c.Blocking && c.HeedsContext { // nor which of the calls that return at the same instant lets others start first
			c.AttemptTimeout, c.immediate = 0, false
		}
	}
	if c.holds && c.Timeout == 0 && c.AttemptTimeout == 0 {
		c.AttemptTimeout = time.Hour // without a limit, time passes only in the step, which a call that holds the loop makes long
	}
	return c
}

func (c *modelConfig) strategy() strategies.Retry[any] {
	if c.Retries < 0 {
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
		return strategies.ExponentialBackoff[any](c.Retries, c.delay, 8*c.delay, 2).
			RetryIfResult(onResult).RetryIfException(onError)
	}
	return strategies.FixedDelay[any](c.Retries, c.delay).RetryIfResult(onResult).RetryIfException(onError)
}

func (c *modelConfig) backoff(attempts int) time.Duration {
	if c.exponential {
		return min(c.delay<<min(attempts-1, 10), 8*c.delay)
	}
	return c.delay
}

func (c *modelConfig) again(o modeltest.Outcome) bool {
	if o.Err == "" {
		return c.onEmpty && len(o.Results) == 0
	}
	return c.onError || c.onAgain && o.Err == "again"
}

func modelResults(key string, n int) (o modeltest.Outcome) {
	for i := range n {
		o.Results = append(o.Results, key+string(rune('a'+i)))
	}
	return o
}

// ---- The operator next to the model

// modelInput is an element. Its fields are exported for checkpoints.
type modelInput struct {
	ID        int
	Immediate int // in modelImmediates
}

// modelImmediates are the ways in which the first attempt of an element can end inside
// AsyncInvoke.
var modelImmediates = []struct {
	completes bool
	results   int
	then      string // returns an error, or panics
}{
	{}, // does not end there
	{true, 1, ""},
	{true, 1, "again"},
	{true, 1, "panic"},
	{true, 0, ""},
	{false, 0, "again"},
	{false, 0, "panic"},
}

// atOnce returns how the first attempt ends immediately, and whether it does so twice.
func (in modelInput) atOnce() (o *modeltest.Outcome, twice bool) {
	if in.Immediate == 0 {
		return nil, false
	}
	is := modelImmediates[in.Immediate]
	if !is.completes {
		return &modeltest.Outcome{Err: is.then}, false
	}
	outcome := modelResults(fmt.Sprintf("%d#1", in.ID), is.results)
	return &outcome, is.then != ""
}

// modelRun applies a schedule to an operator and a model.
type modelRun struct {
	*modelConfig
	bytes  modelBytes
	model  *modeltest.Model
	ops    []string
	broken error

	op        *asyncop.AsyncWaitOperator[modelInput, any]
	start     time.Time
	cancel    context.CancelCauseFunc
	feed      chan any // practically unbounded; a goroutine sends it to In
	closed    bool
	sent      []modelSent
	host      *modelHost
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

// modelSent is a value that was sent, and its form in the model.
type modelSent struct {
	modeltest.Input

	value any
}

// modelHandle is a call of the function or of its timeout handler, as the user sees it.
type modelHandle struct {
	ctx     context.Context
	done    <-chan struct{} // Done of ctx; for every other element, because Done is made when it is asked for
	at      time.Duration
	result  asyncop.ResultFuture[any]
	answer  chan modeltest.Outcome // for calls that block
	ended   time.Duration          // when the user completed it, or modeltest.Never
	element int
	attempt int
}

func newModelRun(data []byte) *modelRun {
	r := &modelRun{bytes: data, calls: map[string]*modelHandle{}}
	r.modelConfig = newModelConfig(&r.bytes)
	r.model, r.host = modeltest.New(r.Config), newModelHost(r)
	return r
}

func (r *modelRun) String() string {
	return fmt.Sprintf("%+v\n%s", *r.modelConfig, strings.Join(r.ops, "\n"))
}

// modelTap reads from a channel while the tap is open.
type modelTap struct {
	ch      chan any
	reading chan bool
	done    chan struct{} // closed when ch is closed
	text    func(any) string

	mu    sync.Mutex
	items []string // guarded by mu
}

func newModelTap(ch <-chan any, text func(any) string) *modelTap {
	t := &modelTap{reading: make(chan bool), done: make(chan struct{}), text: text}
	go func() {
		defer close(t.done)
		for from := ch; ; {
			select {
			case open := <-t.reading:
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
	case t.reading <- open:
	case <-t.done:
	}
}

// modelSink is a sink that is not waited for.
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
	if r.start.IsZero() {
		r.start = time.Now()
	}
	opts := []asyncop.Option{
		asyncop.WithContext(ctx),
		asyncop.WithName("op"),
		asyncop.WithBuffer(r.buffer),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)),
		asyncop.WithHandlerLimit(r.HandlerLimit),
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
	optional(r.MaxCalls > 0, func() asyncop.Option { return asyncop.WithMaxConcurrentCalls(r.MaxCalls) })
	optional(r.AttemptTimeout > 0, func() asyncop.Option { return asyncop.WithAttemptTimeout(r.AttemptTimeout) })
	optional(r.OnFailure == modeltest.Drop, asyncop.WithDropOnFailure)
	optional(r.OnFailure == modeltest.HandOver, func() asyncop.Option { return asyncop.WithFailureSink(takeInto(side)) })
	optional(r.ExhaustedAsFailure, asyncop.WithExhaustedAsFailure)
	optional(r.DrainRetries && !r.results, asyncop.WithDrainRetries)
	optional(r.EarlyTimeout, asyncop.WithEarlyTimeout)
	optional(r.ComeAgain, r.host.option)

	fn := asyncop.Func(r.invoke)
	if r.Blocking {
		fn = asyncop.BlockingMany(r.block)
	}
	if r.Handler {
		fn = optest.TimeoutMethod(fn, r.block)
	}
	construct := asyncop.OrderedWaitWithRetry[modelInput, any]
	if r.Unordered {
		construct = asyncop.UnorderedWaitWithRetry[modelInput, any]
	}
	optional(r.MaxWaiting > 0, func() asyncop.Option { return asyncop.WithMaxWaitingPerKey(r.MaxWaiting) })
	if r.keys > 0 {
		key := func(in modelInput) int { return in.ID % r.keys }
		r.op = asyncop.KeyOrderedWait(fn, key, r.Timeout, r.Capacity, r.strategy(), opts...)
	} else {
		r.op = construct(fn, r.Timeout, r.Capacity, r.strategy(), opts...)
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
		switch v := v.(type) {
		case asyncop.Watermark:
			return fmt.Sprintf("W%d", v.Timestamp.Unix())
		case participant.Barrier:
			return fmt.Sprintf("B%d", v.ID)
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

// takeAll takes the results through To.
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
		if want == nil && len(r.told) > 0 { // the error that the operator was stopped
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
	is := modelImmediates[in.Immediate]
	if in.Immediate == 0 || asyncop.AttemptFromContext(ctx) > 1 {
		return nil
	}
	h.ended = h.at
	if is.completes {
		result.Complete(modelAnys(modelResults(fmt.Sprintf("%d#1", in.ID), is.results).Results)...)
	}
	switch is.then {
	case "panic":
		panic(errModelFinal)
	case "again":
		return errModelAgain
	default:
		return nil
	}
}

// block is the blocking function, and the timeout handler.
func (r *modelRun) block(ctx context.Context, in modelInput) ([]any, error) {
	h := r.enter(ctx, in, nil)
	var end <-chan struct{}
	if r.HeedsContext {
		end = ctx.Done()
	}
	select {
	case o := <-h.answer:
		return modelUnpack(o)
	case <-end:
		return nil, ctx.Err()
	}
}

func (r *modelRun) enter(ctx context.Context, in modelInput, result asyncop.ResultFuture[any]) *modelHandle {
	h := &modelHandle{
		ctx: ctx, at: time.Since(r.start), result: result, answer: make(chan modeltest.Outcome, 1), ended: modeltest.Never,
		element: in.ID, attempt: asyncop.AttemptFromContext(ctx),
	}
	if in.ID%2 == 0 {
		h.done = ctx.Done()
	}
	key := fmt.Sprintf("%d#%d", h.element, h.attempt)
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

func modelUnpack(o modeltest.Outcome) ([]any, error) {
	switch o.Err {
	case "":
		return modelAnys(o.Results), nil
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

// modelClass translates errors to the names of the model.
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
		return with(fmt.Sprintf("element %d attempts=%d elapsed=%v: %s", element.Element.(modelInput).ID,
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
	var first, last time.Duration
	if f.Attempts > 0 {
		first, last = f.FirstAttempt.Sub(r.start), f.LastAttempt.Sub(r.start)
	}
	return fmt.Sprint(f.Element.ID) + modeltest.Failure(modelClass(f.Err), f.Attempts, first, last)
}

// ---- Operations

func (r *modelRun) run() {
	r.begin()
	defer r.tearDown()
	r.compare("begin")
	for after := 0; len(r.bytes) > 0 && r.broken == nil && after < 8; {
		r.compare(r.operation())
		if r.model.IsDone() {
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
		case r.ComeAgain && !r.model.Ended && len(r.model.Source)+len(r.model.Queue) == 0:
			r.compare(r.cancelRun()) // its input may not end without a final barrier
		case !r.ComeAgain && !r.closed && r.mayClose():
			r.compare(r.closeInput())
		case len(open) > 0:
			r.compare(r.complete(open[0], 0))
		case r.model.Ended:
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
	if m.Held != nil && op > 23 { // see newModelConfig: fewer operations are allowed while the loop is held
		return r.release()
	}
	rare := r.mayEnd && arg%4 == 0
	switch {
	case op < 8:
		return r.send(false, arg)
	case op < 10:
		return r.send(true, 0)
	case op < 18:
		if open := r.open(); len(open) > 0 {
			return r.complete(open[arg%len(open)], r.bytes.next())
		}
		return r.send(false, arg)
	case op < 19:
		if calls := m.Calls; len(calls) > 0 {
			return r.complete(calls[arg%len(calls)], r.bytes.next())
		}
		return r.send(false, arg)
	case op < 24:
		return r.pass(time.Millisecond * [...]time.Duration{1, 1, 1, 2, 2, 3, 4, 5, 8, 20, 100}[arg%11])
	case op < 25 && !(r.Unordered && (r.holds || r.immediate && r.OnFailure == modeltest.HandOver)):
		m.OutOpen, m.Places = !m.OutOpen, r.places()
		r.out.set(m.OutOpen)
		return fmt.Sprintf("downstream open: %v", m.OutOpen)
	case op == 25 && r.keys == 0 && !(r.Unordered && !m.OutOpen && !m.SinkOpen): // waiting failures block their keys: see the core's model
		m.SinkOpen = !m.SinkOpen
		r.side.set(m.SinkOpen)
		return fmt.Sprintf("failure sink open: %v", m.SinkOpen)
	case op < 28 && r.holds && !r.closed:
		m.HoldNext = true
		r.gate = make(chan struct{})
		r.holdNext.Store(true)
		return "the next call holds the loop"
	case op > 25 && op < 29 && r.ComeAgain && m.OutOpen && !m.Ended:
		if arg%3 == 0 && r.host.items != nil {
			return r.restart()
		}
		return r.barrier()
	case op == 29 && rare && !r.ComeAgain && r.mayClose():
		return r.closeInput()
	case op == 30 && rare && !r.ComeAgain && r.stopped == nil:
		r.stopped = make(chan error, 1)
		go func() { r.stopped <- r.op.Stop(context.Background()) }()
		m.Stop()
		return "stop"
	case op == 31 && rare:
		return r.cancelRun()
	default:
		return r.send(false, arg)
	}
}

func (r *modelRun) send(watermark bool, arg int) string {
	if r.closed {
		return r.pass(time.Millisecond)
	}
	in := modelInput{ID: len(r.sent) + 1}
	e := modeltest.Input{ID: in.ID, Name: fmt.Sprint(in.ID)}
	var v any
	switch {
	case watermark && !r.results: // Results has no control elements
		e.Name, e.Control, v = "W"+e.Name, true, asyncop.Watermark{Timestamp: time.Unix(int64(in.ID), 0)}
	case r.immediate && arg%2 == 0:
		kinds := len(modelImmediates)
		if r.OnFailure == modeltest.FailRun { // no law defines the order of other events at the same instant
			kinds = 4
		}
		in.Immediate = arg / 2 % kinds
		e.AtOnce, e.Twice = in.atOnce()
	}
	if v == nil {
		v = in
	}
	if r.keys > 0 {
		e.Key = in.ID % r.keys
	}
	r.sent = append(r.sent, modelSent{e, v})
	r.model.Send(e)
	r.feed <- v
	return fmt.Sprintf("send %+v", v)
}

func (r *modelRun) cancelRun() string {
	r.cancel(errModelCancel)
	if !r.model.Ended {
		r.model.End("cancelled")
	}
	return "cancel"
}

func (r *modelRun) closeInput() string {
	if r.model.HoldNext || r.model.Held != nil { // it is undefined whether a held loop sees the end or a completion first
		return r.release()
	}
	if !r.closed {
		r.closed = true
		close(r.feed)
		r.model.CloseInput()
	}
	return "close"
}

// mayClose reports whether it is certain when the end of the input will be noticed. Other
// events at the same instant, such as calls that end by themselves, may come before or
// after it, and no law defines the order.
func (r *modelRun) mayClose() bool {
	m := r.model
	return m.Ended || !(r.immediate || r.Blocking && r.HeedsContext) || len(m.Source) == 0 && m.HasSlot()
}

// open lists the calls that were not answered and may still end the attempt, and calls
// that block.
func (r *modelRun) open() (open []*modeltest.Call) {
	for _, call := range r.model.Calls {
		blocks := r.Blocking || call.Attempt == 0
		if !call.Answered && (!call.Ended || blocks) {
			open = append(open, call)
		}
	}
	return open
}

func (r *modelRun) complete(call *modeltest.Call, arg int) string {
	o := modelResults(call.Key(), 1)
	switch arg % 8 {
	case 1, 2:
		o = modeltest.Outcome{}
	case 3, 4:
		o = modeltest.Outcome{Err: "again"}
	case 5:
		o = modeltest.Outcome{Err: "final"}
	case 6:
		o = modelResults(call.Key(), 2)
	case 7:
		o = modeltest.Outcome{Err: "control"}
		if r.Blocking || call.Attempt == 0 {
			o.Err = "panic"
		}
	}
	h := r.calls[call.Key()]
	if h.ended == modeltest.Never {
		h.ended = time.Since(r.start)
	}
	switch {
	case h.result != nil:
		results, err := modelUnpack(o)
		if err != nil {
			h.result.CompleteExceptionally(err)
		} else {
			h.result.Complete(results...)
		}
	case call.Answered:
		return "(answered) " + call.Key()
	default:
		h.answer <- o
	}
	if r.Blocking && call.Attempt > 0 {
		r.model.Return(call)
	}
	r.model.Complete(call, o)
	return fmt.Sprintf("complete %s with %+v", call.Key(), o)
}

func (r *modelRun) pass(d time.Duration) string {
	time.Sleep(d)
	r.model.Advance(time.Since(r.start))
	return fmt.Sprintf("pass %v", d)
}

func (r *modelRun) release() string {
	r.holdNext.Store(false)
	r.model.HoldNext = false
	if r.model.Held != nil {
		close(r.gate)
		r.model.Release()
	}
	return "release"
}

func (r *modelRun) openAll() string {
	r.out.set(true)
	r.side.set(true)
	r.model.OutOpen, r.model.SinkOpen = true, true
	return "open all"
}

// tearDown lets everything end, so that any goroutine still in the bubble is a leak.
func (r *modelRun) tearDown() {
	r.release()
	r.openAll()
	r.cancel(errModelCancel)
	r.closeInput()
	<-r.op.Done()
	close(r.sideIn)
	for _, h := range r.calls {
		select {
		case h.answer <- modeltest.Outcome{}:
		default:
		}
	}
}

// ---- Comparison

// compare waits until the operator is idle, and compares it with the model.
func (r *modelRun) compare(what string) {
	m := r.model
	m.Settle()
	synctest.Wait()
	r.ops = append(r.ops, fmt.Sprintf("%8v %s", time.Since(r.start), what))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, wrong := range r.wrong {
		r.report("%s", wrong)
	}
	if m.Held == nil { // else something of the same instant may or may not have left before the loop was held
		received := m.Did(modeltest.Emitted)
		if !m.OutOpen { // the rest is in Out's buffer
			received = received[:len(received)-(r.places()-m.Places)]
		}
		r.same("out", strings.Join(received, " "), strings.Join(r.out.got(), " "))
		want, got := m.Did(modeltest.HandedOver), r.side.got()
		if r.holds { // elements that failed while the loop was held come in no defined order
			slices.Sort(want)
			slices.Sort(got)
		}
		r.same("failure sink", strings.Join(want, "; "), strings.Join(got, "; "))
	}
	m.ForgetUnmade(func(key string) bool { return r.calls[key] != nil })
	r.same("calls", len(m.Calls), len(r.calls))
	for _, call := range m.Calls {
		h := r.calls[call.Key()]
		if h == nil {
			r.report("call %s is missing", call.Key())
			continue
		}
		r.same("start of "+call.Key(), call.At, h.at)
		deadline, ok := h.ctx.Deadline()
		r.same("deadline of "+call.Key(), call.Deadline != modeltest.Never, ok)
		if ok {
			r.same("deadline of "+call.Key(), call.Deadline, deadline.Sub(r.start))
		}
		var ended error
		if call.Expired {
			ended = context.DeadlineExceeded
		} else if call.Ended || call.Answered {
			ended = context.Canceled
		}
		r.same("context of "+call.Key(), ended, h.ctx.Err())
		select {
		case <-h.done:
			r.same("end of context of "+call.Key(), ended != nil, true)
		default:
			r.same("end of context of "+call.Key(), ended != nil && h.done != nil, false)
		}
	}
	if m.Held != nil {
		return
	}
	if m.IsDone() || !m.Ended {
		want, got := m.Stats(), r.op.Stats()
		got.LastError, got.LastErrorAge, got.WaitingToLeave = nil, 0, 0 // have their own tests
		r.same("stats", want, got)
	}
	isDone := false
	select {
	case <-r.op.Done():
		isDone = true
	default:
	}
	r.same("done", m.IsDone(), isDone)
	if m.Ended {
		r.same("err", m.Err, modelClass(r.op.Err()))
	} else {
		r.same("err", nil, r.op.Err())
	}
	told := ""
	for _, err := range r.told {
		told += modelClass(err)
	}
	r.same("upstream was told", m.Told, told)
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

// checkLaws checks the laws on the observed history alone.
func (r *modelRun) checkLaws() {
	s := r.op.Stats()
	r.same("A1: accepted", s.Accepted, s.Completed+s.Dropped+s.HandedOver+s.Failed+s.Abandoned)
	r.same("A1: in flight after the end", int64(0), s.InFlight)
	if !r.ComeAgain {
		r.same("failures", s.Failures, s.Dropped+s.HandedOver+s.Failed)
	}

	r.checkOrder()
	for key, h := range r.calls {
		if h.attempt == 0 {
			continue
		}
		if r.Retries != strategies.Unlimited && h.attempt > max(0, r.Retries)+1 {
			r.report("A4: call %s, but %d retries", key, r.Retries)
		}
		if d, ok := h.ctx.Deadline(); ok && d.Sub(r.start) <= h.at {
			r.report("A5: call %s at %v, its deadline was %v", key, h.at, d.Sub(r.start))
		}
		before := r.calls[fmt.Sprintf("%d#%d", h.element, h.attempt-1)]
		if h.attempt > 1 && before == nil {
			r.report("call %s without one before", key)
		} else if h.attempt > 1 && (!r.model.NoRetries || r.DrainRetries) {
			// An attempt that timed out did not end before its timeout.
			ended := before.at + r.AttemptTimeout
			if before.ended != modeltest.Never {
				ended = min(before.ended, cmp.Or(ended-before.at, 1<<40)+before.at)
			}
			if h.at < ended+r.backoff(h.attempt-1) {
				r.report("T1: call %s at %v, the one before ended at %v", key, h.at, ended)
			}
		}
	}
}

// checkOrder checks that the results of an element come from one attempt, together, and
// once (laws A1, Q1), and that the order is kept (laws Q1, K1).
func (r *modelRun) checkOrder() {
	type emitted struct {
		id   int
		from string // the attempt, or "" for a watermark
	}
	var out []emitted
	for _, v := range r.out.got() {
		var e emitted
		if n, _ := fmt.Sscanf(v, "%d#", &e.id); n == 1 {
			e.from = v[:len(v)-1]
		} else if n, _ := fmt.Sscanf(v, "W%d", &e.id); n == 0 {
			continue // a barrier
		}
		out = append(out, e)
	}
	for i, b := range out {
		for _, a := range out[:i] {
			switch {
			case a.id == b.id && (a.from == "" || a.from != b.from || out[i-1].id != b.id):
				r.report("A1, Q1: %v is out of place in %v", b, out)
			case a.id <= b.id:
			case !r.Unordered || a.from == "" || b.from == "" || slices.ContainsFunc(r.sent[b.id:a.id-1], func(s modelSent) bool { return s.Control }):
				r.report("Q1: %v has overtaken %v in %v", a, b, out)
			case r.keys > 0 && a.id%r.keys == b.id%r.keys:
				r.report("K1: %v has overtaken %v in %v", a, b, out)
			}
		}
	}
}
