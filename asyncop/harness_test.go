package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// The tests of the laws drive an operator by hand: they feed elements, complete calls in an order of their choice, and
// compare what happened as a text. They run in a bubble of testing/synctest, where time is virtual and exact, and where
// synctest.Wait returns when the operator has nothing left to do.

// mode is one way to run a test.
type mode struct {
	ordered  bool
	capacity int
	mock     bool // the operator is on a clock.Mock
}

func (m mode) String() string {
	s := fmt.Sprintf("%s/capacity=%d", m.order(), m.capacity)
	if m.mock {
		s += "/mock"
	}
	return s
}

func (m mode) order() string {
	if m.ordered {
		return "ordered"
	}
	return "unordered"
}

// pick returns the history that is right for the order.
func (m mode) pick(ordered, unordered string) string {
	if m.ordered {
		return ordered
	}
	return unordered
}

// defaultCapacity is enough for the tests that do not care.
const defaultCapacity = 16

// forEachMode runs body in a bubble of its own for both orders and each capacity; by default one that is enough.
func forEachMode(t *testing.T, body func(t *testing.T, m mode), capacities ...int) {
	t.Helper()
	if len(capacities) == 0 {
		capacities = []int{defaultCapacity}
	}
	for _, capacity := range capacities {
		for _, ordered := range []bool{true, false} {
			inBubble(t, mode{ordered: ordered, capacity: capacity}, body)
		}
	}
}

// forEachClock is forEachMode on the real clock, which is virtual in the bubble, and on a clock.Mock.
func forEachClock(t *testing.T, body func(t *testing.T, m mode)) {
	t.Helper()
	for _, mock := range []bool{false, true} {
		for _, ordered := range []bool{true, false} {
			inBubble(t, mode{ordered: ordered, capacity: defaultCapacity, mock: mock}, body)
		}
	}
}

func inBubble(t *testing.T, m mode, body func(t *testing.T, m mode)) {
	t.Helper()
	t.Run(m.String(), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { body(t, m) })
	})
}

type (
	operator = asyncop.AsyncWaitOperator[string, string]
	function = asyncop.AsyncFunction[string, string]
	future   = asyncop.ResultFuture[string]
	strategy = strategies.AsyncRetryStrategy[string]
	failure  = asyncop.Failure[string]
)

// Errors that tests complete with.
var (
	errBroken   = errors.New("broken")
	errTestOver = errors.New("the test is over")
)

// retryAll retries errors and empty results, maxRetries times, after delay.
func retryAll(maxRetries int, delay time.Duration) *strategies.FixedDelayStrategy[string] {
	return retryAllOf[string](maxRetries, delay)
}

func retryAllOf[OUT any](maxRetries int, delay time.Duration) *strategies.FixedDelayStrategy[OUT] {
	return strategies.FixedDelay[OUT](maxRetries, delay).
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException)
}

// construct calls the constructor of the mode; without a strategy, the one without retry.
func construct[IN, OUT any](
	m mode, fn asyncop.AsyncFunction[IN, OUT], timeout time.Duration,
	s strategies.AsyncRetryStrategy[OUT], opts ...asyncop.Option,
) *asyncop.AsyncWaitOperator[IN, OUT] {
	switch {
	case s == nil && m.ordered:
		return asyncop.OrderedWait(fn, timeout, m.capacity, opts...)
	case s == nil:
		return asyncop.UnorderedWait(fn, timeout, m.capacity, opts...)
	case m.ordered:
		return asyncop.OrderedWaitWithRetry(fn, timeout, m.capacity, s, opts...)
	default:
		return asyncop.UnorderedWaitWithRetry(fn, timeout, m.capacity, s, opts...)
	}
}

// setup is how a rig's operator is built; the zero value is an operator of a hand-driven function without timeout.
type setup struct {
	timeout  time.Duration
	strategy strategy
	key      func(string) string  // makes it a key-ordered operator; the order of the mode means nothing then
	wrap     func(*hand) function // the function, around the hand-driven one
	blocked  bool                 // downstream takes nothing until read is called
	opts     []asyncop.Option
	state    asyncop.State[string, string] // of a checkRig
}

// options is short for a list of them.
func options(opts ...asyncop.Option) []asyncop.Option { return opts }

// rig is an operator of strings under test.
type rig struct {
	*hand
	t      *testing.T
	op     *operator
	mock   *clock.Mock // nil if the mode has none
	cancel context.CancelCauseFunc

	endInputOnce, readOnce func()
	startReading           chan struct{}
	read                   chan struct{} // closed when Out was seen to be closed

	mu      sync.Mutex
	out     []string // guarded by mu: what came out of Out, with its time
	errAtEO error    // guarded by mu: what Err told when Out was seen to be closed
}

func newRig(t *testing.T, m mode, s setup) *rig {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, "of the operator"))
	r := &rig{t: t, hand: newHand(t), cancel: cancel, startReading: make(chan struct{}), read: make(chan struct{})}
	opts := options(asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	if m.mock {
		r.mock = clock.NewMock()
		r.hand.clock = r.mock
		r.hand.start = r.mock.Now()
		opts = append(opts, asyncop.WithClock(r.mock))
	}
	var fn function = r.hand
	if s.wrap != nil {
		fn = s.wrap(r.hand)
	}
	switch opts = append(opts, s.opts...); {
	case s.key == nil:
		r.op = construct(m, fn, s.timeout, s.strategy, opts...)
	case s.strategy == nil:
		r.op = asyncop.KeyOrderedWait(fn, s.key, s.timeout, m.capacity, nil, opts...)
	default:
		r.op = asyncop.KeyOrderedWait(fn, s.key, s.timeout, m.capacity, s.strategy, opts...)
	}
	r.endInputOnce = sync.OnceFunc(func() { close(r.op.In()) })
	r.readOnce = sync.OnceFunc(func() { close(r.startReading) })
	go r.reader()
	if !s.blocked {
		r.unblock()
	}
	t.Cleanup(func() {
		cancel(errTestOver)
		r.unblock()
		r.endInputOnce()
		<-r.op.Done()
	})
	return r
}

type valueKey struct{}

// reader is downstream.
func (r *rig) reader() {
	<-r.startReading
	for v := range r.op.Out() {
		r.mu.Lock()
		r.out = append(r.out, fmt.Sprintf("%s@%v", text(v), r.now()))
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.errAtEO = r.op.Err()
	r.mu.Unlock()
	close(r.read)
}

// unblock lets downstream read.
func (r *rig) unblock() { r.readOnce() }

// text is an element as a history shows it.
func text(v any) string {
	switch v := v.(type) {
	case asyncop.Watermark:
		return fmt.Sprintf("|%d|", v.Timestamp.Unix())
	default:
		return fmt.Sprint(v)
	}
}

// mark returns a watermark.
func mark(seconds int64) asyncop.Watermark {
	return asyncop.Watermark{Timestamp: time.Unix(seconds, 0)}
}

// send feeds elements and waits until the operator has done with them what it can.
func (r *rig) send(elements ...any) {
	for _, e := range elements {
		r.op.In() <- e
	}
	synctest.Wait()
}

// sendEach is send for the letters of s.
func (r *rig) sendEach(s string) {
	for _, e := range s {
		r.op.In() <- string(e)
	}
	synctest.Wait()
}

// endInput closes In.
func (r *rig) endInput() {
	r.endInputOnce()
	synctest.Wait()
}

// advance lets time pass. In a bubble, a mock that has fired a timer waits until the operator is idle again (it sleeps a
// millisecond), so one large step is as exact as many small ones.
func (r *rig) advance(d time.Duration) {
	if r.mock != nil {
		r.mock.Add(d)
	} else {
		time.Sleep(d)
	}
	synctest.Wait()
}

// end ends the input and returns Err when all is done.
func (r *rig) end() error {
	r.endInputOnce()
	return r.wait()
}

// wait waits for the end of the operator and of its output, and returns Err.
func (r *rig) wait() error {
	r.unblock()
	<-r.read
	err := r.op.Wait()
	synctest.Wait()
	return err
}

// cut ends the operator by its context and returns Err.
func (r *rig) cut(cause error) error {
	r.cancel(cause)
	synctest.Wait()
	return r.wait()
}

// outputs is what came out: "A B |1| C".
func (r *rig) outputs() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for i, o := range r.out {
		if i > 0 {
			b.WriteByte(' ')
		}
		what, _, _ := strings.Cut(o, "@")
		b.WriteString(what)
	}
	return b.String()
}

// outputTimes is what came out and when: "A@1s B@1s".
func (r *rig) outputTimes() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.out, " ")
}

// timeOutIn moves the time on and checks that the first n elements time out then, and none a moment before.
func (r *rig) timeOutIn(d time.Duration, n int) {
	r.t.Helper()
	r.advance(d - 1)
	require.Zero(r.t, r.stats().Timeouts)
	r.advance(1)
	require.EqualValues(r.t, n, r.stats().Timeouts)
}

// stats returns the statistics of an operator that is idle or has ended.
// stats returns the counts; the last error has tests of its own.
func (r *rig) stats() asyncop.Stats {
	synctest.Wait()
	s := r.op.Stats()
	s.LastError = nil
	return s
}

// checkBalance checks that every accepted element is in exactly one state.
func checkBalance(t *testing.T, s asyncop.Stats) {
	t.Helper()
	require.Equal(t, s.Accepted, s.InFlight+s.Completed+s.Dropped+s.HandedOver+s.Failed+s.Abandoned,
		"every element is in exactly one state: %+v", s)
}

// hand is an asynchronous function that the test answers by hand, or by a script.
type hand struct {
	t     *testing.T
	clock clock.Clock
	start time.Time

	// Set before the elements are sent.
	scripts map[string]func(*call) error // by name of the call, such as "a#1"
	answer  func(*call) error            // of all other calls

	mu   sync.Mutex
	made []*call // guarded by mu
}

func newHand(t *testing.T) *hand {
	t.Helper()
	c := clock.New()
	return &hand{t: t, clock: c, start: c.Now(), scripts: map[string]func(*call) error{}}
}

// call is one attempt.
type call struct {
	future
	in      string
	attempt int
	ctx     context.Context //nolint:containedctx // what the call was given
	at      time.Duration
}

func (c *call) String() string { return fmt.Sprintf("%s#%d", c.in, c.attempt) }

func (h *hand) now() time.Duration { return h.clock.Since(h.start) }

// AsyncInvoke records the call; the test answers it.
func (h *hand) AsyncInvoke(ctx context.Context, in string, result future) error {
	c := &call{future: result, in: in, attempt: asyncop.AttemptFromContext(ctx), ctx: ctx, at: h.now()}
	h.mu.Lock()
	h.made = append(h.made, c)
	h.mu.Unlock()
	if script := h.scripts[c.String()]; script != nil {
		return script(c)
	}
	if h.answer != nil {
		return h.answer(c)
	}
	return nil
}

// script sets what a call does, on the loop.
func (h *hand) script(name string, f func(*call) error) { h.scripts[name] = f }

// upper answers at once: "a" with "A".
func upper(c *call) error {
	c.Complete(strings.ToUpper(c.in))
	return nil
}

// fails answers at once with errBroken.
func fails(*call) error { return errBroken }

// empty answers at once with no result.
func empty(c *call) error {
	c.Complete()
	return nil
}

// call returns the call of the given name, which must have been made.
func (h *hand) call(name string) *call {
	h.t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.made {
		if c.String() == name {
			return c
		}
	}
	require.Failf(h.t, "no such call", "%s among %v", name, h.made)
	return nil
}

// complete answers a call and waits until the operator has done with it what it can.
func (h *hand) complete(name string, results ...string) {
	h.t.Helper()
	h.call(name).Complete(results...)
	synctest.Wait()
}

// fail is complete with an error.
func (h *hand) fail(name string, err error) {
	h.t.Helper()
	h.call(name).CompleteExceptionally(err)
	synctest.Wait()
}

// calls is what was called: "a#1 b#1 a#2".
func (h *hand) calls() string { return h.callTexts((*call).String) }

// callTimes is what was called and when: "a#1@0s b#1@0s a#2@10ms".
func (h *hand) callTimes() string {
	return h.callTexts(func(c *call) string { return fmt.Sprintf("%s@%v", c, c.at) })
}

func (h *hand) callTexts(text func(*call) string) string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	texts := make([]string, len(h.made))
	for i, c := range h.made {
		texts[i] = text(c)
	}
	return strings.Join(texts, " ")
}

// sideSink is a failure sink that the test may block.
type sideSink struct {
	open chan struct{}

	mu       sync.Mutex
	failures []failure // guarded by mu
}

// newSideSink returns a sink; a blocked one takes nothing until unblock is called.
func newSideSink(blocked bool) *sideSink {
	s := &sideSink{open: make(chan struct{})}
	if !blocked {
		s.unblock()
	}
	return s
}

// take is for WithFailureSink.
func (s *sideSink) take(ctx context.Context, f failure) error {
	select {
	case <-s.open:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, f)
	return nil
}

func (s *sideSink) unblock() { close(s.open) }

// got returns what came so far.
func (s *sideSink) got() []failure {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]failure(nil), s.failures...)
}

// elements is the same as a text: "a b".
func (s *sideSink) elements() string {
	var names []string
	for _, f := range s.got() {
		names = append(names, f.Element)
	}
	return strings.Join(names, " ")
}

// errNamed is an error of asyncop that has no name for users: it is found by its text.
type errNamed string

func (e errNamed) in(err error) bool { return err != nil && strings.Contains(err.Error(), string(e)) }

// Errors of asyncop without a name for users.
const (
	errControlResult errNamed = "asyncop: a control element is not a result"
	errHandlerLimit  errNamed = "asyncop: the handler of a failure exceeded its limit (WithHandlerLimit)"
)

// must returns v.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// stateText returns the elements of an operator's state, as a text: "a" with no attempts made, "a#2" with two, "|5|" for a
// watermark, "a=[A1 A2]" with results, "a@5" with the number of an observer.
func stateText[IN, OUT any](state []byte, results codec.Codec[OUT]) (string, error) {
	inputs := codec.Default[IN]()
	s, err := drive.StateCodec[IN, OUT]{Inputs: inputs, Results: results}.Decode(state)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(s.Items))
	for i, it := range s.Items {
		switch {
		case it.Kind == core.Control:
			texts[i] = fmt.Sprintf("|%d|", it.Rest.(asyncop.Watermark).Timestamp.Unix())
			continue
		case it.Attempts == 0:
			texts[i] = fmt.Sprint(it.In)
		default:
			texts[i] = fmt.Sprintf("%v#%d", it.In, it.Attempts)
		}
		if s.Observer != nil {
			texts[i] += fmt.Sprintf("@%d", s.Numbers[i])
		}
		if it.Kind == core.Completed {
			texts[i] += fmt.Sprintf("=%v", it.Results())
		}
	}
	return strings.Join(texts, " "), nil
}

// stateWithAttempts returns the state of an operator with one element that has been called so many times.
func stateWithAttempts[IN, OUT any](in IN, attempts int32) (participant.State, error) {
	return drive.StateCodec[IN, OUT]{Inputs: codec.Default[IN]()}.Encode(drive.Snapshot[IN, OUT]{
		Items: []core.Item[IN, OUT]{{In: in, Attempts: attempts, First: 1}},
	})
}

// timeoutMethod returns fn with the optional method of a TimeoutHandler.
func timeoutMethod[IN, OUT any](
	fn asyncop.AsyncFunction[IN, OUT], timeout func(ctx context.Context, in IN) ([]OUT, error),
) asyncop.AsyncFunction[IN, OUT] {
	return &functionWithTimeout[IN, OUT]{fn, timeout}
}

type functionWithTimeout[IN, OUT any] struct {
	asyncop.AsyncFunction[IN, OUT]
	timeout func(ctx context.Context, in IN) ([]OUT, error)
}

func (f *functionWithTimeout[IN, OUT]) Timeout(ctx context.Context, in IN) ([]OUT, error) {
	return f.timeout(ctx, in)
}
func (f *functionWithTimeout[IN, OUT]) Unwrap() any { return f.AsyncFunction }
